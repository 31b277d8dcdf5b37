"""Plankton, as the National Data Science Bowl published it: `train/<class>/<id>.jpg`, 121 classes.

The paper's own split is not to be had. Ours is the rule of `splits.stratified`: on all 30,336 images it gives 27,299
for training and 3,037 for testing, on any subset the same fractions. For a set of 24,221 of them the test names are in
the repository too, in committed_splits/plankton_test.txt, and are used where the folder holds just these images.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import splits
from quarterturn_lab.data.dataset import Dataset, Settings
from quarterturn_lab.data.folders import existing, from_class_folders

TREE = "the folder that holds train/, one folder for each class in it:\n  {folder}/train/<class>/<id>.jpg"
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
    """By the list where it fits, else by the rule; on the images of the list both say the same."""
    if len(names) == LISTED_FOR:
        listed = splits.committed(LISTED)
        if listed <= set(names):
            return np.array([name in listed for name in names])
    return splits.stratified(names, labels)
