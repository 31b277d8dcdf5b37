"""What to train: for each budget, number of images or case, the network that validation prefers.

Validation scores choose, between networks and between the two kinds; test scores are only reported.
"""

from dataclasses import dataclass

from quarterturn_lab.evaluation.statistics import mean_sd
from quarterturn_lab.studies.definition import TURNED, Case, Question, Study
from quarterturn_lab.studies.findings import ENOUGH, Gap, average, figure, gap, other_measure, timed, values
from quarterturn_lab.studies.measures import MEASURES
from quarterturn_lab.studies.names import line_name, name, split
from quarterturn_lab.studies.records import Records

BEST = 3  # networks listed for each budget
WORDS = {
    "better": "better",
    "worse": "worse",
    "open": "no clear difference",
    "one seed": "one run",
    "not run": "not run",
}
FIRST = {"cpu_seconds": "CPU seconds at most", "train_images": "training images"}
FLIPPED = {"better": "worse", "worse": "better"}


@dataclass(frozen=True)
class Offer:
    """A trained network, with the means of its validation and test scores."""

    line: tuple[str, ...]  # of the picture, to which it belongs
    side: str
    runs: int
    seconds: float
    images: float
    valid: float
    test: float


@dataclass(frozen=True)
class Decision:
    """A row of the table on top: the best network of each kind, and the one to train."""

    case: str
    equivariant: str | None
    ordinary: str | None
    chosen: str

    @property
    def other(self) -> str | None:
        """The best network of the other kind, which is not the choice."""
        return self.equivariant if self.chosen == self.ordinary else self.ordinary

    @property
    def question(self) -> Question | None:
        """The comparison of the two kinds."""
        if self.equivariant is None or self.ordinary is None:
            return None
        return Question(self.equivariant, self.ordinary, f"validation chose both: the best of each kind, {self.case}")


def is_plain(study: Study, side: str) -> bool:
    return study.labels[split(side)[0]].is_plain


def lines(study: Study) -> tuple[tuple[str, ...], ...]:
    """The lines of the picture. Without any, each entry is a line, and so is each ordinary one with turns averaged."""
    plain = [entry.label for entry in study.entries if entry.is_plain]
    single = [*study.labels, *(f"{label}{TURNED}" for label in plain)]
    return study.series or tuple((side,) for side in single)


def offers(study: Study, records: Records) -> list[Offer]:
    """All networks that have been run and have a validation score, the best first."""
    part = "valid" if study.judged == "test" else "test"  # a study judged on validation images has no others
    found = []
    for line in lines(study):
        for side in line:
            valid, test = (list(values(study, records, side, each).values()) for each in (part, "test"))
            if valid and test:
                seconds, images = (average(study, records, side, what) for what in ("cpu_seconds", "train_images"))
                means = mean_sd(valid)[0], mean_sd(test)[0]
                found.append(Offer(line, side, len(valid), seconds, images, *means))
    return sorted(found, key=lambda offer: offer.valid)


def within(study: Study, records: Records, budget: float) -> list[Offer]:
    """For each line of the picture its best network within a budget of CPU seconds; the best line first.

    Entries that were made for a budget are offered for that one, so that a busy machine does not decide.
    """
    found: dict[tuple[str, ...], Offer] = {}
    for offer in offers(study, records):
        made_for = study.labels[split(offer.side)[0]].budget
        if made_for == budget or (made_for is None and offer.seconds <= budget):
            found.setdefault(offer.line, offer)
    return list(found.values())


def decisions(study: Study, records: Records) -> list[Decision]:
    """The rows of the table on top; a row for which nothing has been run is left out."""
    if study.cases:
        return [decision for case in study.cases if (decision := _named(study, records, case))]
    if study.along == "train_images":
        every = offers(study, records)
        sizes = sorted({offer.images for offer in every})
        groups = {f"{size:,.0f}": [offer for offer in every if offer.images == size] for size in sizes}
    else:
        groups = {f"{budget:,}": within(study, records, budget) for budget in study.budgets}
    return [_decision(study, case, found) for case, found in groups.items() if found]


def _decision(study: Study, case: str, found: list[Offer]) -> Decision:
    """The decision from offers, which are sorted with the best first."""
    kinds = [
        _preferred(study, [offer for offer in found if is_plain(study, offer.side) == plain]) for plain in (False, True)
    ]
    chosen = min((offer for offer in kinds if offer), key=lambda offer: offer.valid)
    equivariant, ordinary = (offer.side if offer else None for offer in kinds)
    return Decision(case, equivariant, ordinary, chosen.side)


def _preferred(study: Study, found: list[Offer]) -> Offer | None:
    """The best offer of a kind, if any; where tests were made with several seeds, a trial with fewer does not count."""
    often = [offer for offer in found if offer.runs >= ENOUGH] if study.judged == "test" else []
    return next(iter(often or found), None)


def _named(study: Study, records: Records, case: Case) -> Decision | None:
    if not values(study, records, case.equivariant):
        return None
    return Decision(case.what, case.equivariant, case.ordinary, case.equivariant)


# --- in words ---------------------------------------------------------------------------------------------------------


def table(study: Study, records: Records) -> list[tuple[str, ...]]:
    """The table on top of a page: the network to train beside the best of the other kind, if the study has both."""
    first = "network" if study.cases else FIRST[study.along]
    first_of = "error" if study.measure == "cross_entropy" else MEASURES[study.measure].name
    score = f"{study.judged} {first_of}" + (" (cross-entropy)" if study.measure == "cross_entropy" else "")
    made = decisions(study, records)
    kind = "of the other kind" if any(decision.chosen == decision.ordinary for decision in made) else "ordinary network"
    rows: list[tuple[str, ...]] = [(first, "what to train", score, f"best {kind}", score, "verdict")]
    if study.cases and study.judged == "validation":  # nothing is recommended
        rows = [("what is changed", "rolled network", score, "ordinary network", score, "the first is")]
    shown = line_name if study.along == "train_images" else name  # the first column has the images
    for decision in made:
        best = (f"**{shown(study, decision.chosen)}**", scores(study, records, decision.chosen))
        other = ("none was trained", "")
        if decision.other is not None:
            other = (shown(study, decision.other), scores(study, records, decision.other))
        rows.append((decision.case, *best, *other, verdict(study, records, decision)))
    if not any(entry.is_plain for entry in study.entries):
        rows = [row[:3] for row in rows]
    return rows


def scores(study: Study, records: Records, side: str) -> str:
    """Error, with cross-entropy where that is the study's measure; how many runs, where there is one.

    >>> from quarterturn_lab.studies.catalogue import STUDIES
    >>> scores(STUDIES["small-set"], Records({}, {}, {}), "baseline")
    'not run'
    """
    found = values(study, records, side)
    if not found:
        return "not run"
    inside = [figure(study, records, side)] if study.measure == "cross_entropy" else []
    inside += ["one run"] if len(found) == 1 else []
    return error(study, records, side) + (f" ({', '.join(inside)})" if inside else "")


def error(study: Study, records: Records, side: str) -> str:
    """The mean of a side that has been run: its error where the study's measure is the cross-entropy."""
    if study.measure != "cross_entropy":
        return figure(study, records, side)
    return f"{mean_sd(list(values(other_measure(study), records, side).values()))[0]:.1f} %"


def verdict(study: Study, records: Records, decision: Decision) -> str:
    """The chosen network against the best of the other kind, by both measures where they disagree."""
    if decision.question is None:
        return ""
    ordinary = decision.chosen == decision.ordinary
    by = {
        MEASURES[judged.measure].name: _word(gap(judged, records, decision.question), ordinary)
        for judged in (study, other_measure(study))
    }
    words = list(by.values())
    return words[0] if words[0] == words[-1] else ", ".join(f"{word} by {measure}" for measure, word in by.items())


def _word(found: Gap, flipped: bool) -> str:
    return WORDS[FLIPPED.get(found.verdict, found.verdict) if flipped else found.verdict]


def ranking(study: Study, records: Records) -> list[tuple[str, ...]]:
    """The best lines of each budget as rows of a table."""
    measure, digits = MEASURES[study.measure].name, MEASURES[study.measure].digits
    header = ("CPU seconds at most", "rank", "network", "runs", "CPU s", f"validation {measure}", f"test {measure}")
    used = len(header) if study.judged == "test" else len(header) - 1
    rows: list[tuple[str, ...]] = [header[:used]]
    for budget in study.budgets:
        for rank, offer in enumerate(within(study, records, budget)[:BEST], 1):
            figures = (f"{offer.seconds:.0f}", f"{offer.valid:.{digits}f}", f"{offer.test:.{digits}f}")
            row = (f"{budget:,}", str(rank), name(study, offer.side), str(offer.runs), *figures)
            rows.append(row[:used])
    return rows


def ranked(study: Study, records: Records) -> list[str]:
    """The sides in the table of the best lines."""
    return [offer.side for budget in study.budgets for offer in within(study, records, budget)[:BEST]]


def unevenness(study: Study, records: Records) -> float:
    """The largest ratio of epoch costs of the same network: how much timings vary between runs."""
    ratios = [1.0]
    for sides in lines(study):
        entries = [study.labels[split(side)[0]] for side in sides]
        epochs = [run["cpu_seconds"] / e.config(0).epochs for e in entries for run in timed(study, records, e)]
        ratios += [max(epochs) / min(epochs)] if epochs else []
    return max(ratios)
