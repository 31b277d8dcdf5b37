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

VERSION = 1  # of this format
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
        return self.scaling(255 - pixels if self.settings.invert else pixels)

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
        found = json.loads(text)
        if found.pop("version") != VERSION:
            raise ValueError("another version")
        found |= {name: tuple(found[name]) for name in ("classes", "bands")}
        found["settings"] = Settings(**found["settings"])
        found["scaling"] = Scaling(**{name: tuple(values) for name, values in found["scaling"].items()})
        found["values"] = tuple(found.get("values", ()))
        if found.get("units"):
            found["units"] = Units(**{name: tuple(values) for name, values in found["units"].items()})
        return ModelCard(**found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{source} was not written by this version of quarterturn ({error}): train or export it again"
        ) from None


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
