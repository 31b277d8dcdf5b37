"""Predictions of a network on a data set, optionally averaged over rotations, and their scores."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quarterturn import Group, act, equivariance_error
from quarterturn_lab import ranks
from quarterturn_lab.data.augment import turned
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes, ragged
from quarterturn_lab.data.prepare import centre_crop, fetch, prepared
from quarterturn_lab.data.scaling import Scaling, scaling_of
from quarterturn_lab.data.voxels import turns_of
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.tasks import TASKS, Scores
from quarterturn_lab.evaluation.volumes import volume_scores
from quarterturn_lab.inference.network import for_whole_images, runner, tiled_network
from quarterturn_lab.inference.tiles import TILE, VOXELS, Network, Run
from quarterturn_lab.inference.whole_images import joined, object_map
from quarterturn_lab.runs.model_card import answers, probabilities
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
    whole = for_whole_images(config, net)
    if data.axes == 3:
        if degrees != UNTURNED:
            raise ConfigError("averaging over --turns is for images, and these are volumes: leave it out")
        network = tiled_network(whole, config.net.channels, device)
        return [_of_volume(network, scaling(data.images[i], 3), data.task) for i in indices]
    run = runner(whole, device)
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


def _of_volume(network: Network, volume: NDArray[np.float32], task: str) -> NDArray[np.float64]:
    """Probabilities of a whole volume: in one piece if it is small, else by tiles, which give the same."""
    sizes = tuple(volume.shape[1:])
    if int(np.prod(sizes)) <= VOXELS:
        return probabilities(task, network.run(volume[None]))[0]
    view = network.view(sizes)
    return joined(view, ((tile, probabilities(task, part[None])[0]) for tile, part in view.parts(volume, TILE)))


def turned_volumes(data: Scenes, indices: Indices) -> Scenes:
    """These volumes, each turned by another turn of its group: the turns of the cube, or those its spacing allows."""
    images, labels, spacings = [], [], []
    for place, i in enumerate(indices):
        group = turns_of(data.spacings[i])
        element = 1 + place % max(1, group.order - 1) if group.order > 1 else 0
        image, label = torch.from_numpy(data.images[i].copy()), torch.from_numpy(data.labels[i].astype(np.int64))
        images.append(act(image[None], group, element)[0].numpy())
        labels.append(act(label[None, None], group, element)[0, 0].numpy())
        spacings.append(tuple(data.spacings[i][abs(axis) - 1] for axis in group.elements[element]))
    places = np.arange(len(indices))
    return replace(
        data,
        images=ragged(images),
        labels=ragged(labels),
        spacings=tuple(spacings),
        names=tuple(data.names[i] for i in indices),
        train=places,
        valid=places,
        test=places,
    )


def labels_of(config: Config, data: Data, indices: Indices) -> Any:
    """The labels that belong to the output of `predict`, in the same units."""
    if isinstance(data, Dataset):
        return data.units(data.labels[indices]) if data.units else data.labels[indices]
    return [inside(data.labels[i], config.net.margin) for i in indices]


def inside(labels: NDArray[Any], margin: int) -> NDArray[Any]:
    """The labels of the pixels that have an output."""
    return labels[tuple(slice(margin, length - margin) for length in labels.shape)]


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
    return ranks.agreed(scores_of(data, indices, found, labels_of(config, data, indices)))


def scores_of(data: Data, indices: Indices, predicted: Any, labels: Any) -> Scores:
    """The scores of what was predicted for these images or volumes."""
    if isinstance(data, Scenes) and data.axes == 3:
        return volume_scores(predicted, labels, [data.spacings[i] for i in indices])
    return TASKS[data.task].scores(predicted, labels)


def examples(config: Config, data: Data, indices: Indices) -> torch.Tensor:
    """Inputs of the network for checks: images, or the middle of scenes."""
    scaling = scaling_of(data)
    if isinstance(data, Dataset):
        return centre_crop(prepared(torch.from_numpy(data.images[indices]), scaling), config.net.side)
    assert isinstance(data, Scenes)
    parts = []
    for i in indices:
        image = torch.from_numpy(scaling(data.images[i], data.axes))[None]
        side = min(config.net.side, *image.shape[2:])
        parts.append(centre_crop(image, side))
    smallest = min(part.shape[2] for part in parts)
    return torch.cat([centre_crop(part, smallest) for part in parts])


def scene_error(config: Config, net: nn.Module, data: Scenes, index: int, group: Group) -> float:
    """The equivariance error of a whole image's mask: the largest change of a probability over the group."""
    device, whole = next(net.parameters()).device, for_whole_images(config, net)
    image = torch.from_numpy(scaling_of(data)(data.images[index], data.axes))[None]
    if data.axes == 3:
        network = tiled_network(whole, config.net.channels, device)
        return max(
            equivariance_error(
                lambda x: torch.from_numpy(_of_volume(network, x[0].numpy(), data.task))[None], group, image
            ).absolute
        )
    run = runner(whole, device)

    def mask(x: torch.Tensor) -> torch.Tensor:
        found = object_map(run, x[0].numpy(), config.net.margin, config.net.unet, data.task)
        return torch.from_numpy(found if found.ndim == 3 else found[None])[None]

    return max(equivariance_error(mask, group, image).absolute)
