"""The model card: what is needed to use a trained network, how files become its input and what its outputs mean.

Written as model.json beside the weights, and into an ONNX file. Nothing here needs torch.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.scaling import Scaling
from quarterturn_lab.errors import RunError

VERSION = 1  # of this form
KEY = "quarterturn"  # in the metadata of an ONNX file


@dataclass(frozen=True)
class ModelCard:
    """`classes` are the names of the outputs; `bands` the numbers of channels that the files of the training had."""

    task: str
    experiment: str
    classes: tuple[str, ...]
    settings: Settings
    scaling: Scaling
    bands: tuple[int, ...]
    margin: int = 0  # pixels at each edge of a map that have no output
    shrinks: bool = False  # it looks at whole images in several sizes, so that they cannot go through block by block

    @property
    def is_dense(self) -> bool:
        """Whether there is an answer for each pixel."""
        return self.task in ("pixels", "instances")

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self), "settings": self.settings.model_dump()}, indent=1)


def read(text: str, source: object) -> ModelCard:
    """A model card from its JSON; `source` is named where it is none."""
    try:
        found = json.loads(text)
        if found.pop("version") != VERSION:
            raise ValueError("another version")
        found |= {name: tuple(found[name]) for name in ("classes", "bands")}
        found["settings"] = Settings(**found["settings"])
        found["scaling"] = Scaling(**{name: tuple(values) for name, values in found["scaling"].items()})
        return ModelCard(**found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{source} was not written by this version of quarterturn ({error}): make it again") from None


def probabilities(task: str, outputs: NDArray[Any]) -> NDArray[np.float64]:
    """What the network's outputs mean: `(N, classes)` shares of one, `(N, answers)` in [0, 1], or `(N, H, W)` maps."""
    values = outputs.astype(np.float64)
    if task == "answers":
        return values.clip(0, 1)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    return shares if task == "classes" else shares[:, 1]
