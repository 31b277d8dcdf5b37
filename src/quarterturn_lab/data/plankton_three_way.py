"""Plankton in three parts: 15 % of each class to test, 5 % to validate, the rest to train with.

For the 24,221 images that results were measured with, the names of each part are in the repository, in
committed_splits/plankton_three_way; a test compares them with the rule. On other images the rule itself is used.
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
    """The labelled images, with a validation part."""
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
    """Training, validation and test part: of each class the names with the smallest SHA-256 are for testing, the next
    ones for validation."""
    test = splits.stratified(names, labels, TEST)
    held_out = splits.stratified(names, labels, TEST + VALID)
    return np.flatnonzero(~held_out & ~test), np.flatnonzero(held_out & ~test), np.flatnonzero(test)
