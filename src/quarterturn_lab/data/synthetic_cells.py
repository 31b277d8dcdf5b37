"""Cells with masks that need no files: `made_by_rule.cells`, as scenes."""

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import cache
from quarterturn_lab.data.dataset import Ragged, Scenes, Settings
from quarterturn_lab.data.made_by_rule import cells

CLASSES = ("background", "cell")
TRAIN, TEST = 200, 50
SIDE = 64  # pixels
NOISE = 0.3  # as strong as a cell of low contrast: each pixel alone says little
SEED = 0
VERSION = 1  # of the cells


def load(settings: Settings) -> Scenes:
    """200 training and 50 test images; no folder is needed."""
    del settings  # they have one size
    count = TRAIN + TEST
    key = cache.fingerprint({"kind": "synthetic cells", "cells": VERSION, "seed": SEED, "side": SIDE, "noise": NOISE})

    def make() -> cache.Made:
        images, masks = cells(count, SIDE, SEED, NOISE)
        return np.stack([as_bytes(images[:, 0]), masks.astype(np.uint8)], axis=1), {}

    both, _ = cache.cached(key, make)
    return Scenes(
        Ragged(np.ascontiguousarray(both[:, 0]).ravel(), [(1, SIDE, SIDE)] * count),
        Ragged(both[:, 1].astype(np.uint16).ravel(), [(SIDE, SIDE)] * count),
        CLASSES,
        tuple(map(str, range(count))),
        np.arange(TRAIN),
        np.arange(TRAIN, count),
        key,
        bands=(1,),
    )


def as_bytes(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Values of about 0 to 1 as bytes."""
    return (images.clip(0, 1) * 255).round().astype(np.uint8)
