"""What a loader gives: images with labels (`Dataset`), or whole scenes with a label for each pixel (`Scenes`).

Nothing here needs torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.seeds import key
from quarterturn_lab.settings.config import ImageSettings

Indices = NDArray[np.int64]
NO_IMAGES: Indices = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Dataset:
    """Images `(N, C, S, S)`, often a memory map; `train`, `valid` and `test` are indices into them.

    Labels are numbers of classes `(N,)`, or `(N, answers)` shares in [0, 1], whose names are then the `classes`. Images
    may be larger than the network's input: that is room for the warps, and the middle of them is what is evaluated.
    """

    images: NDArray[Any]  # bytes, or floats
    labels: NDArray[Any]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    train: Indices
    test: Indices
    fingerprint: str  # of the contents and the settings
    bad: tuple[str, ...] = ()  # images that could not be used and were skipped
    valid: Indices = field(default_factory=lambda: NO_IMAGES)
    task: str = "classes"
    bands: tuple[int, ...] = ()  # the numbers of channels that the files had, equal ones counted once


class Ragged:
    """Arrays of several sizes in one flat one, often a memory map: `ragged[i]` is number i, in its own shape."""

    def __init__(self, flat: NDArray[Any], shapes: Sequence[Sequence[int]]) -> None:
        self.flat, self.shapes = flat, [tuple(shape) for shape in shapes]
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        self.starts = [0, *(int(end) for end in ends)]

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, i: int) -> NDArray[Any]:
        return self.flat[self.starts[i] : self.starts[i + 1]].reshape(self.shapes[i])


@dataclass(frozen=True)
class Scenes:
    """Images `(C, H, W)` of any size with label maps `(H, W)`: 0 is the background, other numbers are instances."""

    images: Ragged
    labels: Ragged
    classes: tuple[str, ...]
    names: tuple[str, ...]
    train: Indices
    test: Indices
    fingerprint: str
    bad: tuple[str, ...] = ()
    valid: Indices = field(default_factory=lambda: NO_IMAGES)
    task: str = "pixels"
    bands: tuple[int, ...] = ()


Data = Dataset | Scenes


class Settings(ImageSettings):
    """What a loader is asked for: images of a folder as squares of this side, read as a run's settings say."""

    folder: str | None
    side: int
    channels: int

    def cache_key(self) -> dict[str, Any]:
        """What decides the arrays in the cache, beside the contents of the folder."""
        found = self.model_dump(exclude={"folder", "skip_bad", "max_pixels"})
        if not self.floats:  # it came later: caches and runs that are older have no such key
            del found["floats"]
        return found


def subset(data: Data, size: int | None, seed: int) -> Data:
    """The data with a draw of its training part, another for each seed; of classes their shares, at least 2 of each."""
    if size is None or size >= len(data.train):
        return data
    rng = np.random.default_rng(key("train part", seed))
    if isinstance(data, Scenes) or data.task != "classes":
        return replace(data, train=np.sort(rng.permutation(data.train)[:size]))
    labels = data.labels[data.train]
    chosen = []
    for label in range(len(data.classes)):
        members = rng.permutation(data.train[labels == label])
        chosen.append(members[: max(2, round(size * len(members) / len(labels)))])
    return replace(data, train=np.sort(np.concatenate(chosen)))
