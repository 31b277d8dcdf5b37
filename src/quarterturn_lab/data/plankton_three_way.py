"""Plankton with a validation set: 15 % of each class for testing, 5 % for validation, the rest for training.

For the 24,221 images behind our results, each part is listed in committed_splits/plankton_three_way; a test compares
the lists with the rule. Other images are split by the rule.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import plankton, splits
from quarterturn_lab.data.dataset import Dataset, Indices, Settings

TEST, VALID = 0.15, 0.05
PARTS = ("train", "valid", "test")


def load(settings: Settings) -> Dataset:
    """The labelled images, split into training, validation and test images."""
    data = plankton.load(settings)
    names = set(data.names)
    listed = {part: splits.committed(f"plankton_three_way/{part}.txt") for part in PARTS}
    if set.union(*listed.values()) == names:
        train, valid, test = (
            np.array([i for i, name in enumerate(data.names) if name in listed[part]], dtype=np.int64) for part in PARTS
        )
    else:
        train, valid, test = by_rule(data.names, data.labels)
    return replace(data, train=train, valid=valid, test=test)


def by_rule(names: Sequence[str], labels: NDArray[np.int64]) -> tuple[Indices, Indices, Indices]:
    """Indices for training, validation and testing. In each class, names with the smallest SHA-256 are for testing, the
    next for validation."""
    test = splits.stratified(names, labels, TEST)
    held_out = splits.stratified(names, labels, TEST + VALID)
    return np.flatnonzero(~held_out & ~test), np.flatnonzero(held_out & ~test), np.flatnonzero(test)
