"""The sentences of a study: the summary on top of its page, and one finding for the list of studies.

All of them follow from the records. "Beats" and "loses to" are said where the 95 % interval leaves out zero.
"""

from collections.abc import Iterable

from quarterturn_lab.studies.decisions import Decision, decisions, error, is_plain, ranked, scores
from quarterturn_lab.studies.definition import Question, Study, Takeaway
from quarterturn_lab.studies.findings import (
    ENOUGH,
    Gap,
    Verdict,
    cpu_ratio,
    figure,
    gap,
    other_measure,
    strongest_plain,
    values,
)
from quarterturn_lab.studies.measures import MEASURES
from quarterturn_lab.studies.names import line_name, name
from quarterturn_lab.studies.records import Records

VERBS = {"better": "beats", "worse": "loses to", "open": "shows no clear difference from"}
KINDS = {
    "better": "The best equivariant network beats the best ordinary one {}.",
    "worse": "The best ordinary network beats the best equivariant one {}.",
    "open": "There is no clear difference between the best equivariant and the best ordinary network {}.",
    "one seed": "The best network of each kind was not run often enough to compare them {}.",
}
BY_OTHER = {
    "better": "By {}, the equivariant one is better {}.",
    "worse": "By {}, the ordinary one is better {}.",
    "open": "By {}, there is no clear difference {}.",
    "one seed": "",
}
SHORT = {
    "better": "equivariant networks win {}",
    "worse": "ordinary networks win {}",
    "open": "no clear winner {}",
    "one seed": "too few runs to compare {}",
}
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
LONGEST = 25  # words of a sentence
SAME_COST = 1.1  # times the CPU seconds, or less: about the same


def summary(study: Study, records: Records) -> str:
    """What wins, a line for each network that is compared with others, and how sure that is."""
    made = decisions(study, records)
    sentences = [] if study.cases else [*_outcomes(study, records, made), *_about_budgets(study, records, made)]
    lines = [f"- {' '.join(told)}" for each in study.takeaways if (told := _told(study, records, each))]
    parts = [" ".join(sentences), "\n".join(lines), " ".join(_certainty(study, records, made))]
    return "\n\n".join(part for part in parts if part)


def finding(study: Study, records: Records) -> str:
    """The study in one sentence."""
    made = decisions(study, records)
    pairs = _pairs(study, records, made)
    if made and study.judged == "validation":
        best = made[-1].chosen
        return f"Lowest {study.judged} {_leading(study)}: {scores(study, records, best)}, by *{name(study, best)}*."
    if not pairs:
        return "Nothing to compare yet."
    grouped = _grouped(study, records, made)
    clauses = [SHORT[found].format(_where(study, cases, made)) for found, cases in grouped.items()]
    if study.along == "train_images":
        clauses[-1] += f" for {_times(study, records, pairs)} the training time"
    clauses[-1] += f" ({_errors(study, records, pairs[-1])})"
    alone = [decision for decision in made if study.cases and decision not in pairs]
    clauses += [f"{decision.case} reaches {scores(study, records, decision.chosen)}" for decision in alone]
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


# --- equivariant against ordinary -------------------------------------------------------------------------------------


def _outcomes(study: Study, records: Records, made: list[Decision]) -> list[str]:
    """The best of both kinds, over all rows of the decision table."""
    main = _grouped(study, records, made)
    sentences = [KINDS[found].format(_where(study, cases, made)) for found, cases in main.items()]
    judged = other_measure(study)
    by_other = _grouped(judged, records, made) if judged.measure != study.measure else {}
    for found, cases in by_other.items():
        differ = [case for case in cases if case not in main.get(found, [])]
        if differ and BY_OTHER[found]:
            sentences.append(BY_OTHER[found].format(MEASURES[judged.measure].name, _where(study, differ, made)))
    pairs = _pairs(study, records, made)
    if pairs and study.along == "train_images":
        sentences.append(f"The best equivariant network takes {_times(study, records, pairs)} as long to train.")
    return sentences


def _grouped(study: Study, records: Records, made: list[Decision]) -> dict[Verdict, list[str]]:
    """Verdict on the equivariant network -> cases."""
    found: dict[Verdict, list[str]] = {}
    for decision in _pairs(study, records, made):
        if decision.question:
            found.setdefault(gap(study, records, decision.question).verdict, []).append(decision.case)
    return found


def _pairs(study: Study, records: Records, made: list[Decision]) -> list[Decision]:
    """Those whose two kinds have seeds in common."""
    return [each for each in made if each.question and gap(study, records, each.question).differences]


def _where(study: Study, cases: list[str], made: list[Decision]) -> str:
    """The rows of the decision table that have been named: "at 250 and 500 CPU seconds"."""
    if study.cases:
        return f"with {listed(cases)}"
    every = len(cases) > 3 and cases == [decision.case for decision in made]
    text = f"{cases[0]} to {cases[-1]}" if every else listed(cases)
    return f"with {text} training images" if study.along == "train_images" else f"at {text} CPU seconds"


def _errors(study: Study, records: Records, decision: Decision) -> str:
    """The errors of both kinds in a row of the decision table."""
    sides = {"equivariant": decision.equivariant, "ordinary": decision.ordinary}
    text = ", ".join(f"{kind} {error(study, records, side)}" for kind, side in sides.items() if side)
    return f"{study.judged} {_leading(study)}{'' if study.cases else ' at ' + decision.case}: {text}"


def _leading(study: Study) -> str:
    """The measure that short sentences give: the error where the study's own is the cross-entropy."""
    return "error" if study.measure == "cross_entropy" else MEASURES[study.measure].name


def _times(study: Study, records: Records, pairs: list[Decision]) -> str:
    """How much longer the equivariant networks take to train: "3.3 to 3.6 times"."""
    ratios = [
        ratio
        for decision in pairs
        if decision.question and (ratio := cpu_ratio(study, records, decision.question.one, decision.question.other))
    ]
    low, high = (f"{end:.1f}" for end in (min(ratios), max(ratios)))
    return f"{low} times" if low == high else f"{low} to {high} times"


def _about_budgets(study: Study, records: Records, made: list[Decision]) -> list[str]:
    sentences = []
    if study.budgets and len({line_name(study, decision.chosen) for decision in made}) > 1:
        sentences.append("The best network depends on the budget.")
    found = ranked(study, records)
    if found and any(entry.is_plain for entry in study.entries) and not any(is_plain(study, side) for side in found):
        sentences.append("No ordinary network is among the best three at any budget.")
    return sentences


# --- one network against others ---------------------------------------------------------------------------------------


def _told(study: Study, records: Records, takeaway: Takeaway) -> list[str]:
    """A network against others and the ordinary one that validation prefers."""
    who = name(study, takeaway.who)
    who = f"*{who[0].upper()}{who[1:]}*"
    if not values(study, records, takeaway.who):
        return [f"{who} has not been run yet."]
    subject = f"{who} ({figure(study, records, takeaway.who)})"
    strongest = strongest_plain(study, records, takeaway.who)
    sentences: list[str] = []
    for side in dict.fromkeys((*takeaway.others, *([strongest] if strongest else ()))):
        found = gap(study, records, Question(takeaway.who, side, ""))
        if found.verdict == "not run":
            continue
        if found.verdict == "one seed":
            sentences.append(f"{who} reaches {_mean(study, records, takeaway.who)}.")
            sentences.append(f"For *{name(study, side)}* it is {_mean(study, records, side)}.")
        else:
            text = f"{VERBS[found.verdict]} *{name(study, side)}* ({figure(study, records, side)})."
            if len(f"{subject} {text}".split()) > LONGEST:
                sentences.append(f"{who} reaches {figure(study, records, takeaway.who)}.")
                subject = "It"
            sentences.append(f"{subject} {text}")
            subject = "It"
        ratio = cpu_ratio(study, records, takeaway.who, side)
        sentences += [_cost(ratio, "The first" if found.verdict == "one seed" else "It")] if ratio else []
    return sentences


def _mean(study: Study, records: Records, side: str) -> str:
    """A figure with the number of its runs."""
    runs = len(values(study, records, side))
    about = "one run" if runs == 1 else f"mean of {NUMBERS.get(runs, runs)} runs"
    return f"{figure(study, records, side)} ({about})"


def _cost(ratio: float, who: str) -> str:
    if 1 / SAME_COST <= ratio <= SAME_COST:
        return "Both cost about the same to train."
    return f"{who} costs {ratio:.1f} times as much to train."


def _certainty(study: Study, records: Records, made: list[Decision]) -> list[str]:
    """How networks were chosen, and over how many runs they are compared."""
    measure = MEASURES[study.measure].name
    if study.judged == "validation":
        sentences = ["No test image is used."]
    elif study.cases:
        sentences = ["All networks were named before they were tested."]
    else:
        sentences = [f"Networks are chosen by validation {measure}; test images play no part in the choice."]
        if len({entry.seeds < ENOUGH for entry in study.entries}) > 1:
            sentences.append("Trials with one seed count only where no network of the kind has three.")
    found = [gap(study, records, question) for question in compared(study, records, made)]
    pairs = sorted({len(each.differences) for each in found if each.interval})
    if pairs:
        runs = " to ".join(str(NUMBERS.get(count, count)) for count in dict.fromkeys((pairs[0], pairs[-1])))
        sentences.append(f"Figures in brackets are {study.judged} {measure}, compared over {runs} seeds.")
    elif found:
        sentences.append("Each network has one run, so small differences may be chance.")
    if any(each.verdict == "open" for each in found):
        sentences.append('"No clear difference" means that the 95 % interval includes zero.')
    return sentences


def compared(study: Study, records: Records, made: list[Decision]) -> list[Question]:
    """The comparisons that the summary speaks of."""
    found = [decision.question for decision in made if decision.question]
    for takeaway in study.takeaways:
        strongest = strongest_plain(study, records, takeaway.who)
        if strongest:
            why = "validation chose the second: the best ordinary network"
            found.append(Question(takeaway.who, strongest, why))
        found += [Question(takeaway.who, side, "named in the summary") for side in takeaway.others]
    return found


def asked(study: Study, records: Records) -> list[Gap]:
    """All comparisons of a page: those of the study, then those of the summary that are not among them."""
    questions = list(study.questions)
    for question in compared(study, records, decisions(study, records)):
        if not any((q.one, q.other) == (question.one, question.other) for q in questions):
            questions.append(question)
    return [gap(study, records, question) for question in questions]


def listed(parts: Iterable[str]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    found = list(parts)
    return f"{', '.join(found[:-1])} and {found[-1]}" if len(found) > 1 else found[0]
