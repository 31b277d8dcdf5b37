"""Augmented training batches of images, or of tiles of scenes, with their labels."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quarterturn import named
from quarterturn_lab.data.augment import (
    brightened,
    colours,
    corners,
    matrices,
    moved,
    source_side,
    volume_matrices,
    warped,
)
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes
from quarterturn_lab.data.prepare import centre_crop, fetch, prepared
from quarterturn_lab.data.scaling import Scaling, scaling_of
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training.order import epoch_order, samples_of, steps_per_epoch

Batch = tuple[Tensor, Tensor]
Sized = tuple[Tensor, Tensor, int]


class Batches:
    """Batches by step. The next one is prepared in another thread during the current step.

    Where several processes share a batch, each makes its own part: the one with number `rank` of `world`.
    """

    def __init__(self, config: Config, data: Data, device: torch.device, rank: int = 0, world: int = 1) -> None:
        self.config, self.data, self.device, self.rank, self.world = config, data, device, rank, world
        self.scaling, self.per_epoch = scaling_of(data), steps_per_epoch(config, data)
        self.order: tuple[int, Indices] = (-1, data.train)

    def make(self, step: int) -> Sized:
        """The inputs and labels of a step, and the number of images in the whole batch."""
        epoch, place = divmod(step, self.per_epoch)
        if self.order[0] != epoch:
            self.order = (epoch, epoch_order(self.config, self.data, epoch))
        size = self.config.batch_images
        whole = self.order[1][place * size : (place + 1) * size]
        mine = shares(len(whole), self.config.accumulate, self.rank, self.world)
        draws = np.concatenate([whole[part] for part, _ in mine])
        with torch.no_grad():
            return *batch(self.config, self.data, self.scaling, epoch, draws, self.device), len(whole)

    def from_step(self, first: int, last: int) -> Iterator[tuple[int, Sized, float]]:
        """Yields (step, batch, seconds spent waiting)."""
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(self.make, first)
            for step in range(first, last):
                start = time.perf_counter()
                made = coming.result()
                waited = time.perf_counter() - start
                if step + 1 < last:
                    coming = pool.submit(self.make, step + 1)
                yield step, made, waited


def shares(images: int, parts: int, rank: int, world: int) -> list[tuple[slice, bool]]:
    """The images of a process in each part of a batch, and whether these are the images of the whole part.

    A part with fewer images than there are processes is for all of them: each has all of it.

    >>> shares(10, 2, rank=1, world=2)
    [(slice(3, 5, None), False), (slice(8, 10, None), False)]
    >>> shares(3, 2, rank=1, world=2)
    [(slice(1, 2, None), False), (slice(2, 3, None), True)]
    """
    found = []
    for part in np.array_split(np.arange(images), parts):
        if len(part):
            whole = len(part) < world
            mine = part if whole else np.array_split(part, world)[rank]
            found.append((slice(int(mine[0]), int(mine[-1]) + 1), whole))
    return found


def batch(config: Config, data: Data, scaling: Scaling, epoch: int, draws: Indices, device: torch.device) -> Batch:
    """The inputs and labels of some draws of an epoch, augmented."""
    warps, side = config.augment, config.net.side
    make = matrices if config.net.axes == 2 else volume_matrices
    maps, samples = make(warps, config.seed, epoch, draws), samples_of(config, data, draws)
    if isinstance(data, Dataset):
        images = prepared(fetch(data, samples, device), scaling)
        inputs = warped(images, maps, side, warps.border, warps.interpolation)
        labels = torch.from_numpy(data.labels[samples]).to(device)
    else:
        pixels, numbers = tiles(config, data, epoch, draws)
        images = prepared(torch.from_numpy(pixels).to(device), scaling)
        inputs = warped(images, maps, side, warps.border, warps.interpolation)
        turned = warped(torch.from_numpy(numbers).to(device), maps, side, "reflection", "nearest")
        if warps.moves:  # a volume and its labels by the same element
            by = (named(warps.moves), config.seed, epoch, draws)
            inputs, turned = moved(inputs, *by), moved(turned, *by)
        if warps.intensity:
            inputs = brightened(inputs, warps.intensity, config.seed, epoch, draws)
        labels = centre_crop(turned, side - 2 * config.net.margin)[:, 0].long()
    if warps.colour:
        black, white = (prepared(torch.full((1, 3, 1, 1), value, device=device), scaling) for value in (0.0, 255.0))
        shift = colours(warps, config.seed, epoch, draws).to(device)
        inputs = (inputs + (white - black) * shift).clamp(black, white)
    return inputs, labels


def tiles(config: Config, data: Scenes, epoch: int, draws: Indices) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Square tiles at random positions, `(N, C, R, R)`, and their object masks or classes, `(N, 1, R, R)`; or cubes.

    They are larger than the network's input, so that augmentation never reaches outside a tile. Images that are too
    small are extended by reflection.
    """
    axes = config.net.axes
    side = source_side(config.augment, config.net.side, axes)
    places = corners(config.seed, epoch, draws, axes)
    images, labels = [], []
    for sample, place in zip(samples_of(config, data, draws), places, strict=True):
        image, label = data.images[sample // config.tiles], data.labels[sample // config.tiles]
        for axis, part in enumerate(place):
            window = _window(label.shape[axis], side, part)
            image, label = (
                image[(..., window, *[slice(None)] * (axes - 1 - axis))],
                label[(*[slice(None)] * axis, window)],
            )
        images.append(image)
        labels.append((label if data.task == "regions" else label > 0)[None])
    return np.stack(images), np.stack(labels).astype(np.float32)


def _window(length: int, side: int, part: float) -> NDArray[np.int64] | slice:
    """The positions of a window along an axis; a short axis is extended by reflection."""
    if length >= side:
        start = int(part * (length - side + 1))
        return slice(start, start + side)
    positions = np.arange(side) - (side - length) // 2
    positions = positions % (2 * length)
    return np.where(positions < length, positions, 2 * length - 1 - positions)
