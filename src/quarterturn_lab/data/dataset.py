"""What a loader gives: all images as one array of bytes, their labels, and which are for training."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.seeds import key


@dataclass(frozen=True)
class Dataset:
    """Images `(N, C, S, S)` of bytes, often a memory map; `train` and `test` are indices into them."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    fingerprint: str  # of the contents and the settings
    bad: tuple[str, ...] = ()  # images that could not be read and were skipped


@dataclass(frozen=True)
class Settings:
    """What a loader is asked for."""

    folder: str | None
    side: int
    channels: int
    longest: int | None = None
    invert: bool = False
    skip_bad: bool = False
    max_pixels: int = 64_000_000

    def written(self) -> dict[str, Any]:
        """What decides the bytes of the cache, beside the contents of the folder."""
        return {name: getattr(self, name) for name in ("side", "channels", "longest", "invert")}


def subset(data: Dataset, size: int | None, seed: int) -> Dataset:
    """The data set with a stratified draw of its training part, at least 2 of each class; another for each seed."""
    if size is None or size >= len(data.train):
        return data
    labels = data.labels[data.train]
    rng = np.random.default_rng(key("train part", seed))
    chosen = []
    for label in range(len(data.classes)):
        members = rng.permutation(data.train[labels == label])
        chosen.append(members[: max(2, round(size * len(members) / len(labels)))])
    return replace(data, train=np.sort(np.concatenate(chosen)))
