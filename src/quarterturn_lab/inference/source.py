"""A finished run as the source of an export: its network, the same in torch's own layers, and inputs to compare on."""

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn

import quarterturn as qt
from quarterturn._export.onnx_file import group_of
from quarterturn_lab.errors import RunError
from quarterturn_lab.inference.network import for_whole_images
from quarterturn_lab.runs.model_card import ModelCard
from quarterturn_lab.runs.run_directory import summary
from quarterturn_lab.runs.trained import load_with_card
from quarterturn_lab.runs.trust import NOTHING, Trust
from quarterturn_lab.settings.config import Config

STEPS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class About:
    """What the user says about an export: nothing in a run tells it."""

    license: str | None = None
    authors: tuple[str, ...] = ()
    spacing: float | None = None  # micrometres per pixel of the network's input


@dataclass(frozen=True)
class Source:
    """A finished run, ready to be exported. The sides that a dense network takes are `step` apart."""

    title: str
    config: Config
    card: ModelCard
    summary: dict[str, Any]
    net: nn.Module
    group: qt.Group | None
    step: int

    @functools.cached_property
    def plain(self) -> fx.GraphModule:
        """The network in torch's own layers. One that cannot be written so raises."""
        return qt.to_plain(self.net, torch.from_numpy(self.numbers()[0]), dynamic=self.card.is_dense, fold=True)

    @property
    def side(self) -> int:
        return self.config.net.side

    @property
    def takes(self) -> str:
        """The inputs that an export takes, in words."""
        if self.card.is_dense:
            return "any batch, any size" + (f" that is a multiple of {self.step}" if self.step > 1 else "")
        return f"any batch of {' x '.join([str(self.side)] * self.config.net.axes)}"

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of inputs to compare on: several batches and, where they are free, several sizes."""
        channels, side, step = self.config.net.channels, self.side, self.step
        if not self.card.is_dense:
            return [(count, channels, side, side) for count in (1, 2, 5)]
        more = [side] * (self.config.net.axes - 2)  # of volumes
        return [
            (2, channels, side, side, *more),
            (1, channels, side + step, side + 3 * step, *more),
            (3, channels, side, side + step, *more),
        ]

    def numbers(self) -> list[NDArray[np.float32]]:
        """Inputs as the network sees them."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape, dtype=np.float32) for shape in self.shapes()]

    def pixels(self) -> list[NDArray[np.float32]]:
        """Inputs as files hold them: pixels that become about unit variance."""
        offset, factor = self.card.scaling.columns(self.config.net.axes)
        found = [x / factor + offset for x in self.numbers()]
        return found if self.card.settings.floats else [x.round().clip(0, 255) for x in found]


def source_of(directory: Path, trust: Trust = NOTHING) -> Source:
    """The source of a finished run's exports."""
    config, card, net = load_with_card(directory, trust)
    places = {"data": None, "labels": None, "weights": None}  # on the user's machine
    config = config.model_copy(update=places)
    card = replace(card, settings=card.settings.model_copy(update={"labels": None}))
    step = 1
    if card.is_dense:
        net, config = for_whole_images(config, net), config.model_copy(update={"rotate": "filters"})
        step = _step(net, config.net.channels, config.net.side, config.net.axes)
    title = re.sub(r"[^\w ()+-]", "_", f"quarterturn {config.experiment} {directory.resolve().parent.name}")[:100]
    return Source(title, config, card, summary(directory), net, group_of(net), step)


def _step(net: nn.Module, channels: int, side: int, axes: int) -> int:
    """The smallest step between the sizes that a network takes."""
    for step in STEPS:
        try:
            with torch.no_grad():
                for sizes in ((side + step, side), (side + 3 * step, side + 2 * step)):
                    net(torch.zeros(1, channels, *sizes, *[side] * (axes - 2)))
        except (RuntimeError, ValueError):
            continue
        return step
    raise RunError(
        f"this network takes images of {' x '.join([str(side)] * axes)} alone, and images with masks have any size"
    )
