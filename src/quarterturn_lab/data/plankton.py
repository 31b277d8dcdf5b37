"""Plankton, in the layout of the National Data Science Bowl: `train/<class>/<id>.jpg`, 121 classes.

The paper's split is not available. Ours is `splits.stratified`: of all 30,336 images, 27,299 are for training and 3,037
for testing; a subset is split in the same proportion. For one subset of 24,221 images the test set is also listed in
committed_splits/plankton_test.txt, and the list is used if the folder holds exactly these images.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import splits
from quarterturn_lab.data.dataset import Dataset, Settings
from quarterturn_lab.data.folders import existing, from_class_folders

TREE = "a folder with train/, which has one folder for each class:\n  {folder}/train/<class>/<id>.jpg"
LISTED = "plankton_test.txt"
LISTED_FOR = 24_221  # images


def load(settings: Settings) -> Dataset:
    """The labelled images; `DIR` may be the folder above train/ or train/ itself."""
    given = existing(settings.folder, TREE)
    return from_class_folders(inside(given), settings, TREE.format(folder=given), split)


def inside(folder: Path) -> Path:
    """The folder of the class folders."""
    nested = (folder / "train", folder / "plankton" / "train")
    return next((path for path in nested if path.is_dir()), folder)


def split(names: list[str], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for test images: by the list if it fits, else by the rule. On the listed images both agree."""
    if len(names) == LISTED_FOR:
        listed = splits.committed(LISTED)
        if listed <= set(names):
            return np.array([name in listed for name in names])
    return splits.stratified(names, labels)
