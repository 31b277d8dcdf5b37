"""Scores of masks: area under the ROC curve, relaxed precision and recall, Dice, average precision.

Most take lists of maps, because images may differ in size. Nothing here needs torch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage  # type: ignore[import-untyped]

from quarterturn_lab.data.dataset import VOID

Map = NDArray[Any]
SLACK = 3  # pixels, as in Mnih 2013
STEPS = 256  # thresholds of the break-even point
OVERLAPS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))  # of the average precision


def auc(probabilities: NDArray[Any], truth: NDArray[np.bool_]) -> float:
    """The area under the ROC curve; ties count half. NaN if there are only objects or only background.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    positive, negative = np.sort(probabilities[truth], axis=None), np.sort(probabilities[~truth], axis=None)
    if not len(positive) or not len(negative):
        return float("nan")
    below = np.searchsorted(negative, positive, "left").sum(dtype=np.int64)
    not_above = np.searchsorted(negative, positive, "right").sum(dtype=np.int64)
    return float(below + not_above) / 2 / (len(positive) * len(negative))


# --- relaxed precision and recall -------------------------------------------------------------------------------------


def window_maximum(values: Map, slack: int = SLACK) -> Map:
    """The maximum in the square window of `slack` pixels to each side, clipped at the edges of the map."""
    return np.asarray(ndimage.maximum_filter(values, 2 * slack + 1, mode="nearest"))


def relaxed_curve(
    probabilities: Sequence[Map], truths: Sequence[Map], slack: int = SLACK, steps: int = STEPS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Precision and recall for the thresholds 0, 1/steps, ... 1, summed over the maps (Mnih 2013).

    Precision: the share of predicted pixels with a true pixel within the slack. Recall: the share of true pixels with
    a predicted pixel within it. If nothing is predicted, precision is 1.
    """
    predicted, right, found = (np.zeros(steps + 1, dtype=np.int64) for _ in range(3))
    true = 0
    for p, t in zip(probabilities, truths, strict=True):
        level = np.floor(p * steps).astype(np.int64).clip(0, steps)  # the highest threshold that it reaches
        near = window_maximum(t > 0, slack)
        predicted += np.bincount(level.ravel(), minlength=steps + 1)
        right += np.bincount(level[near], minlength=steps + 1)
        found += np.bincount(window_maximum(level, slack)[t > 0], minlength=steps + 1)
        true += int((t > 0).sum())
    predicted, right, found = (counts[::-1].cumsum()[::-1] for counts in (predicted, right, found))
    precision = np.where(predicted > 0, right / np.maximum(predicted, 1), 1.0)
    return precision, found / true if true else np.full(steps + 1, np.nan)


def break_even(probabilities: Sequence[Map], truths: Sequence[Map], slack: int = SLACK, steps: int = STEPS) -> float:
    """The value at which relaxed precision and recall are equal, interpolated linearly; NaN if there is none."""
    precision, recall = relaxed_curve(probabilities, truths, slack, steps)
    gap = precision - recall
    crossings = np.flatnonzero((gap[:-1] <= 0) & (gap[1:] >= 0))
    if not len(crossings):
        return float("nan")
    i = int(crossings[0])
    part = 0.0 if gap[i + 1] == gap[i] else -gap[i] / (gap[i + 1] - gap[i])
    return float(precision[i] + part * (precision[i + 1] - precision[i]))


# --- overlap ----------------------------------------------------------------------------------------------------------


def dice(predicted: Map, truth: Map, empty: float = 1.0) -> float:
    """The Dice score of two masks; `empty` if both are.

    >>> dice(np.array([[1, 1, 0]]), np.array([[0, 1, 0]])) == 2 / 3
    True
    """
    a, b = predicted > 0, truth > 0
    total = int(a.sum()) + int(b.sum())
    return 2 * int((a & b).sum()) / total if total else empty


def region_counts(probabilities: Map, truth: Map) -> NDArray[np.int64]:
    """Numbers of pixels `[true class, predicted class]` from maps `(classes, H, W)`; void pixels do not count."""
    classes = len(probabilities)
    counted = truth != VOID
    pairs = truth[counted].astype(np.int64) * classes + probabilities.argmax(axis=0)[counted]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def mean_dice(counts: NDArray[np.int64]) -> float:
    """Dice averaged over the classes that are there or predicted, from `region_counts`.

    >>> mean_dice(np.array([[4, 0, 0], [2, 3, 0], [0, 0, 0]])) == (8 / 10 + 6 / 8) / 2
    True
    """
    total = counts.sum(0) + counts.sum(1)
    return float(np.mean(2 * counts.diagonal()[total > 0] / total[total > 0])) if total.any() else float("nan")


def components(mask: Map) -> NDArray[np.int64]:
    """Connected components of a mask, numbered 1, 2, ...; pixels that share an edge are connected.

    >>> components(np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]])).tolist()
    [[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 2, 0]]
    """
    numbers, _ = ndimage.label(mask > 0)
    return np.asarray(numbers, dtype=np.int64)


def average_precision(predicted: Map, truth: Map) -> float:
    """TP / (TP + FP + FN) over the instances of one image, averaged over IoU thresholds 0.5, 0.55, ... 0.95.

    Two instances match if their intersection over union is above the threshold; above 0.5 a match is unique. 1 if
    neither map has instances.
    """
    first, count = _numbered(predicted)
    second, true_count = _numbered(truth)
    if not count or not true_count:
        return 1.0 if count == true_count else 0.0
    pairs, shared = np.unique(first * (true_count + 1) + second, return_counts=True)
    a, b = np.divmod(pairs, true_count + 1)
    sizes, true_sizes = np.bincount(first, minlength=count + 1), np.bincount(second, minlength=true_count + 1)
    inside = (a > 0) & (b > 0)
    overlap = shared[inside] / (sizes[a[inside]] + true_sizes[b[inside]] - shared[inside])
    hits = [(overlap > limit).sum() for limit in OVERLAPS]
    return float(np.mean([hit / (count + true_count - hit) for hit in hits]))


def _numbered(labels: Map) -> tuple[NDArray[np.int64], int]:
    """Instances renumbered 1, 2, ... as a flat array, with 0 for the background, and their number."""
    values, numbers = np.unique(labels.ravel(), return_inverse=True)
    if len(values) and values[0] != 0:
        numbers = numbers + 1
    return numbers, len(values) - int(0 in values)
