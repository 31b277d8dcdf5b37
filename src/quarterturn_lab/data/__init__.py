"""Data sets by name, one file each. A loader is a function from `Settings` to a `Dataset`, or to `Scenes`."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from quarterturn_lab.data.dataset import Data, Settings, subset

if TYPE_CHECKING:  # so that reading images does not need torch
    from quarterturn_lab.config import Config

LOADERS = {
    "synthetic": "quarterturn_lab.data.synthetic",
    "plankton": "quarterturn_lab.data.plankton",
    "plankton-parts": "quarterturn_lab.data.plankton_parts",
    "folder": "quarterturn_lab.data.folder",
    "mnist-rot": "quarterturn_lab.data.mnist",
    "mnist-rot-held": "quarterturn_lab.data.mnist_held",
    "galaxies": "quarterturn_lab.data.galaxies",
    "aerial": "quarterturn_lab.data.aerial",
    "nuclei": "quarterturn_lab.data.nuclei",
}


def loader(name: str) -> Callable[[Settings], Data]:
    """The loader of that name."""
    if name not in LOADERS:
        from quarterturn.errors import unknown

        raise unknown("loader", name, LOADERS)
    return import_module(LOADERS[name]).load


def settings_of(config: "Config") -> Settings:
    """What a run asks its loader for."""
    return Settings(
        folder=config.data,
        side=config.net.side,
        channels=config.net.channels,
        longest=config.longest,
        invert=config.invert,
        skip_bad=config.skip_bad,
        max_pixels=config.max_pixels,
        floats=config.floats,
    )


def load(config: "Config") -> Data:
    """The data of a run, with the part of the training images that its seed draws."""
    return subset(loader(config.loader)(settings_of(config)), config.train_size, config.seed)
