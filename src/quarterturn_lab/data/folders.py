"""Images in one folder for each class: `DIR/<class>/<image>`. Classes are sorted by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import images, splits
from quarterturn_lab.data.dataset import Dataset, Settings
from quarterturn_lab.data.read_all import squares
from quarterturn_lab.errors import DataError

TREE = "one folder for each class, with its images:\n  {folder}/<class>/<image>.jpg   (also png, tif, bmp, gif ...)"

Split = Callable[[list[str], NDArray[np.int64]], NDArray[np.bool_]]


def load(settings: Settings) -> Dataset:
    """The images of all class folders; a tenth of each class, or `test_part`, is for testing."""
    folder = existing(settings.folder, TREE)
    split = partial(splits.stratified, part=settings.test_part) if settings.test_part else None
    return from_class_folders(folder, settings, TREE.format(folder=folder), split)


def existing(folder: str | None, tree: str) -> Path:
    """The folder, or an error that shows the expected tree."""
    if folder is None:
        raise DataError(f"this experiment needs images: give --data DIR, {tree.format(folder='DIR')}")
    path = Path(folder)
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; expected {tree.format(folder=path)}")
    return path


def files_in(folder: Path, tree: str) -> list[tuple[str, Path]]:
    """Names `<class>/<image>` and paths of all images, sorted, without hidden files."""
    found = [
        (f"{group.name}/{path.name}", path)
        for group in sorted(folder.iterdir())
        if group.is_dir() and not group.name.startswith(".")
        for path in sorted(group.iterdir())
        if path.suffix.lower() in images.SUFFIXES and not path.name.startswith(".")
    ]
    if not found:
        inside = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise DataError(f"no images in {folder}: found {inside}; expected {tree}")
    return found


def from_class_folders(folder: Path, settings: Settings, tree: str, split: Split | None = None) -> Dataset:
    """Read the images, from the cache if possible, and split them. Unreadable images raise, or are skipped."""
    found = files_in(folder, tree)
    read = squares("class folders", found, settings)
    classes = tuple(sorted({name.split("/")[0] for name, _ in found}))
    if len(classes) < 2:
        raise DataError(f"{folder} has only one class ({classes[0]}), two or more are needed; expected {tree}")
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[name.split("/")[0]] for name in read.names], dtype=np.int64)
    test = (split or splits.stratified)(read.names, labels)
    if not test.any() or test.all():
        raise DataError(f"{len(read.names)} images in {folder} are too few to train and test: give at least 20")
    return Dataset(
        read.array,
        labels,
        classes,
        tuple(read.names),
        np.flatnonzero(~test),
        np.flatnonzero(test),
        read.fingerprint,
        tuple(read.bad),
        bands=tuple(read.bands),
    )
