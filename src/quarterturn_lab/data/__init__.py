"""Data sets by name, one file each. A loader is a function from `Settings` to a `Dataset`."""

from collections.abc import Callable
from importlib import import_module

from quarterturn.errors import unknown
from quarterturn_lab.config import Config
from quarterturn_lab.data.dataset import Dataset, Settings, subset
from quarterturn_lab.errors import DataError

LOADERS = {
    "synthetic": "quarterturn_lab.data.synthetic",
    "plankton": "quarterturn_lab.data.plankton",
    "folder": "quarterturn_lab.data.folder",
    "mnist-rot": "quarterturn_lab.data.mnist",
}
PLANNED = ("galaxies", "buildings")


def loader(name: str) -> Callable[[Settings], Dataset]:
    """The loader of that name."""
    if name in PLANNED:
        raise DataError(f"there is no loader for {name} yet: its networks can be built and counted, not trained")
    if name not in LOADERS:
        raise unknown("loader", name, LOADERS)
    return import_module(LOADERS[name]).load


def load(config: Config) -> Dataset:
    """The data of a run, with the part of the training images that its seed draws."""
    settings = Settings(
        folder=config.data,
        side=config.net.side,
        channels=config.net.channels,
        longest=config.longest,
        invert=config.invert,
        skip_bad=config.skip_bad,
        max_pixels=config.max_pixels,
    )
    return subset(loader(config.loader)(settings), config.train_size, config.seed)
