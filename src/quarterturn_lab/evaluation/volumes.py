"""Scores of label volumes: Dice of each class, and how far surfaces are apart in mm. Nothing here needs torch.

A class that is neither in the truth nor predicted says nothing about a volume. One that is only in one of the two has a
Dice score of 0 and no surface distance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage  # type: ignore[import-untyped]

from quarterturn_lab.data.dataset import VOID
from quarterturn_lab.evaluation.segmentation import dice

Mask = NDArray[np.bool_]
Spacing = tuple[float, ...]


def volume_scores(
    predicted: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]], spacings: Sequence[Spacing]
) -> dict[str, float]:
    """Means over volumes, then over classes but the background, from probabilities `(classes, *sizes)`."""
    classes = len(predicted[0])
    overlap, mean, far = (np.full((len(predicted), classes - 1), np.nan) for _ in range(3))
    right = counted = 0
    for i, (p, truth, spacing) in enumerate(zip(predicted, labels, spacings, strict=True)):
        known = truth != VOID
        found = np.where(known, p.argmax(axis=0), 0)
        right, counted = right + int((found == truth)[known].sum()), counted + int(known.sum())
        for c in range(1, classes):
            a, b = found == c, truth == c
            overlap[i, c - 1] = dice(a, b, empty=np.nan)
            mean[i, c - 1], far[i, c - 1] = surface_distances(a, b, spacing)
    each = {f"dice_{c}": _mean(overlap[:, c - 1]) for c in range(1, classes)} if classes > 2 else {}
    return {
        "dice": _by_class(overlap),
        "accuracy": right / max(1, counted),
        "surface_mm": _by_class(mean),
        "hausdorff95_mm": _by_class(far),
        **each,
    }


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _by_class(values: NDArray[np.float64]) -> float:
    return _mean(np.array([_mean(column) for column in values.T]))


def surface_distances(a: Mask, b: Mask, spacing: Spacing) -> tuple[float, float]:
    """The mean distance between two surfaces, and the 95th percentile of all distances, both ways, in mm.

    A surface is made of the voxels of a mask with a neighbour outside it. NaN if a mask is empty.

    >>> a, b = np.zeros((2, 5, 5, 5), dtype=bool)
    >>> a[1, 2, 2] = b[3, 2, 2] = True
    >>> surface_distances(a, b, (1.5, 1, 1))
    (3.0, 3.0)
    """
    if not a.any() or not b.any():
        return float("nan"), float("nan")
    box = ndimage.find_objects((a | b).astype(np.int8))[0]
    a, b = (np.pad(mask[box], 1) for mask in (a, b))
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (a, b)]
    away = [ndimage.distance_transform_edt(~edge, sampling=spacing) for edge in edges]
    distances = np.concatenate([away[1][edges[0]], away[0][edges[1]]])
    return float(distances.mean()), float(np.percentile(distances, 95))
