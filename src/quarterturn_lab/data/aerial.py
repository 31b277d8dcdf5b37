"""Aerial images with masks, in the layout of Mnih's Massachusetts buildings and roads data sets:

    DIR/{train,valid,test}/sat/<name>.tiff   the image, in colour
    DIR/{train,valid,test}/map/<name>.tif    the mask: above 0 is a building or a road

An image and its mask have the same name; extensions may differ (tif, tiff, png or jpg).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from quarterturn_lab.data import image_mask_pairs
from quarterturn_lab.data.dataset import Scenes, Settings
from quarterturn_lab.data.folders import existing
from quarterturn_lab.errors import DataError

PARTS = ("train", "valid", "test")
TREE = (
    "a folder with images in sat/ and masks in map/:\n"
    "  {folder}/{{train,valid,test}}/sat/<name>.tiff\n  {folder}/{{train,valid,test}}/map/<name>.tif"
)
NESTED = ("mass_buildings", "mass_roads")


def load(settings: Settings) -> Scenes:
    """The training, validation and test folders; valid/ may be missing. Images must be at least as large as a tile."""
    folder = inside(existing(settings.folder, TREE))
    tree = TREE.format(folder=folder)
    found: list[image_mask_pairs.Pair] = []
    for part in PARTS:
        if part == "valid" and not (folder / part).exists():
            continue
        for kind in ("sat", "map"):
            if not (folder / part / kind).is_dir():
                raise DataError(f"{folder / part / kind} is missing; expected {tree}")
        here = image_mask_pairs.matched(folder / part / "sat", folder / part / "map", f"{part}/", settings.skip_bad)
        if not here:
            raise DataError(f"no images in {folder / part / 'sat'}; expected {tree}")
        found += here
    scenes = image_mask_pairs.read("aerial", found, settings, instances=False, least=settings.side)
    parts = np.array([name.split("/")[0] for name in scenes.names])
    train, valid, test = (np.flatnonzero(parts == part) for part in PARTS)
    return replace(scenes, train=train, valid=valid, test=test)


def inside(folder: Path) -> Path:
    """The folder that holds train/, which may be one level down."""
    return next((folder / name for name in NESTED if (folder / name / "train").is_dir()), folder)
