"""The model card: how files become the input of a trained network, and what its outputs mean.

It is written to model.json next to the weights, and into ONNX files. Nothing here needs torch.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data.dataset import DENSE, Settings, Units
from quarterturn_lab.data.scaling import Scaling
from quarterturn_lab.errors import RunError
from quarterturn_lab.files import parsed

VERSION = 1  # of this format
TASKS = ("classes", "answers", "tags", "numbers", *DENSE)
LARGEST_MARGIN = 1000  # pixels
KEY = "quarterturn"  # in the metadata of an ONNX file


@dataclass(frozen=True)
class ModelCard:
    """What is needed to use a network: `classes` names the outputs, `bands` the channel counts of training files."""

    task: str
    experiment: str
    classes: tuple[str, ...]
    settings: Settings
    scaling: Scaling
    bands: tuple[int, ...]
    margin: int = 0  # pixels at each edge of an image without an output
    shrinks: bool = False  # it has strides, so that images cannot be processed in blocks
    units: Units | None = None  # of the outputs, for numbers
    values: tuple[int, ...] = ()  # of the classes in masks, for regions; empty if they are numbered

    @property
    def is_dense(self) -> bool:
        """Whether the network labels each pixel."""
        return self.task in DENSE

    def answers(self, outputs: NDArray[Any]) -> NDArray[np.float64]:
        """What outputs `(N, classes)` mean: probabilities, shares, or numbers in the user's units."""
        return answers(self.task, outputs, self.units)

    def scaled(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        """The network's input from pixels as files hold them, `(..., C, H, W)`."""
        return self.scaling(255 - pixels if self.settings.invert else pixels, self.settings.axes)

    def linear(self) -> tuple[list[float], list[float]]:
        """The same as `gain * pixel + offset`, for each channel."""
        gain, middle = list(self.scaling.factor), list(self.scaling.offset)
        if self.settings.invert:
            gain, middle = [-factor for factor in gain], [255 - value for value in middle]
        return gain, [-factor * value for factor, value in zip(gain, middle, strict=True)]

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self), "settings": self.settings.model_dump()}, indent=1)


def read(text: str, source: object) -> ModelCard:
    """A model card from its JSON; `source` is its name in errors."""
    try:
        found = parsed(text)
        if found.pop("version") != VERSION:
            raise ValueError("another version")
        found |= {name: tuple(found[name]) for name in ("classes", "bands")}
        found["settings"] = Settings(**found["settings"])
        found["scaling"] = Scaling(**{name: tuple(values) for name, values in found["scaling"].items()})
        found["values"] = tuple(found.get("values", ()))
        if found.get("units"):
            found["units"] = Units(**{name: tuple(values) for name, values in found["units"].items()})
        return _consistent(ModelCard(**found))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        why = " ".join(str(error).split())[:200]
        raise RunError(
            f"{source} was not written by this version of quarterturn ({why}): train or export it again"
        ) from None


def _consistent(card: ModelCard) -> ModelCard:
    """The card, if its parts fit each other."""
    channels, classes = card.settings.channels, len(card.classes)
    if card.task not in TASKS:
        raise ValueError(f"there is no task {card.task}")
    if not classes or not all(isinstance(name, str) for name in card.classes):
        raise ValueError("the classes have no names")
    for part, length in (
        (card.scaling.offset, channels),
        (card.scaling.factor, channels),
        *(((card.units.mean, classes), (card.units.deviation, classes)) if card.units else ()),
    ):
        if len(part) != length or not np.isfinite(np.array(part, dtype=np.float64)).all():
            raise ValueError(f"{length} numbers are needed for scaling, found {len(part)}")
    if not isinstance(card.margin, int) or not 0 <= card.margin <= LARGEST_MARGIN:
        raise ValueError(f"a margin of {card.margin} pixels")
    if card.values and (len(card.values) != classes or not all(isinstance(value, int) for value in card.values)):
        raise ValueError(f"{len(card.values)} values of masks for {classes} classes")
    return card


def answers(task: str, outputs: NDArray[Any], units: Units | None = None) -> NDArray[np.float64]:
    """Answers from outputs of a network that labels whole images: numbers in units, or probabilities."""
    return units(outputs) if units else probabilities(task, outputs)


def probabilities(task: str, outputs: NDArray[Any]) -> NDArray[np.float64]:
    """Probabilities from outputs.

    `(N, classes)`, which sum to one; `(N, answers)` or `(N, tags)`, each in [0, 1]; maps of objects `(N, H, W)`; or
    maps of regions `(N, classes, H, W)`, which sum to one at each pixel.
    """
    values = outputs.astype(np.float64)
    if task == "answers":
        return values.clip(0, 1)
    if task == "tags":
        return 0.5 * (1 + np.tanh(0.5 * values))
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    return shares if task in ("classes", "regions") else shares[:, 1]
