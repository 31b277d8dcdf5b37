"""A data set that needs no files: organism-like shapes in random orientations, drawn in seconds.

There are ten classes in five pairs. The two classes of a pair are mirror images, so no rotation maps one to the other.
Size, bend, proportions and position vary, and there is noise and debris. Flips must be off in training: a mirrored
image belongs to another class.
"""

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import cache
from quarterturn_lab.data.dataset import Dataset, Settings

Array = NDArray[np.float64]

PAIRS = ("hook", "worm", "antennae", "whirl", "branch")
CLASSES = tuple(f"{name}-{hand}" for name in PAIRS for hand in ("left", "right"))
TRAIN, TEST = 2_000, 1_000
SEED = 0
VERSION = 1  # of the shapes


def load(settings: Settings) -> Dataset:
    """2,000 training and 1,000 test images of the given side; no folder is needed."""
    key = cache.fingerprint({"kind": "synthetic", "shapes": VERSION, "seed": SEED, "side": settings.side})
    labels = np.arange(TRAIN + TEST, dtype=np.int64) % len(CLASSES)

    def make() -> cache.Made:
        return draw(labels, settings.side, SEED)[:, None], {}

    array, _ = cache.cached(key, make)
    return Dataset(
        array,
        labels,
        CLASSES,
        tuple(map(str, range(len(labels)))),
        np.arange(TRAIN),
        np.arange(TRAIN, TRAIN + TEST),
        key,
    )


def draw(labels: NDArray[np.int64], side: int, seed: int = SEED) -> NDArray[np.uint8]:
    """`(N, side, side)` bytes: strokes with soft edges on a dark background."""
    out = np.empty((len(labels), side, side), dtype=np.uint8)
    ticks = (np.arange(side) + 0.5) / side * 2 - 1
    x, y = np.meshgrid(ticks, ticks)
    for number, label in enumerate(labels):
        rng = np.random.default_rng([seed, number])
        strokes = _organism(PAIRS[label // 2], rng)
        if label % 2:
            strokes[:, [1, 3]] *= -1  # mirrored
        strokes = np.concatenate([_placed(strokes, rng), _debris(rng)])
        image = _painted(strokes, x, y, 1.5 / side) + rng.normal(0, 0.09, x.shape)
        out[number] = (image.clip(0, 1) * 255).round().astype(np.uint8)
    return out


def _organism(kind: str, rng: np.random.Generator) -> Array:
    """Strokes (x0, y0, x1, y1, radius, brightness) of the left-handed class, about one unit long."""
    wobble = rng.normal(0, 0.05, 12)
    if kind == "hook":  # a tail that bends to one side at its end
        bend = rng.uniform(0.5, 1.0)
        t = np.linspace(0, 1, 7)
        return _path(np.stack([t * 1.5 - 0.8, 0.9 * bend * np.clip(t - 0.5, 0, None) ** 2 * 4 - 0.3], 1), 0.10, wobble)
    if kind == "worm":  # an S; its mirror image is a Z
        t = np.linspace(-1, 1, 8)
        return _path(np.stack([t * 0.8, rng.uniform(0.3, 0.5) * np.sin(t * np.pi)], 1), 0.08, wobble)
    if kind == "antennae":  # a body with a long antenna on one side and a short one on the other
        long, short = rng.uniform(0.55, 0.75), rng.uniform(0.25, 0.4)
        body = [[-0.7, 0, 0.3, 0, 0.17 + wobble[0], 0.9]]
        horns = [
            [0.3, 0, 0.3 + long * 0.7, long * 0.8, 0.05, 0.8],
            [0.3, 0, 0.3 + short * 0.7, -short * 0.8, 0.05, 0.8],
        ]
        return np.array(body + horns)
    if kind == "whirl":  # arms about a centre, all bent one way
        arms, first = int(rng.integers(3, 6)), rng.uniform(0, 2 * np.pi)
        parts = [np.array([[0.0, 0, 0, 0, 0.16, 0.9]])]
        for arm in range(arms):
            r = np.linspace(0.1, 0.85, 4)
            angle = first + 2 * np.pi * arm / arms + rng.uniform(0.5, 1.0) * r
            parts.append(_path(np.stack([r * np.cos(angle), r * np.sin(angle)], 1), 0.06, wobble[:4] / 2))
        return np.concatenate(parts)
    # branch: a chain with a side branch nearer to its thick end, on one side
    stem = [[-0.85, 0, -0.2, wobble[0], 0.14, 0.9], [-0.2, wobble[0], 0.85, wobble[1], 0.07, 0.8]]
    where, length = rng.uniform(-0.35, 0.0), rng.uniform(0.4, 0.65)
    return np.array([*stem, [where, 0, where + 0.3 * length, length, 0.06, 0.8]])


def _path(points: Array, radius: float, wobble: Array) -> Array:
    """Strokes along points, thinner towards the end."""
    points = points + np.resize(wobble, points.shape) * 0.7
    count = len(points) - 1
    radii = radius * np.linspace(1.3, 0.6, count)
    return np.column_stack([points[:-1], points[1:], radii, np.full(count, 0.85)])


def _placed(strokes: Array, rng: np.random.Generator) -> Array:
    """The strokes, randomly rotated, scaled and shifted."""
    angle, size = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 0.85)
    turn = size * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    shift = rng.uniform(-0.15, 0.15, 2)
    out = strokes.copy()
    out[:, 0:2], out[:, 2:4] = strokes[:, 0:2] @ turn + shift, strokes[:, 2:4] @ turn + shift
    out[:, 4] *= size * rng.uniform(0.8, 1.3)
    out[:, 5] *= rng.uniform(0.5, 1.0)
    return out


def _debris(rng: np.random.Generator) -> Array:
    """Short strokes at random positions."""
    count = int(rng.integers(1, 5))
    start, step = rng.uniform(-1, 1, (count, 2)), rng.normal(0, 0.15, (count, 2))
    return np.column_stack([start, start + step, rng.uniform(0.03, 0.07, count), rng.uniform(0.3, 0.8, count)])


def _painted(strokes: Array, x: Array, y: Array, edge: float) -> Array:
    """An image of the strokes, which are segments with round ends; the brightest one wins."""
    x0, y0, x1, y1, radius, light = (column[:, None, None] for column in strokes.T)
    dx, dy = x1 - x0, y1 - y0
    along = (((x - x0) * dx + (y - y0) * dy) / (dx**2 + dy**2 + 1e-9)).clip(0, 1)
    distance = np.hypot(x - x0 - along * dx, y - y0 - along * dy)
    return (light * ((radius - distance) / edge + 0.5).clip(0, 1)).max(axis=0)
