"""Volumes that need no files: round cells of two textures, at any angle, drawn in seconds.

One kind of cell has layers, the other has rods. Each cell is turned at random by any angle in space, so no orientation
is preferred, and textures have the mean and variance of the noise around them: only how values are arranged tells.
"""

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import cache
from quarterturn_lab.data.dataset import NO_IMAGES, Ragged, Scenes, Settings

CLASSES = ("background", "layers", "rods")
TRAIN, TEST = 1_000, 200
SIDE = 20  # voxels
PERIOD = 5.0  # voxels from layer to layer, and from rod to rod
SIGNAL, NOISE = 0.7, 0.7  # deviations
SEEN = 100  # voxels of each kind at least: a cell may hide another
SEED = 0
VERSION = 3  # of the cells


def load(settings: Settings) -> Scenes:
    """1,000 training and 200 test volumes; no folder is needed."""
    del settings  # they have one size
    count = TRAIN + TEST
    key = cache.fingerprint({"kind": "synthetic volumes", "cells": VERSION, "seed": SEED, "side": SIDE})

    def make() -> cache.Made:
        drawn = [draw(number) for number in range(count)]
        return np.stack([np.stack([image, labels]) for image, labels in drawn]).astype(np.float32), {}

    both, _ = cache.cached(key, make)
    shape = (SIDE, SIDE, SIDE)
    return Scenes(
        Ragged(np.ascontiguousarray(both[:, 0]).ravel(), [(1, *shape)] * count),
        Ragged(both[:, 1].astype(np.uint16).ravel(), [shape] * count),
        CLASSES,
        tuple(map(str, range(count))),
        np.arange(TRAIN),
        np.arange(TRAIN, count),
        key,
        valid=NO_IMAGES,
        task="regions",
        bands=(1,),
        spacings=((1.0, 1.0, 1.0),) * count,
    )


def draw(number: int, side: int = SIDE, seed: int = SEED) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A volume of three cells, at least one of each kind, and the class of each voxel."""
    rng = np.random.default_rng([seed, number])
    places = np.stack(np.meshgrid(*[np.arange(side, dtype=np.float64)] * 3, indexing="ij"), axis=-1)
    while True:
        image = np.hypot(SIGNAL, NOISE) * rng.standard_normal((side,) * 3)
        labels = np.zeros((side,) * 3, dtype=np.int64)
        for kind in (1, 2, int(rng.integers(1, 3))):
            centre, radius = rng.uniform(3, side - 4, 3), rng.uniform(4.0, 6.5)
            turn, phases = rotation(rng), rng.uniform(0, 2 * np.pi, 2)
            inside = (((places - centre) ** 2).sum(-1) < radius**2) & (labels == 0)
            waves = np.sqrt(2) * np.cos(2 * np.pi / PERIOD * (places[inside] @ turn[:, :2]) + phases)
            texture = waves[:, 0] if kind == 1 else waves.prod(axis=1)
            image[inside] = SIGNAL * texture + NOISE * rng.standard_normal(len(texture))
            labels[inside] = kind
        if np.bincount(labels.ravel(), minlength=3)[1:].min() >= SEEN:
            return image, labels


def rotation(rng: np.random.Generator) -> NDArray[np.float64]:
    """A turn of space, all equally likely: from a normalised quaternion of normal random numbers."""
    w, x, y, z = (q := rng.standard_normal(4)) / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
