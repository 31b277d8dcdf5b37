"""The paper's figures beside ours: what it printed for a row, and whether its order of two rows holds here."""

import math

from quarterturn_lab.evaluation.statistics import t_quantile
from quarterturn_lab.settings.experiments import EXPERIMENTS, PAPER_BUILDINGS, Printed
from quarterturn_lab.studies.decisions import WORDS
from quarterturn_lab.studies.definition import Entry, Question, Study
from quarterturn_lab.studies.findings import Gap, Verdict
from quarterturn_lab.studies.measures import MEASURES, together
from quarterturn_lab.studies.names import name, split

RUNS = 10  # behind each figure of the paper
BESIDE = {"roads-small": PAPER_BUILDINGS}  # roads are the sister set of the paper's buildings


def printed(study: Study, entry: Entry) -> Printed | None:
    """The paper's line for a row with its usual training, by the study's measure: of an AUC, the error in percent."""
    lines = BESIDE.get(entry.experiment, EXPERIMENTS[entry.experiment].paper)
    line, measure = lines.get(entry.row), MEASURES[together(study.measure)[0]]
    if line is None or entry.options:
        return None
    if not measure.error:
        return line
    train, test = ((100 * (1 - mean), 100 * spread) for mean, spread in (line.train, line.test))
    return Printed(line.size, train, test)


def in_the_paper(study: Study, question: Question) -> tuple[Printed, Printed] | None:
    """The paper's lines for both sides, where it has both and no turns are averaged."""
    sides = [split(side) for side in (question.one, question.other)]
    lines = [None if turned else printed(study, study.labels[label]) for label, turned in sides]
    return (lines[0], lines[1]) if lines[0] and lines[1] else None


def verdict(one: Printed, other: Printed) -> Verdict:
    """What the paper's own figures say: Student's interval for the difference of two means of ten runs.

    >>> paper = EXPERIMENTS["plankton"].paper
    >>> verdict(paper["pool-mean"], paper["baseline"]), verdict(paper["roll-dense-half"], paper["pool-mean"])
    ('better', 'open')
    """
    difference = one.test[0] - other.test[0]
    reach = t_quantile(2 * RUNS - 2) * math.hypot(one.test[1], other.test[1]) / math.sqrt(RUNS)
    return "open" if abs(difference) <= reach else "better" if difference < 0 else "worse"


def beside(study: Study, question: Question) -> str:
    """The paper's figures for a comparison: the first, the second, and what they say."""
    lines = in_the_paper(study, question)
    if lines is None:
        return ""
    one, other = (f"{line.test[0]:.{paper_digits(study)}f}" for line in lines)
    return f"{one}, {other}: {WORDS[verdict(*lines)]}"


def paper_digits(study: Study) -> int:
    """Digits of the paper's figures."""
    return max(4, MEASURES[study.measure].digits)


def claims(study: Study, gaps: list[Gap]) -> str:
    """Which orders of the paper hold here and which do not; empty where nothing can be compared."""
    agree: list[str] = []
    differ: list[str] = []
    measure = MEASURES[study.measure]
    for found in gaps:
        lines = in_the_paper(study, found.question)
        if lines is None or found.interval is None:
            continue
        pair = f"- *{name(study, found.question.one)}* against *{name(study, found.question.other)}*"
        there, here = WORDS[verdict(*lines)], WORDS[found.verdict]
        if there == here:
            agree.append(f"{pair}: {here}")
        else:
            size = f"{found.mean:+.{measure.digits}f}{measure.unit}"
            differ.append(f"{pair}: {there} in the paper, {here} here ({size})")
    parts = {
        "The same as in the paper:": agree,
        f"Not as in the paper (difference of {study.judged} {measure.name}):": differ,
    }
    return "\n\n".join(text for title, found in parts.items() if found for text in (title, "\n".join(found)))
