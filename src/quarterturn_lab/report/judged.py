"""A finished run with its answers for the test images, and how they change when images are turned."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import quarterturn as qt
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes
from quarterturn_lab.data.watch import watched
from quarterturn_lab.evaluation.score import examples, labels_of, predict, scene_error
from quarterturn_lab.report.figures import some_test_images
from quarterturn_lab.runs import run_directory
from quarterturn_lab.runs.model_card import answers
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.runs.trust import NOTHING, Trust
from quarterturn_lab.settings.config import Config

CPU = torch.device("cpu")
SOME, FEW = 100, 3  # test images and scenes that are turned
EXACT = 1e-6  # a relative change above this is more than rounding in float64


@dataclass(frozen=True)
class Judged:
    """A finished run, its data and network, and its answers for all test images."""

    path: Path
    config: Config
    data: Data
    net: nn.Module
    predicted: Any  # (images, classes or columns), or a list of maps
    labels: Any

    @property
    def group(self) -> str | None:
        return self.config.net.group

    @property
    def name(self) -> str:
        return f"{self.group} network" if self.group else "ordinary network"

    @cached_property
    def summary(self) -> dict[str, Any]:
        return run_directory.summary(self.path)

    def image(self, place: int) -> NDArray[Any]:
        """Test image number `place` as the network sees it, `(C, H, W)`."""
        image = self.data.images[int(self.data.test[place])]
        if isinstance(self.data, Scenes):
            return image
        top, left = ((length - self.config.net.side) // 2 for length in image.shape[1:])
        return image[:, top : top + self.config.net.side, left : left + self.config.net.side]


def judged(path: Path, data_folder: str | None = None, trust: Trust = NOTHING) -> Judged:
    """A finished run, applied to its test images."""
    config, data, net = load_with_data(path, data_folder, trust)
    found = predict(config, net, data, data.test, CPU)
    return Judged(path, config, data, net, found, labels_of(config, data, data.test))


@dataclass(frozen=True)
class Turned:
    """What turning some test images by all elements of a group does to the answers."""

    images: int
    changed: int  # images with another answer in some orientation
    most: float  # the largest change of an answer: of a probability, share, or of a number in deviations
    exact: float  # the largest change of the network's output, relative to its size, in float64


def turned(run: Judged, group: qt.Group) -> Turned:
    """Turn some test images by the whole group and compare the answers."""
    data = run.data
    net = run.net
    inputs = examples(run.config, data, data.test[: 4 if run.config.net.axes == 2 else 1]).double()
    inputs += 0.1 * torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))  # images may be symmetric
    exact = max(qt.equivariance_error(net.double(), group, inputs).relative)
    net.float()
    if isinstance(data, Scenes):
        found_in = [_of_scene(run, data, int(i), group) for i in some_test_images(data, FEW)]
        return Turned(len(found_in), 0, max(found_in), exact)
    indices = some_test_images(data, SOME)
    images = examples(run.config, data, indices)
    seen = watched(f"checking orientations, {run.name}", range(group.order), group.order)
    found = np.stack([_answers(run, data, qt.act(images, group, g).contiguous()) for g in seen])
    changed = (decisions(data.task, found) != decisions(data.task, found[:1])).any(axis=(0, 2))
    size = found[0].std(axis=0).clip(1e-12) if data.task == "numbers" else 1.0
    return Turned(len(indices), int(changed.sum()), float((np.abs(found - found[:1]) / size).max()), exact)


def _of_scene(run: Judged, data: Scenes, index: int, group: qt.Group) -> float:
    """The largest change of a probability in the mask of a scene; none for a scene that looks the same when turned."""
    try:
        return scene_error(run.config, run.net, data, index, group)
    except qt.errors.ShapeError:
        return 0.0


@torch.no_grad()
def _answers(run: Judged, data: Dataset, images: torch.Tensor) -> NDArray[np.float64]:
    outputs = [run.net(part).float().numpy() for part in images.split(64)]
    return answers(data.task, np.concatenate(outputs), data.units)


def decisions(task: str, answers: NDArray[np.float64]) -> NDArray[Any]:
    """What answers `(..., classes)` say, `(..., decisions)`: a class, the tags, or numbers to two digits of a share."""
    if task == "classes":
        return answers.argmax(-1)[..., None]
    return answers >= 0.5 if task == "tags" else answers.round(2)


def changes_by_angle(run: Judged, angles: tuple[int, ...], indices: Indices) -> NDArray[np.float64]:
    """For each angle, how much the answers change: the share of images or tags, or the mean change of a number."""
    data = run.data
    seen = watched(f"turning test images, {run.name}", angles, len(angles), len(indices))
    found = np.stack([predict(run.config, run.net, data, indices, CPU, (float(angle),)) for angle in seen])
    if data.task in ("classes", "tags"):
        said = decisions(data.task, found)
        return 100 * (said != said[:1]).mean(axis=(1, 2))
    size = np.std(run.labels, axis=0).clip(1e-12) if data.task == "numbers" else 1.0
    return (np.abs(found - found[:1]) / size).mean(axis=(1, 2))
