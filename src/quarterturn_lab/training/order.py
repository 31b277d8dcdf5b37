"""Which samples an epoch has, and in which order. It depends only on (seed, epoch).

A sample is a tile of an image, or an image: sample s is tile `s % tiles` of image `s // tiles`. A draw is a sample with
its own augmentation: draw d is of sample `d % samples`. A sample that is drawn once has the draw of its own number.
"""

import math

import numpy as np

from quarterturn_lab.data.dataset import Data, Indices, Scenes
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.seeds import key
from quarterturn_lab.settings.config import Config


def tiles_of(config: Config, data: Data) -> int:
    """The number of samples from each training image in an epoch."""
    return config.tiles if isinstance(data, Scenes) else 1


def steps_per_epoch(config: Config, data: Data) -> int:
    return math.ceil(len(data.train) * tiles_of(config, data) / config.batch_images)


def samples_of(config: Config, data: Data, draws: Indices) -> Indices:
    """The samples of these draws."""
    return draws % (len(data.names) * tiles_of(config, data))


def epoch_order(config: Config, data: Data, epoch: int) -> Indices:
    """The draws of an epoch in random order: each sample once, or, if balanced, each class equally often."""
    rng = np.random.default_rng(key("order", config.seed, epoch))
    if config.balanced:
        return rng.permutation(_balanced(data, rng))
    tiles = tiles_of(config, data)
    samples = (data.train[:, None] * tiles + np.arange(tiles)).ravel()
    return rng.permutation(samples)


def _balanced(data: Data, rng: np.random.Generator) -> Indices:
    """As many draws as training images, the same number of each class: its images again and again, reshuffled.

    If the number cannot be divided, some classes, others in each epoch, have one draw more.
    """
    if data.task != "classes":
        raise ConfigError(f"--balanced is for images with classes, not for {data.task}: leave it out")
    labels = data.labels[data.train]  # type: ignore[index]  # a data set with classes has an array of them
    present = rng.permutation(np.unique(labels))
    draws = []
    for place, label in enumerate(present):
        members = data.train[labels == label]
        count = len(labels) // len(present) + (place < len(labels) % len(present))
        repeats = -(-count // len(members))
        rounds = [rng.permutation(members) + again * len(data.names) for again in range(repeats)]
        draws.append(np.concatenate([*rounds, members[:0]])[:count])
    return np.concatenate(draws)
