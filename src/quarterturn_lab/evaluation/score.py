"""Predictions of a network on a data set, optionally averaged over rotations, and their scores."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quarterturn import Group, equivariance_error
from quarterturn_lab import ranks
from quarterturn_lab.data.augment import turned
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes
from quarterturn_lab.data.prepare import centre_crop, fetch, prepared
from quarterturn_lab.data.scaling import Scaling, scaling_of
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.tasks import TASKS, Scores
from quarterturn_lab.inference.network import for_whole_images, runner
from quarterturn_lab.inference.tiles import Run
from quarterturn_lab.inference.whole_images import object_map
from quarterturn_lab.runs.model_card import answers
from quarterturn_lab.settings.config import Config

Degrees = tuple[float, ...]
UNTURNED: Degrees = (0.0,)


def predict(
    config: Config,
    net: nn.Module,
    data: Data,
    indices: Indices,
    device: torch.device,
    degrees: Degrees = UNTURNED,
    scaling: Scaling | None = None,
) -> Any:
    """Predicted probabilities or numbers, averaged over rotations of the images by these angles.

    `(len(indices), classes or answers)`; for scenes a list of maps, without the network's margin.
    `scaling` is that of the data, if no other is given.
    """
    scaling = scaling or scaling_of(data)
    if isinstance(data, Dataset):
        return _of_images(config, net, data, scaling, indices, device, degrees)
    run = runner(for_whole_images(config, net), device)
    return [_of_scene(config, run, scaling(data.images[i]), degrees, data.task) for i in indices]


@torch.no_grad()
def _of_images(
    config: Config,
    net: nn.Module,
    data: Dataset,
    scaling: Scaling,
    indices: Indices,
    device: torch.device,
    degrees: Degrees,
) -> NDArray[np.float64]:
    net.eval()
    parts = []
    for start in range(0, len(indices), 256):
        images = prepared(fetch(data, indices[start : start + 256], device), scaling)
        found = []
        for angle in degrees:
            rotated = turned(images, angle, config.augment.border, config.augment.interpolation)
            seen = centre_crop(rotated, config.net.side).contiguous()
            found.append(answers(data.task, net(seen).float().cpu().numpy(), data.units))
        parts.append(np.mean(found, axis=0))
    return np.concatenate(parts)


def _of_scene(config: Config, run: Run, image: NDArray[np.float32], degrees: Degrees, task: str) -> NDArray[np.float64]:
    if any(angle % 90 for angle in degrees):
        raise ConfigError(
            "masks can be averaged over quarter turns only, which need no interpolation: give --turns 1, 2 or 4"
        )
    maps = []
    for angle in degrees:
        quarters = int(angle // 90)
        seen = np.ascontiguousarray(np.rot90(image, -quarters, (1, 2)))
        found = object_map(run, seen, config.net.margin, config.net.unet, task)
        maps.append(np.rot90(found, quarters, (-2, -1)))
    return np.mean(maps, axis=0)


def labels_of(config: Config, data: Data, indices: Indices) -> Any:
    """The labels that belong to the output of `predict`, in the same units."""
    if isinstance(data, Dataset):
        return data.units(data.labels[indices]) if data.units else data.labels[indices]
    return [inside(data.labels[i], config.net.margin) for i in indices]


def inside(labels: NDArray[Any], margin: int) -> NDArray[Any]:
    """The labels of the pixels that have an output."""
    return labels[margin : labels.shape[0] - margin, margin : labels.shape[1] - margin]


def evaluate(
    config: Config, net: nn.Module, data: Data, indices: Indices, device: torch.device, degrees: Degrees = UNTURNED
) -> Scores:
    """The scores on these images. Processes that train together predict a part of them each; the first one scores."""
    mine = np.array_split(indices, ranks.world())[ranks.rank()]
    parts = ranks.gathered(predict(config, net, data, mine, device, degrees) if len(mine) else None)
    some = [part for part in parts if part is not None]
    if not some:
        return ranks.agreed({})
    found = np.concatenate(some) if isinstance(data, Dataset) else [one for part in some for one in part]
    return ranks.agreed(TASKS[data.task].scores(found, labels_of(config, data, indices)))


def examples(config: Config, data: Data, indices: Indices) -> torch.Tensor:
    """Inputs of the network for checks: images, or the middle of scenes."""
    scaling = scaling_of(data)
    if isinstance(data, Dataset):
        return centre_crop(prepared(torch.from_numpy(data.images[indices]), scaling), config.net.side)
    assert isinstance(data, Scenes)
    parts = []
    for i in indices:
        image = torch.from_numpy(scaling(data.images[i]))[None]
        side = min(config.net.side, *image.shape[2:])
        parts.append(centre_crop(image, side))
    smallest = min(part.shape[2] for part in parts)
    return torch.cat([centre_crop(part, smallest) for part in parts])


def scene_error(config: Config, net: nn.Module, data: Scenes, index: int, group: Group) -> float:
    """The equivariance error of a whole image's mask: the largest change of a probability over the group."""
    run = runner(for_whole_images(config, net), next(net.parameters()).device)
    image = torch.from_numpy(scaling_of(data)(data.images[index]))[None]

    def mask(x: torch.Tensor) -> torch.Tensor:
        found = object_map(run, x[0].numpy(), config.net.margin, config.net.unet, data.task)
        return torch.from_numpy(found if found.ndim == 3 else found[None])[None]

    return max(equivariance_error(mask, group, image).absolute)
