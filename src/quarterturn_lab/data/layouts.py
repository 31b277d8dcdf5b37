"""Which files of a folder are the images, and where their labels are: the layouts of people's own images.

DIR/<class>/.../<image>                      one folder for each class
DIR/{train,val,test}/<class>/.../<image>     the same, already split
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quarterturn_lab.data import images
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.folders import existing
from quarterturn_lab.errors import DataError

PARTS = {
    "train": "train",
    "training": "train",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
TREE = """images in one of these layouts:
  {folder}/<class>/<image>.jpg                   one folder for each class (also png, tif, fits ...)
  {folder}/{{train,val,test}}/<class>/<image>.jpg  the same, already split"""


@dataclass(frozen=True)
class Layout:
    """The images of a folder, by name, with their labels. Nothing has been decoded yet."""

    words: str  # what it is, for people
    root: Path
    task: str
    classes: tuple[str, ...]
    files: dict[str, Path]
    labels: dict[str, Any]  # by name: the number of a class
    part: dict[str, str] = field(default_factory=dict)  # train, valid or test by name, where the folder says so
    group: dict[str, str] = field(default_factory=dict)  # specimen by name, for a split by specimens
    bad: dict[str, str] = field(default_factory=dict)  # by name: why a file cannot be used
    notes: tuple[str, ...] = ()

    def without(self, bad: dict[str, str]) -> "Layout":
        """The layout without some files that turned out to be bad."""
        if not bad:
            return self
        files = {name: path for name, path in self.files.items() if name not in bad}
        return replace(self, files=files, bad={**self.bad, **bad})


def layout_of(settings: Settings) -> Layout:
    """The layout of a folder; one that fits none of them raises, and shows them."""
    folder = existing(settings.folder, TREE)
    found = _class_folders(folder)
    if not found.files:
        raise DataError(f"no images in {folder}: {_contents(folder)}; expected {TREE.format(folder=folder)}")
    if len(found.classes) < 2:
        raise DataError(
            f"{folder} has only one class ({found.classes[0]}), two or more are needed; expected "
            f"{TREE.format(folder=folder)}"
        )
    return found


# --- class folders ----------------------------------------------------------------------------------------------------


def _class_folders(folder: Path) -> Layout:
    parts = parts_of(folder)
    if set(parts.values()) == {"train"}:  # as of a challenge: DIR/train/<class>/
        folder, parts = next(iter(parts)), {}
    files: dict[str, Path] = {}
    bad: dict[str, str] = {}
    part: dict[str, str] = {}
    for root, name_of_part in (parts or {folder: ""}).items():
        for group in subfolders(root):
            here, unusable = images_in(group, f"{root.name}/{group.name}/" if parts else f"{group.name}/")
            files |= here
            bad |= unusable
            part |= {name: name_of_part for name in here if name_of_part}
    class_of = {name: name.split("/")[1 if parts else 0] for name in files}
    classes = tuple(sorted(set(class_of.values())))
    number = {name: i for i, name in enumerate(classes)}
    return Layout(
        "one folder for each class" + (", already split" if parts else ""),
        folder,
        "classes",
        classes,
        files,
        {name: number[class_of[name]] for name in files},
        part,
        {},
        bad,
    )


def parts_of(folder: Path) -> dict[Path, str]:
    """The folders of the user's own split, and what each is for; empty if there is no training folder."""
    found = {path: PARTS[path.name.lower()] for path in subfolders(folder) if path.name.lower() in PARTS}
    return found if "train" in found.values() else {}


# --- files ------------------------------------------------------------------------------------------------------------


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith((".", "__"))]


def images_in(folder: Path, prefix: str = "") -> tuple[dict[str, Path], dict[str, str]]:
    """The image files in a folder, at any depth, by name; and those that cannot be used, with the reason."""
    good: dict[str, Path] = {}
    bad: dict[str, str] = {}
    for here, inner, names in os.walk(folder, followlinks=True):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
        for name in sorted([*names, *inner]):
            path = Path(here, name)
            if name.startswith(".") or path.suffix.lower() not in images.SUFFIXES:
                continue
            label = prefix + path.relative_to(folder).as_posix()
            fault = images.fault_of(path)
            if fault:
                bad[label] = fault
            else:
                good[label] = path
        inner[:] = [name for name in inner if Path(name).suffix.lower() not in images.SUFFIXES]
    return good, bad


def _contents(folder: Path) -> str:
    """What a folder without images holds, in a few words."""
    names = sorted(path.name for path in folder.iterdir())
    return f"found {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "it is empty"
