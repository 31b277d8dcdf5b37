"""Data sets by name, one file each. A loader is a function from `Settings` to `Dataset` or `Scenes`."""

from collections.abc import Callable
from importlib import import_module

from quarterturn_lab.data.dataset import Data, Settings

OWN_IMAGES = "images"  # the loader of the user's own images, whatever their layout

LOADERS = {
    "synthetic": "quarterturn_lab.data.synthetic",
    "synthetic-cells": "quarterturn_lab.data.synthetic_cells",
    "synthetic-volumes": "quarterturn_lab.data.synthetic_volumes",
    "plankton": "quarterturn_lab.data.plankton",
    "plankton-parts": "quarterturn_lab.data.plankton_three_way",
    "folder": "quarterturn_lab.data.folders",
    "mnist-rot": "quarterturn_lab.data.mnist",
    "mnist-rot-held": "quarterturn_lab.data.mnist_validation",
    "galaxies": "quarterturn_lab.data.galaxies",
    "aerial": "quarterturn_lab.data.aerial",
    "nuclei": "quarterturn_lab.data.nuclei",
    OWN_IMAGES: "quarterturn_lab.data.own_images",
}


def loader(name: str) -> Callable[[Settings], Data]:
    """The loader of that name."""
    if name not in LOADERS:
        from quarterturn_lab.errors import unknown

        raise unknown("loader", name, LOADERS)
    return import_module(LOADERS[name]).load
