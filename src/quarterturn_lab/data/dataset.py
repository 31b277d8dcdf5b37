"""What a loader returns: images with labels (`Dataset`), or scenes with a label for each pixel (`Scenes`).

Nothing here needs torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.seeds import key
from quarterturn_lab.settings.config import ImageSettings, explained
from quarterturn_lab.settings.networks import size_fault

Indices = NDArray[np.int64]
NO_IMAGES: Indices = np.zeros(0, dtype=np.int64)


DENSE = ("pixels", "instances", "regions")  # tasks with a label for each pixel
VOID = 65535  # the label of pixels that do not count
COLOUR = 1 << 24  # added to the number of a colour of a mask, so that it is none of the grey ones


@dataclass(frozen=True)
class Units:
    """From what a network learns (mean 0, deviation 1 over the training images) to the user's units, by column.

    >>> Units((20.0,), (5.0,))(np.array([[-1.0], [2.0]])).tolist()
    [[15.0], [30.0]]
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float64]:
        return values.astype(np.float64) * np.array(self.deviation) + np.array(self.mean)


@dataclass(frozen=True)
class Dataset:
    """Images `(N, C, S, S)`, often a memory map; `train`, `valid` and `test` are indices into them.

    Labels are class indices `(N,)`, shares `(N, answers)` in [0, 1], tags `(N, tags)` that are 0 or 1, or numbers `(N,
    columns)`, which `units` turns into the user's. `classes` has the names of the classes, answers, tags or columns.
    Images may be larger than the network's input: augmentation uses the rest, evaluation crops the centre.
    """

    images: NDArray[Any]  # bytes or floats
    labels: NDArray[Any]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    train: Indices
    test: Indices
    fingerprint: str  # of the contents and the settings
    bad: tuple[str, ...] = ()  # skipped images
    valid: Indices = field(default_factory=lambda: NO_IMAGES)
    task: str = "classes"
    bands: tuple[int, ...] = ()  # the distinct numbers of channels of the files
    centred: bool = False  # each channel is scaled by its mean and deviation, bytes too
    units: Units | None = None  # of the labels and outputs, for numbers


class Ragged:
    """Arrays of different shapes in one flat array, often a memory map: `ragged[i]` is array i in its own shape."""

    def __init__(self, flat: NDArray[Any], shapes: Sequence[Sequence[int]]) -> None:
        self.flat, self.shapes = flat, [tuple(shape) for shape in shapes]
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        self.starts = [0, *(int(end) for end in ends)]

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, i: int) -> NDArray[Any]:
        return self.flat[self.starts[i] : self.starts[i + 1]].reshape(self.shapes[i])


def ragged(arrays: Sequence[NDArray[Any]]) -> Ragged:
    """These arrays as one flat array.

    >>> ragged([np.zeros((2, 3)), np.ones((1, 1))])[1]
    array([[1.]])
    """
    return Ragged(np.concatenate([array.ravel() for array in arrays]), [array.shape for array in arrays])


@dataclass(frozen=True)
class Scenes:
    """Images `(C, H, W)` of any size with label maps `(H, W)`; or volumes, which have three axes for two.

    0 is the background, and other numbers are instances; or, for regions, they are classes, and `VOID` does not count.
    """

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
    values: tuple[int, ...] = ()  # of the classes in the user's masks, for regions
    spacings: tuple[tuple[float, ...], ...] = ()  # of each volume, in mm; empty for images

    @property
    def axes(self) -> int:
        return len(self.labels.shapes[0])


Data = Dataset | Scenes


class Settings(ImageSettings):
    """The settings of a loader: a folder, the side and channels of its images, and how to read them."""

    folder: str | None
    side: int = Field(ge=1)
    channels: int = Field(ge=1)
    validation: float = 0.0  # for loaders that hold out validation images themselves
    rules: Literal[1, 2] = 1  # of reading: 2 is for the user's own images, see images.py
    axes: Literal[2, 3] = 2  # images, or volumes

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        if fault := size_fault(self.channels, self.side, self.longest, axes=self.axes):
            raise ValueError(fault)
        return self

    def cache_key(self) -> dict[str, Any]:
        """The settings that affect the cached arrays. Those added later count only if they are used."""
        names = {"side", "channels", "longest", "invert"}
        return self.model_dump(
            include=names | ({"floats"} if self.floats else set()) | ({"rules"} if self.rules > 1 else set())
        )


def checked_settings(**values: Any) -> Settings:
    """Settings from the options of a user; invalid ones raise an error that names the field."""
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError(explained(error)) from None


def subset(data: Data, size: int | None, seed: int) -> Data:
    """The data with a random subset of its training images; classes keep their shares, with at least 2 images each."""
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
