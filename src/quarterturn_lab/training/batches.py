"""Augmented training batches of images, or of tiles of scenes, with their labels."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quarterturn_lab.data.augment import colours, corners, matrices, source_side, warped
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes
from quarterturn_lab.data.prepare import centre_crop, fetch, prepared
from quarterturn_lab.data.scaling import Scaling
from quarterturn_lab.settings.config import Config

Batch = tuple[Tensor, Tensor]


def batch(config: Config, data: Data, scaling: Scaling, epoch: int, samples: Indices, device: torch.device) -> Batch:
    """The inputs and labels of some samples. Sample number s is tile `s % tiles` of image `s // tiles`."""
    warps, side = config.augment, config.net.side
    maps = matrices(warps, config.seed, epoch, samples)
    if isinstance(data, Dataset):
        images = prepared(fetch(data, samples, device), scaling)
        inputs = warped(images, maps, side, warps.border)
        labels = torch.from_numpy(data.labels[samples]).to(device)
    else:
        pixels, numbers = tiles(config, data, epoch, samples)
        inputs = warped(prepared(torch.from_numpy(pixels).to(device), scaling), maps, side, warps.border)
        turned = warped(torch.from_numpy(numbers).to(device), maps, side, "reflection", "nearest")
        labels = centre_crop(turned, side - 2 * config.net.margin)[:, 0].long()
    if warps.colour:
        black, white = (prepared(torch.full((1, 3, 1, 1), value, device=device), scaling) for value in (0.0, 255.0))
        shift = colours(warps, config.seed, epoch, samples).to(device)
        inputs = (inputs + (white - black) * shift).clamp(black, white)
    return inputs, labels


def tiles(config: Config, data: Scenes, epoch: int, samples: Indices) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Square tiles at random positions, `(N, C, R, R)`, and their object masks, `(N, 1, R, R)`.

    They are larger than the network's input, so that augmentation never reaches outside a tile. Images that are too
    small are extended by reflection.
    """
    side = source_side(config.augment, config.net.side)
    places = corners(config.seed, epoch, samples)
    images, labels = [], []
    for sample, place in zip(samples, places, strict=True):
        image, label = data.images[sample // config.tiles], data.labels[sample // config.tiles]
        rows, columns = (_window(length, side, part) for length, part in zip(image.shape[1:], place, strict=True))
        images.append(image[:, rows][:, :, columns])
        labels.append((label[rows][:, columns] > 0)[None])
    return np.stack(images), np.stack(labels).astype(np.float32)


def _window(length: int, side: int, part: float) -> NDArray[np.int64] | slice:
    """The positions of a window along an axis; a short axis is extended by reflection."""
    if length >= side:
        start = int(part * (length - side + 1))
        return slice(start, start + side)
    positions = np.arange(side) - (side - length) // 2
    positions = positions % (2 * length)
    return np.where(positions < length, positions, 2 * length - 1 - positions)
