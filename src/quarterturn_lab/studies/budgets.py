"""Which network to train where training may take so many CPU seconds: the one that validation prefers."""

from dataclasses import dataclass

from quarterturn_lab.evaluation.statistics import mean_sd
from quarterturn_lab.studies.definition import TURNED, Study
from quarterturn_lab.studies.findings import UNITS, listed, position, shown, split, values
from quarterturn_lab.studies.records import Records


@dataclass(frozen=True)
class Offer:
    """What a line of the picture has for a budget: of its points that fit, the one with the best validation score."""

    line: str
    side: str
    runs: int
    seconds: float
    valid: float
    test: float


def lines(study: Study) -> dict[str, tuple[str, ...]]:
    """The lines of the picture; where it has dots, each entry is a line, and so are plain ones with turns averaged."""
    plain = [entry.label for entry in study.entries if entry.is_plain]
    single = [*study.labels, *(f"{label}{TURNED}" for label in plain)]
    return study.series or {shown(side): (side,) for side in single}


def offers(study: Study, records: Records, budget: float) -> list[Offer]:
    """Of each line that has a point within the budget, the best by validation first; all figures are means."""
    found = [
        min(fitting, key=lambda offer: offer.valid)
        for line, sides in lines(study).items()
        if (fitting := [o for side in sides if (o := _offer(study, records, line, side)) and o.seconds <= budget])
    ]
    return sorted(found, key=lambda offer: offer.valid)


def _offer(study: Study, records: Records, line: str, side: str) -> Offer | None:
    valid, test = (values(study, records, side, part) for part in ("valid", "test"))
    if not valid:
        return None
    means = (mean_sd(list(numbers.values()))[0] for numbers in (valid, test))
    return Offer(line, side, len(valid), position(study, records, side), *means)


def verdict(best: dict[int, str]) -> str:
    """`best` is the preferred line of each budget.

    >>> verdict({250: "pool-mean", 500: "pool-mean"})
    'Validation prefers one network at every budget: pool-mean.'
    >>> verdict({250: "baseline", 500: "pool-mean"})
    'Validation prefers other networks for other budgets: baseline and pool-mean.'
    """
    preferred = list(dict.fromkeys(best.values()))
    if len(preferred) == 1:
        return f"Validation prefers one network at every budget: {preferred[0]}."
    return f"Validation prefers other networks for other budgets: {listed(preferred)}."


def ranking(study: Study, records: Records) -> tuple[str, list[tuple[str, ...]]]:
    """The verdict, and the three best lines of each budget as rows of a table."""
    name, _, digits = UNITS[study.measure]
    rows: list[tuple[str, ...]] = [
        ("CPU seconds at most", "rank", "network", "runs", "CPU s", f"validation {name}", f"test {name}")
    ]
    best: dict[int, str] = {}
    plain = False
    for budget in study.budgets:
        for rank, offer in enumerate(offers(study, records, budget)[:3], 1):
            best.setdefault(budget, offer.line)
            plain = plain or study.labels[split(offer.side)[0]].is_plain
            figures = (f"{offer.seconds:.0f}", f"{offer.valid:.{digits}f}", f"{offer.test:.{digits}f}")
            rows.append((f"{budget:,}", str(rank), shown(offer.side), str(offer.runs), *figures))
    if not best:
        return "No run of these has been made.", rows
    return verdict(best) + ("" if plain else " No plain network is among the best three of any."), rows


def unevenness(study: Study, records: Records) -> float:
    """The dearest epoch against the cheapest of the same network, in the worst case: what the machine adds."""
    ratios = [1.0]
    for sides in lines(study).values():
        entries = [study.labels[split(side)[0]] for side in sides]
        epochs = [run["cpu_seconds"] / e.config(0).epochs for e in entries for run in records.of(e).values()]
        ratios += [max(epochs) / min(epochs)] if epochs else []
    return max(ratios)
