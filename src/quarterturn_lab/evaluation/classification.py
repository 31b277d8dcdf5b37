"""Scores of classifiers: cross-entropy, accuracy, confusion, recall; and RMSE."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CLIP = 1e-15  # Kaggle's
# Two classes are told apart if this share of the pairs of their images is in the right order; 0.5 is chance.
APART = 0.65
LEAST = 1e-3  # probabilities are raised to this, so that a single image counts no more than seven


def scores(probabilities: Array, labels: NDArray[np.int64]) -> dict[str, float]:
    """Cross-entropy, Kaggle's clipped cross-entropy, and accuracy.

    Kaggle divides each row by its sum and clips to [1e-15, 1 - 1e-15]. The plain form is clipped only to avoid log 0.
    """
    true = probabilities[np.arange(len(labels)), labels]
    shares = (true / probabilities.sum(1)).clip(CLIP, 1 - CLIP)
    return {
        "cross_entropy": float(-np.log(true.clip(np.finfo(np.float64).tiny)).mean()),
        "kaggle": float(-np.log(shares).mean()),
        "accuracy": float((probabilities.argmax(1) == labels).mean()),
    }


def rmse(predicted: Array, labels: NDArray[Any]) -> float:
    """The root mean square error.

    >>> rmse(np.array([[0.5, 1.0]]), np.array([[0.5, 0.0]], dtype=np.float32)) == 0.5**0.5
    True
    """
    return float(np.sqrt(np.mean((predicted - labels.astype(np.float64)) ** 2)))


def r2_by_column(predicted: Array, labels: NDArray[np.float64]) -> Array:
    """For each column, the share of the variance that is explained: 1 is perfect, 0 is as good as the mean.

    >>> r2_by_column(np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [3.0]])).tolist()
    [1.0]
    """
    left, all_of_it = ((predicted - labels) ** 2).sum(0), ((labels - labels.mean(0)) ** 2).sum(0)
    return np.where(all_of_it > 0, 1 - left / np.where(all_of_it > 0, all_of_it, 1), np.nan)


def f1_by_tag(predicted: NDArray[np.bool_], labels: NDArray[np.bool_]) -> Array:
    """F1 of each tag; NaN for a tag that no image has, and none is said to have.

    >>> f1_by_tag(np.array([[True, False], [True, False]]), np.array([[True, False], [False, False]])).tolist()
    [0.6666666666666666, nan]
    """
    total = predicted.sum(0) + labels.sum(0)
    return np.where(total > 0, 2 * (predicted & labels).sum(0) / np.maximum(total, 1), np.nan)


def confusion(probabilities: Array, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts `[true class, predicted class]`."""
    classes = probabilities.shape[1]
    pairs = labels * classes + probabilities.argmax(1)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def recalls(counts: NDArray[np.int64]) -> Array:
    """The recall of each class; NaN for a class without examples."""
    totals = counts.sum(1)
    return np.where(totals > 0, counts.diagonal() / np.maximum(totals, 1), np.nan)


def taken_for(probabilities: NDArray[Any], labels: NDArray[Any], known: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Each known class, and the other known one that its images are taken for most.

    >>> p = np.array([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]])
    >>> taken_for(p, np.array([0, 1, 2]), np.array([True, True, True]))
    [(0, 2), (1, 0), (2, 0)]
    """
    pairs = []
    for a in np.flatnonzero(known) if known.sum() > 1 else ():
        others = np.where(known, probabilities[labels == a].mean(axis=0), -1.0)
        others[a] = -1.0
        pairs.append((int(a), int(others.argmax())))
    return pairs


def confused_pairs(
    probabilities: NDArray[Any], labels: NDArray[Any], known: NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Of the known classes, those that are hardly told apart from the one that they are taken for most.

    >>> p = np.array([[0.5, 0.5, 0], [0.6, 0.4, 0], [0.5, 0.5, 0], [0.6, 0.4, 0], [0.1, 0, 0.9]])
    >>> confused_pairs(p, np.array([0, 0, 1, 1, 2]), np.array([True, True, True]))
    [(0, 1), (1, 0)]
    """
    pairs = []
    logs = np.log(probabilities.clip(LEAST))
    for a, b in taken_for(probabilities, labels, known):
        odds = logs[:, a] - logs[:, b]
        ones, twos = odds[labels == a][:, None], odds[labels == b]
        if (ones > twos).mean() + (ones == twos).mean() / 2 < APART:
            pairs.append((a, b))
    return pairs
