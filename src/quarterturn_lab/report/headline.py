"""The result of a run in one sentence."""

from pathlib import Path
from typing import Any

from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.runs.run_directory import summary

NUMBERS = {2: "both", 4: "all four", 8: "all eight"}


def headline(run: Path, ordinary: Path | None = None, same: bool = False) -> str:
    """The test score of a finished run, with that of the ordinary network beside it, if there is one.

    `same` says that the check has found the same answer for every orientation.
    """
    found = summary(run)
    group = found["group"]
    parts = [f"{group or 'Ordinary'} network: {score(found)} on {found['test_images']:,} test images"]
    if found["task"] == "classes":
        low, high = interval(found["test"]["accuracy"], found["test_images"])
        parts[0] += f", 95 % interval {100 * low:.1f}-{100 * high:.1f}"
    if same and group:
        parts.append(f"the same answer for {orientations(group)}")
    if ordinary:
        other = summary(ordinary)
        turns = f" ({score(other, 'test_4_turns')} with four turns averaged)" if "test_4_turns" in other else ""
        parts.append(f"an ordinary network of the same training time: {score(other)}{turns}")
    return "; ".join(parts)


def score(found: dict[str, Any], part: str = "test") -> str:
    """The main score of a summary in words: errors in per cent, or the task's own score."""
    scores, task = found[part], TASKS[found["task"]]
    if found["task"] == "classes":
        return f"{100 * (1 - scores['accuracy']):.1f} % errors"
    shown = [f"{task.name} {scores[task.score]:.3f}"]
    if task.second:
        shown.append(
            f"{task.second_name} {task.second_factor * scores[task.second]:.{1 if '%' in task.second_name else 3}f}"
        )
    return ", ".join(shown)


def interval(accuracy: float, images: int) -> tuple[float, float]:
    """The 95 % interval of the share of errors (Wilson's).

    >>> [round(end, 3) for end in interval(0.9, 100)]
    [0.055, 0.174]
    """
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    found = binomtest(round((1 - accuracy) * images), images).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def orientations(group_name: str) -> str:
    """All orientations of a group, in words.

    >>> orientations("D4")
    'all eight orientations'
    """
    from quarterturn.groups import named

    return f"{NUMBERS.get(named(group_name).order, 'all')} orientations"
