"""Microscopy images with instance maps of nuclei:

    DIR/images/<name>.png   grey or colour, any size
    DIR/labels/<name>.png   16 bits: 0 is background, each other number is a nucleus

A tenth of the images, chosen by name, is for testing.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from quarterturn_lab.data import image_mask_pairs, splits
from quarterturn_lab.data.dataset import Scenes, Settings
from quarterturn_lab.data.folders import existing
from quarterturn_lab.errors import DataError

TREE = "images and label maps with the same names:\n  {folder}/images/<name>.png\n  {folder}/labels/<name>.png"


def load(settings: Settings) -> Scenes:
    """Images and label maps of any size."""
    folder = inside(existing(settings.folder, TREE))
    tree = TREE.format(folder=folder)
    for kind in ("images", "labels"):
        if not (folder / kind).is_dir():
            raise DataError(f"{folder / kind} is missing; expected {tree}")
    found = image_mask_pairs.matched(folder / "images", folder / "labels", "", settings.skip_bad)
    if not found:
        raise DataError(f"no images in {folder / 'images'}; expected {tree}")
    scenes = image_mask_pairs.read("nuclei", found, settings, instances=True)
    test = splits.stratified(scenes.names, np.zeros(len(scenes.names), dtype=np.int64))
    if not test.any() or test.all():
        raise DataError(f"{len(scenes.names)} images in {folder} are too few to train and test: give at least 10")
    return replace(scenes, classes=("background", "nucleus"), train=np.flatnonzero(~test), test=np.flatnonzero(test))


def inside(folder: Path) -> Path:
    """The folder that holds images/ and labels/, which may be one level down."""
    return folder / "nuclei" if (folder / "nuclei" / "images").is_dir() else folder
