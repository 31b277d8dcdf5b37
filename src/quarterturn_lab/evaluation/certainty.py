"""How sure scores and networks are: intervals of scores over test images, and calibration of probabilities."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, bootstrap  # type: ignore[import-untyped]

from quarterturn_lab.evaluation.segmentation import mean_dice

Array = NDArray[np.float64]
Interval = tuple[float, float]
BINS = 10
RESAMPLES = 1000


def share_interval(count: int, total: int) -> Interval:
    """Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in share_interval(10, 100)]
    [0.055, 0.174]
    """
    if not total:
        return 0.0, 1.0
    found = binomtest(count, total).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def bootstrap_interval(score: Callable[[NDArray[np.int64]], float], images: int) -> Interval | None:
    """The 95 % interval of a score over random draws of the test images; None for fewer than two.

    >>> low, high = bootstrap_interval(lambda drawn: float(drawn.mean()), 101)
    >>> bool(40 < low < 50 < high < 60)
    True
    """
    if images < 2:
        return None
    drawn = bootstrap(
        (np.arange(images),), score, vectorized=False, n_resamples=RESAMPLES, method="percentile",
        rng=np.random.default_rng(0),
    )  # fmt: skip
    low, high = (float(end) for end in drawn.confidence_interval)
    return (low, high) if np.isfinite([low, high]).all() else None


@dataclass(frozen=True)
class Calibration:
    """How often answers given with a probability are right: by bins of the probability, without empty ones."""

    claimed: Array  # mean probability
    right: Array  # share of right answers
    counts: NDArray[np.int64]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap between the two, weighted by the images."""
        return float((np.abs(self.claimed - self.right) * self.counts).sum() / self.counts.sum())


def calibration(probabilities: Array, right: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """The calibration of answers: the probability that each was given, and whether it was right.

    >>> calibration(np.array([0.8, 0.8, 0.8, 0.8, 0.8]), np.array([True, True, True, True, False])).error < 1e-12
    True
    """
    place = (probabilities * bins).astype(np.int64).clip(0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    used = counts > 0
    means = [np.bincount(place, values, minlength=bins)[used] / counts[used] for values in (probabilities, right)]
    return Calibration(means[0], means[1], counts[used])


def average_precision(probabilities: Array, truth: NDArray[Any]) -> float:
    """The mean precision at the place of each true example, from the most probable down; NaN if none is true.

    >>> average_precision(np.array([0.9, 0.8, 0.1]), np.array([True, False, True])) == (1 / 1 + 2 / 3) / 2
    True
    """
    ranked = truth[np.argsort(-probabilities, kind="stable")] > 0
    if not ranked.any():
        return float("nan")
    precision = ranked.cumsum() / np.arange(1, len(ranked) + 1)
    return float(precision[ranked].mean())


def macro_f1(counts: NDArray[np.int64]) -> float:
    """F1 averaged over the classes that are there or predicted, from a confusion matrix `[true, predicted]`.

    >>> macro_f1(np.array([[4, 0, 0], [2, 3, 0], [0, 0, 0]])) == (8 / 10 + 6 / 8) / 2
    True
    """
    return mean_dice(counts)  # F1 of a class is the Dice score of its examples
