"""Small sets made by rule, for examples: cells with their masks, and filaments with their directions."""

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]  # (N, 1, side, side), about 0 to 1


def cells(count: int, side: int = 48, seed: int = 0, noise: float = 0.08) -> tuple[Images, NDArray[np.int64]]:
    """Images of bright cells with a dark nucleus among threads of the same brightness; 1 where a cell is.

    >>> images, masks = cells(2, side=32)
    >>> images.shape, masks.shape, bool(0 < masks.mean() < 0.5)
    ((2, 1, 32, 32), (2, 32, 32), True)
    """
    images, masks = np.empty((count, 1, side, side), np.float32), np.empty((count, side, side), np.int64)
    x, y = _places(side)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        image, mask = np.zeros((side, side)), np.zeros((side, side), bool)
        for _ in range(rng.integers(2, 5)):
            u, v = _frame(x, y, rng.uniform(-0.8, 0.8, 2), rng.uniform(0, np.pi))
            long, wide = rng.uniform(0.2, 0.35), rng.uniform(0.12, 0.2)
            distance = np.hypot(u / long, v / wide)
            body = distance < 1 + 0.12 * np.sin(3 * np.arctan2(v, u) + rng.uniform(0, 6))
            image = np.where(body, rng.uniform(0.45, 0.8) * np.where(distance < 0.4, 0.4, 1), image)
            mask |= body
        for _ in range(rng.integers(3, 7)):  # threads as bright as cells
            u, v = _frame(x, y, rng.uniform(-1, 1, 2), rng.uniform(0, np.pi))
            thread = (np.abs(v) < 0.03) & (np.abs(u) < rng.uniform(0.1, 0.3)) & ~mask
            image = np.where(thread, rng.uniform(0.45, 0.8), image)
        images[number, 0], masks[number] = image + rng.normal(0, noise, image.shape), mask
    return images, masks


def filaments(count: int, side: int = 33, seed: int = 0) -> tuple[Images, NDArray[np.float32]]:
    """Images of a filament that is thick at its head, and the direction of its head `(N, 2)`: down and right.

    >>> images, directions = filaments(3)
    >>> images.shape, bool(np.allclose(np.hypot(*directions.T), 1))
    ((3, 1, 33, 33), True)
    """
    images, directions = np.empty((count, 1, side, side), np.float32), np.empty((count, 2), np.float32)
    x, y = _places(side)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        angle, length = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 0.8)
        u, v = _frame(x, y, rng.uniform(-0.15, 0.15, 2), angle)
        along = (u / length).clip(-1, 1)
        width = 0.05 + 0.06 * (1 + along) / 2
        distance = np.hypot(u - along * length, v - rng.uniform(-0.1, 0.1) * (1 - along**2))
        images[number, 0] = 0.8 * ((width - distance) * side / 3 + 0.5).clip(0, 1) + rng.normal(0, 0.08, x.shape)
        directions[number] = np.sin(angle), np.cos(angle)
    return images, directions


def _places(side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The x and y of each pixel, from -1 to 1; y points down, as rows do."""
    ticks = (np.arange(side) + 0.5) / side * 2 - 1
    x, y = np.meshgrid(ticks, ticks)
    return x, y


def _frame(
    x: NDArray[np.float64], y: NDArray[np.float64], middle: NDArray[np.float64], angle: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The coordinates along and across a direction, from a place."""
    x, y = x - middle[0], y - middle[1]
    return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
