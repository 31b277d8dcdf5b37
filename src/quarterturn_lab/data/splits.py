"""The split into training and test images: it depends only on names, so it is reproducible."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data.dataset import Data
from quarterturn_lab.errors import ConfigError

# As in the paper: 3,037 of 30,336 images.
TEST_PART = 3037 / 30336


def stratified(names: Sequence[str], labels: NDArray[np.int64], part: float = TEST_PART) -> NDArray[np.bool_]:
    """True for test images: the same fraction of each class, those whose names have the smallest SHA-256.

    Class counts are rounded by largest remainder, so that the total is exact: 3,037 of 30,336.
    """
    counts = np.bincount(labels)
    exact = counts * part
    shares = np.floor(exact).astype(int)
    for label in np.argsort(-(exact - shares), kind="stable")[: round(len(names) * part) - shares.sum()]:
        shares[label] += 1
    ranked = sorted(range(len(names)), key=lambda i: hashlib.sha256(f"test part 1/{names[i]}".encode()).digest())
    test = np.zeros(len(names), dtype=bool)
    for i in ranked:
        if shares[labels[i]] > 0:
            shares[labels[i]] -= 1
            test[i] = True
    return test


def with_validation(data: Data, part: float) -> Data:
    """The data with a fraction of the training images held out for validation, by the same rule as test images."""
    if not part:
        return data
    if len(data.valid):
        raise ConfigError(f"these data have {len(data.valid)} validation images of their own: leave --validation out")
    labels = data.labels[data.train] if data.task == "classes" else np.zeros(len(data.train), dtype=np.int64)  # type: ignore[index]
    held_out = stratified([data.names[i] for i in data.train], labels, part)
    if not held_out.any() or held_out.all():
        raise ConfigError(f"--validation {part} of {len(data.train)} training images leaves one part empty")
    return replace(data, train=data.train[~held_out], valid=data.train[held_out])


def committed(name: str) -> set[str]:
    """The image names of a committed split file, which has lines `class: stem stem ...`."""
    lines = (files(__package__) / "committed_splits" / name).read_text().splitlines()
    found: set[str] = set()
    for line in lines:
        folder, _, stems = line.partition(": ")
        found.update(f"{folder}/{stem}.jpg" for stem in stems.split())
    return found


def written(names: Sequence[str]) -> str:
    """The text of a split file."""
    by_class: dict[str, list[str]] = {}
    for name in sorted(names):
        folder, _, file = name.partition("/")
        by_class.setdefault(folder, []).append(file.removesuffix(".jpg"))
    return "".join(f"{folder}: {' '.join(stems)}\n" for folder, stems in sorted(by_class.items()))
