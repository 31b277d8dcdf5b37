"""Masks of images of any size from a fully convolutional network, block by block if it has no strides.

Nothing here needs torch: a network is a function from arrays to arrays.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.runs.model_card import probabilities

Run = Callable[[NDArray[np.float32]], NDArray[Any]]  # (N, C, H, W) -> (N, classes, H', W')
BLOCK = 256  # side of a block of the output; keeps the feature maps small


def object_map(
    run: Run, image: NDArray[np.float32], margin: int = 0, shrinks: bool = False, task: str = "pixels"
) -> NDArray[np.float64]:
    """`(C, H, W)` -> `(H - 2 margin, W - 2 margin)`: the probability that each pixel belongs to an object.

    For regions `(classes, H - 2 margin, W - 2 margin)`: the probability of each class.

    Without strides, each output depends only on its neighbourhood, so overlapping blocks give the same result as the
    whole image. `shrinks`: the network has strides, and the image is not split.
    """
    height, width = (length - 2 * margin for length in image.shape[1:])
    step = max(height, width) if shrinks else BLOCK
    rows = []
    for top, bottom in _parts(height, step):
        row = []
        for left, right in _parts(width, step):
            block = image[:, top : bottom + 2 * margin, left : right + 2 * margin]
            row.append(probabilities(task, run(np.ascontiguousarray(block[None])))[0])
        rows.append(np.concatenate(row, axis=-1))
    return np.concatenate(rows, axis=-2)


def _parts(length: int, step: int) -> list[tuple[int, int]]:
    count = -(-length // step)
    ends = [round(length * i / count) for i in range(count + 1)]
    return list(pairwise(ends))


def with_margin(image: NDArray[np.float32], margin: int) -> NDArray[np.float32]:
    """The image extended by reflection, so that every pixel has an output."""
    if not margin:
        return image
    return np.pad(image, ((0, 0), (margin, margin), (margin, margin)), mode="symmetric")
