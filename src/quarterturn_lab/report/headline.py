"""The result of a run in one sentence."""

import quarterturn as qt
from quarterturn_lab.data.dataset import Dataset
from quarterturn_lab.report.judged import EXACT, Judged, Turned
from quarterturn_lab.report.measures import Measure

NUMBERS = {2: "both", 4: "all four", 8: "all eight"}


def headline(runs: list[Judged], measures: list[Measure], turns: list[Turned]) -> str:
    """The test score of a run, what the check found, and the score of the ordinary network, if there is one.

    That answers are the same in every orientation is said only if the check found it so.
    """
    run, own = runs[0], measures[0]
    name = run.name[0].upper() + run.name[1:]
    what = "image" if run.config.net.axes == 2 else "volume"
    parts = [f"{name}: {own.text} on {own.images:,} test {what}{'s' * (own.images != 1)} ({own.interval_text})"]
    if run.group and turns[0].exact < EXACT and not turns[0].changed:
        same = "the same answer for" if isinstance(run.data, Dataset) else f"the mask turns with the {what} in"
        parts.append(f"{same} {orientations(run.group)}")
    if len(runs) > 1:
        parts.append(f"an ordinary network of the same training time: {measures[1].text}")
    return "; ".join(parts)


def orientations(group_name: str) -> str:
    """All orientations of a group, in words.

    >>> orientations("D4")
    'all eight orientations'
    """
    return f"{NUMBERS.get(qt.named(group_name).order, 'all')} orientations"
