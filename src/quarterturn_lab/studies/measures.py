"""The measures that studies compare by. Lower is better for all of them: of a share, the error is what is missing."""

from dataclasses import dataclass
from typing import Any, Literal

Measured = Literal["cross_entropy", "error", "rmse", "dice", "precision", "auc", "break_even", "overlap", "turned"]


@dataclass(frozen=True)
class Measure:
    """What a score is called, and where a record has it."""

    name: str
    short: str  # in heads of columns
    key: str  # of the scores in a record
    error: bool = False  # what the score lacks of 1, in percent
    digits: int = 3

    @property
    def unit(self) -> str:
        """The unit of a difference."""
        return " points" if self.error else ""

    def of(self, scores: dict[str, Any]) -> float:
        """
        >>> MEASURES["dice"].of({"dice": 0.75})
        25.0
        """
        score = float(scores[self.key])
        return 100 * (1 - score) if self.error else score


MEASURES: dict[str, Measure] = {
    "cross_entropy": Measure("cross-entropy", "c.-e.", "cross_entropy"),
    "error": Measure("error", "error %", "accuracy", True, 2),
    "rmse": Measure("RMSE", "RMSE", "rmse", digits=5),
    "dice": Measure("Dice error", "Dice error %", "dice", True, 2),
    "precision": Measure("precision error", "precision error %", "average_precision", True, 2),
    "auc": Measure("AUC error", "AUC error %", "auc", True, 2),
    "overlap": Measure("Dice error", "Dice error %", "dice", True, 2),
    "turned": Measure("Dice error, turned", "Dice error %, turned", "turned_dice", True, 2),
    "break_even": Measure("break-even error", "break-even error %", "break_even", True, 2),
}
# The measures of each kind of label: classes, shares of votes, instances, pixels.
TOGETHER: tuple[tuple[Measured, ...], ...] = (
    ("cross_entropy", "error"),
    ("rmse",),
    ("dice", "precision"),
    ("auc", "break_even"),
    ("overlap", "turned"),
)


def together(measure: Measured) -> tuple[Measured, ...]:
    """The measures of the same scores, in the order of tables."""
    return next(found for found in TOGETHER if measure in found)


def other(measure: Measured) -> Measured:
    """The other measure of the same scores, or the same one where there is one only.

    >>> other("error"), other("rmse")
    ('cross_entropy', 'rmse')
    """
    return next((each for each in together(measure) if each != measure), measure)
