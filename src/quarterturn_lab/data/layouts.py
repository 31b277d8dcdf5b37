"""Which files of a folder are the images, and where their labels are. The layouts of people's own images:

    DIR/<class>/.../<image>                      one folder for each class
    DIR/{train,val,test}/<class>/.../<image>     the same, already split
    DIR/<labels>.csv, DIR/.../<image>            a table with a row for each image, see tables.py
    DIR/images/<name>, DIR/masks/<name>          a mask for each image, see masks.py; also below train, val and test
    DIR/imagesTr/<name>, DIR/labelsTr/<name>     volumes with labels, see volumes.py; images and labels will do too

Nothing is decoded here but masks.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quarterturn_lab.data import images, masks, tables, volumes
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.folders import existing
from quarterturn_lab.data.masks import Meaning
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.files import read_json, read_text

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
OTHERS = {  # kinds of files that are not read, and what to do
    ".heic": "save them as JPEG or PNG",
    ".heif": "save them as JPEG or PNG",
    ".avif": "save them as JPEG or PNG",
    ".svg": "save them as PNG",
    ".pdf": "save their pages as PNG",
    ".dcm": "save the slices as TIFF or PNG",
    ".nii": "volumes go into images and labels, or imagesTr and labelsTr",
    ".nii.gz": "volumes go into images and labels, or imagesTr and labelsTr",
    ".mha": "save the volumes as NIfTI (.nii.gz)",
    ".mhd": "save the volumes as NIfTI (.nii.gz)",
    ".nrrd": "save the volumes as NIfTI (.nii.gz)",
    ".svs": "save tiles of the slides as TIFF or PNG",
    ".ndpi": "save tiles of the slides as TIFF or PNG",
    ".czi": "save the images as TIFF, with Fiji for example",
    ".lif": "save the images as TIFF, with Fiji for example",
    ".nd2": "save the images as TIFF, with Fiji for example",
    ".npy": "save the arrays as TIFF",
    ".npz": "save the arrays as TIFF",
    ".h5": "save the arrays as TIFF",
    ".mp4": "save the frames to use as images",
    ".avi": "save the frames to use as images",
    ".zip": "unpack them",
    ".tar": "unpack them",
    ".tar.gz": "unpack them",
    ".tgz": "unpack them",
}
DESCRIPTION = "dataset.json"  # of volumes: names of classes and channels
HIDDEN = (".", "__", "@eaDir")  # what the names of folders begin with that systems make: .git, __MACOSX, @eaDir
TREE = (
    "images in one of these layouts:\n"
    "  {folder}/<class>/<image>.jpg                           one folder for each class (also png, tif, fits ...)\n"
    "  {folder}/{{train,val,test}}/<class>/<image>.jpg          the same, already split\n"
    "  {folder}/<labels>.csv, {folder}/.../<image>.jpg        a table with a row for each image\n"
    "  {folder}/images/<name>.png, {folder}/masks/<name>.png  a mask for each image\n"
    "  {folder}/images/<name>.nii.gz, {folder}/labels/...     volumes with labels (also imagesTr and labelsTr)"
)


@dataclass(frozen=True)
class Layout:
    """The images of a folder, by name, with their labels. Nothing has been decoded yet."""

    words: str  # what it is, for people
    root: Path
    task: str
    classes: tuple[str, ...]
    files: dict[str, Path]
    labels: dict[str, Any]  # by name: the number of a class; a tuple of tags (0 or 1), numbers or shares; a mask
    part: dict[str, str] = field(default_factory=dict)  # train, valid or test by name, where the folder says so
    group: dict[str, str] = field(default_factory=dict)  # specimen by name, for a split by specimens
    bad: dict[str, str] = field(default_factory=dict)  # by name: why a file cannot be used
    notes: tuple[str, ...] = ()
    source: str = ""  # the file with the labels
    meaning: Meaning | None = None  # of the values of masks
    axes: int = 2  # of images, or of volumes
    channels: int | None = None  # of volumes, if dataset.json names them

    def without(self, bad: dict[str, str]) -> "Layout":
        """The layout without some files that turned out to be bad."""
        if not bad:
            return self
        files = {name: path for name, path in self.files.items() if name not in bad}
        return replace(self, files=files, bad={**self.bad, **bad})

    def strata(self, names: Sequence[str]) -> list[object]:
        """What each image should be like in every part of a split: its class, or the rarest of its tags."""
        labels = [self.labels[name] for name in names]
        if self.task == "classes":
            return labels
        if self.task != "tags":
            return [0] * len(labels)
        counts = [sum(label[i] for label in labels) for i in range(len(self.classes))]
        return [min((i for i, tag in enumerate(label) if tag), key=lambda i: counts[i], default=-1) for label in labels]


def layout_of(settings: Settings) -> Layout:
    """The layout of a folder; one that fits none of them raises, and shows them."""
    folder = _inside(existing(settings.folder, TREE))
    tree = TREE.format(folder=folder)
    with_masks = _with_masks(folder, settings) if settings.labels is None else None
    if with_masks:
        return _finished(with_masks, folder, settings)
    by_folders, by_table = _class_folders(folder), None
    if settings.labels != "folders":
        by_table = _with_table(folder, settings)
    if by_table and not settings.labels and len(by_folders.classes) > 1:
        raise DataError(
            f"{folder} has folders of images ({', '.join(by_folders.classes[:3])}) and a table with rows for them "
            f"({by_table.source}): give --labels folders or --labels {by_table.source} to say which has the labels"
        )
    found = by_table or by_folders
    if not found.files and not found.bad:
        _explain(folder, tree)
    if len(found.classes) < 2 and found.task == "classes":
        without = [path.name for path in _tables_of(folder, None)] if settings.labels != "folders" else []
        rows = f"; {' and '.join(without)} has no rows for its images" if without and not by_table else ""
        raise DataError(
            f"{folder} has only one class ({', '.join(found.classes)}), two are needed{rows}; expected {tree}"
        )
    if settings.task not in ("auto", found.task):
        raise ConfigError(f"--task {settings.task} is not for images with {found.words}: leave it out")
    return _finished(found, folder, settings)


def _finished(layout: Layout, folder: Path, settings: Settings) -> Layout:
    """The layout with specimens, and notes on files that are left out."""
    unsupported = other_files(folder)
    read = volumes.NIFTI if layout.axes == 3 else ()
    notes = [
        f"{count:,} files {suffix} are left out: {OTHERS[suffix]}"
        for suffix, count in unsupported.items()
        if suffix not in read
    ]
    return _with_specimens(replace(layout, notes=(*layout.notes, *notes)), settings.groups_by)


def _inside(folder: Path) -> Path:
    """The folder, or the only one in it, as archives are often unpacked."""
    inner = subfolders(folder)
    if (
        len(inner) == 1
        and inner[0].name.lower() not in PARTS
        and not any(
            path.suffix.lower() in (*images.SUFFIXES, *tables.SUFFIXES) for path in folder.iterdir() if path.is_file()
        )
    ):
        deeper = subfolders(inner[0])
        return inner[0] if deeper else folder
    return folder


def _explain(folder: Path, tree: str) -> None:
    """Raise, with what is there instead of images and labels."""
    if list(folder.glob("*-idx?-ubyte*")):
        raise DataError(
            f"{folder} has MNIST's idx files: train on them with `quarterturn train mnist-rot/roll-all-quarter --data "
            f"{folder}`, or save the digits as images, one folder for each class"
        )
    here, _ = images_in(folder)
    if here:
        raise DataError(f"{folder} has {len(here):,} images, but no labels; expected {tree}")
    for suffix, count in other_files(folder).items():
        raise DataError(f"no images in {folder}, but {count:,} file{'s' * (count > 1)} {suffix}: {OTHERS[suffix]}")
    raise DataError(f"no images in {folder}: {_contents(folder)}; expected {tree}")


def _with_specimens(layout: Layout, groups_by: str | None) -> Layout:
    """The layout with the specimen of each image, by its name, unless a column has said so."""
    if groups_by is None or layout.group:
        return layout
    found, without = tables.specimens(groups_by, list(layout.files))
    notes = [f"specimens: {len(set(found.values())):,}, by --groups-by {groups_by}"]
    if without:
        notes.append(f"{without:,} names do not match --groups-by: each counts as a specimen of its own")
    return replace(layout, group=found, notes=(*layout.notes, *notes))


# --- class folders ----------------------------------------------------------------------------------------------------


def _class_folders(folder: Path) -> Layout:
    parts = parts_of(folder)
    if parts and len(parts) < len(subfolders(folder)) and not any(subfolders(root) for root in parts):
        parts = {}  # a class that is called train
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


# --- tables -----------------------------------------------------------------------------------------------------------


def _with_table(folder: Path, settings: Settings) -> Layout | None:
    """The images and the table with most rows for them; None if there is no such table."""
    files, bad = images_in(folder)
    index = tables.Index([*files, *bad])
    found = []
    for path in _tables_of(folder, settings.labels):
        try:
            table = tables.read(path)
        except DataError:
            if settings.labels:
                raise
            continue  # another file of text
        match = tables.with_files(table, index)
        if match:
            found.append(match)
        elif settings.labels:
            raise DataError(f"no column of {path} has names of the {len(files):,} images in {folder}")
    if not found and settings.labels is None:
        found = _in_parts(folder, [*files, *bad])
    if not found:
        return None
    if len(found) > 1:
        raise DataError(
            f"{' and '.join(table.path.name for table, _, _ in found)} have rows for the images in {folder}: "
            "name the table with --labels"
        )
    return _from_table(folder, *found[0][:2], files, bad, index, settings)


def _in_parts(folder: Path, names: list[str]) -> list[tuple[tables.Table, str, int]]:
    """The tables in the folders of a split as one, if they have the same columns."""
    found = []
    for root in parts_of(folder):
        index = tables.Index([name for name in names if name.startswith(f"{root.name}/")])
        for path in _tables_of(root, None):
            match = tables.with_files(tables.read(path), index)
            if match:
                found.append((*match[:2], index))
    if len({(table.header, column) for table, column, _ in found}) != 1:
        return []
    table, column, _ = found[0]
    place = table.header.index(column)
    rows = [
        [*row[:place], index.find(row[place]) or row[place], *row[place + 1 :]]
        for table, _, index in found
        for row in table.rows
    ]
    return [(tables.Table(table.path, table.header, rows, table.first), column, len(rows))]


def _tables_of(folder: Path, given: str | None) -> list[Path]:
    if given is None:
        found = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in tables.SUFFIXES and path.is_file()]
        return [path for path in found if "submission" not in path.name.lower() and not path.name.startswith(".")]
    for path in (Path(given), folder / given):
        if path.is_file():
            return [path]
    raise DataError(f"--labels {given}: there is no such file, neither here nor in {folder}")


def _from_table(
    folder: Path,
    table: tables.Table,
    column: str,
    files: dict[str, Path],
    bad: dict[str, str],
    index: tables.Index,
    settings: Settings,
) -> Layout:
    names = [index.find(cell) for cell in table.column(column)]
    other = {name for name in table.header if name.lower() in tables.SPLITS and _is_split(table.column(name))}
    group: dict[str, str] = {}
    if settings.groups_by in table.header:
        cells = table.column(str(settings.groups_by))
        group = {name: cell for name, cell in zip(names, cells, strict=True) if name and cell}
        other.add(str(settings.groups_by))
    part = {
        name: PARTS[cell.lower()]
        for split in other - {settings.groups_by}
        for name, cell in zip(names, table.column(split), strict=True)
        if name
    }
    folders = {name: PARTS.get(name.split("/")[0].lower(), "") for name in names if name and "/" in name}
    if not part and {"train"} < set(folders.values()) <= set(PARTS.values()):
        part = folders
    target = tables.target(table, column, settings.columns, settings.task, other)
    labels = tables.joined(target, names, table)
    missing = [cell for cell, name in zip(table.column(column), names, strict=True) if name is None]
    unlabelled = [name for name in files if name not in labels]
    notes = []
    if unlabelled:
        few = ", ".join(unlabelled[:3]) + (", ..." if len(unlabelled) > 3 else "")
        notes.append(f"{len(unlabelled):,} images have no label in {table.path.name} and are left out: {few}")
    if group:
        notes.append(f"specimens: {len(set(group.values())):,}, by the column {settings.groups_by}")
    return Layout(
        f"labels in {table.path.name} ({target.words})",
        folder,
        target.task,
        target.classes,
        {name: path for name, path in files.items() if name in labels},
        labels,
        {name: what for name, what in part.items() if name in labels},
        {name: key for name, key in group.items() if name in labels},
        {name: fault for name, fault in bad.items() if name in labels}
        | dict.fromkeys(missing, f"of {table.path.name} has no image in {folder}"),
        tuple(notes),
        table.path.name,
    )


def _is_split(cells: list[str]) -> bool:
    return all(cell.lower() in PARTS for cell in cells) and "train" in {PARTS[cell.lower()] for cell in cells}


# --- masks ------------------------------------------------------------------------------------------------------------


def _with_masks(folder: Path, settings: Settings) -> Layout | None:
    """Images with masks of the same names; None if there are no such folders."""
    parts = parts_of(folder)
    roots = {"": folder} if masks.folders_of(subfolders(folder)) else {f"{path.name}/": path for path in parts}
    both = {prefix: masks.folders_of(subfolders(root)) for prefix, root in roots.items()}
    if not both or not all(both.values()):
        return None
    files: dict[str, Path] = {}
    labels: dict[str, Path] = {}
    bad: dict[str, str] = {}
    axes = 3 if any(pair and _holds_volumes(pair[0]) for pair in both.values()) else 2
    for prefix, pair in both.items():
        if pair:
            here, there, unusable = _pairs(*pair, prefix, axes)
            files, labels, bad = files | here, labels | there, bad | unusable
    if not files and not bad:
        return None
    if not files:
        texts = {path.suffix for pair in both.values() if pair for path in pair[1].rglob("*.*")} & {
            ".txt",
            ".json",
            ".xml",
        }
        hint = (
            f"; files {', '.join(sorted(texts))} (boxes or outlines) are not read: draw them as masks" if texts else ""
        )
        hint = f": {next(iter(bad))} {next(iter(bad.values()))}" if axes == 3 else hint
        raise DataError(
            f"no image in {folder} has a mask of the same name{hint}; expected {TREE.format(folder=folder)}"
        )
    in_parts = {
        name: next((PARTS[step] for step in name.lower().split("/")[:-1] if step in PARTS), "") for name in files
    }
    names = folder / masks.NAMES
    text = read_text(names, "save it as UTF-8, a line for each class") if names.is_file() else ""
    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    told, channels = _described(folder / DESCRIPTION) if axes == 3 else ((), None)
    if axes == 3 and settings.task not in ("auto", "regions"):
        raise ConfigError(f"--task {settings.task} is not for volumes, which have a class for each voxel: leave it out")
    task = "regions" if axes == 3 else settings.task
    source = masks.NAMES if lines else DESCRIPTION
    meaning = masks.meaning(list(labels.values()), task, settings.max_pixels, lines or told, source)
    split = all(in_parts.values()) and "train" in in_parts.values()
    return Layout(
        ("with label volumes" if axes == 3 else "with masks") + (", already split" if split else ""),
        folder,
        meaning.task,
        meaning.classes,
        files,
        labels,
        in_parts if split else {},
        {},
        bad,
        meaning=meaning,
        axes=axes,
        channels=channels,
    )


def _holds_volumes(folder: Path) -> bool:
    """Whether a folder holds NIfTI files, or its first TIFF file has slices."""
    if any(volumes.is_nifti(path) and not path.name.startswith(HIDDEN) for path in folder.iterdir()):
        return True
    first = next(iter(images_in(folder)[0].values()), None)
    return first is not None and volumes.is_stack(first)


def _described(path: Path) -> tuple[tuple[str, ...], int | None]:
    """The names of the classes 0, 1, ... and the number of channels in a dataset.json, as the Decathlon has it."""
    if not path.is_file():
        return (), None
    found = read_json(path, "repair it, or remove it")
    labels, channels = found.get("labels", {}), found.get("channel_names", found.get("modality", {}))
    if not isinstance(labels, dict) or not isinstance(channels, dict):
        raise DataError(f'{path}: "labels" and "channel_names" are tables such as {{"0": "background"}}')
    try:  # {"0": "background"}, or as nnU-Net has it {"background": 0}
        numbered = {int(value): str(key) for key, value in labels.items()}
    except (TypeError, ValueError, OverflowError):
        numbered = {int(key): str(value) for key, value in labels.items() if re.fullmatch("[0-9]{1,9}", key)}
    if sorted(numbered) != list(range(len(numbered))):
        raise DataError(f'{path}: "labels" are to be numbered 0, 1, ..., found {sorted(numbered)[:5]}')
    return tuple(numbered[i] for i in range(len(numbered))), len(channels) or None


def _pairs(
    pictures: Path, maps: Path, prefix: str, axes: int
) -> tuple[dict[str, Path], dict[str, Path], dict[str, str]]:
    """Images and masks by the name of the image, and what has no partner."""
    is_image = _is_picture if axes == 2 else _may_be_volume
    here, bad = images_in(pictures, prefix, is_image)
    there, bad_maps = images_in(maps, prefix, is_image)
    by_key: dict[str, str] = {}
    for name in there:
        other = by_key.setdefault(masks.key_of(name), name)
        if other != name:
            raise DataError(f"{maps} has two masks for one image: {other} and {name}. Remove one")
    bad |= {f"{maps.name}/{name}": fault for name, fault in bad_maps.items()}
    found = {name: by_key.pop(masks.stem_of(name), None) for name in here}
    bad |= {name: f"has no mask in {maps}{_as_nnunet(name) * (axes == 3)}" for name in found if found[name] is None}
    bad |= {f"{maps.name}/{name}": f"has no image in {pictures}" for name in by_key.values()}
    labels = {name: there[other] for name, other in found.items() if other is not None}
    return {name: here[name] for name in labels}, labels, bad


def _as_nnunet(name: str) -> str:
    """What to do with a volume that is named as nnU-Net has it."""
    if not re.search(r"_\d{4}$", volumes.stem(name)):
        return ""
    return " (nnU-Net's _0000 is the number of a channel: take it off, and join several channels in one file of 4 axes)"


# --- files ------------------------------------------------------------------------------------------------------------


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(HIDDEN)]


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in images.SUFFIXES


def _may_be_volume(path: Path) -> bool:
    return path.name.lower().endswith((*volumes.NIFTI, *volumes.STACKS))


def images_in(
    folder: Path, prefix: str = "", is_image: Callable[[Path], bool] = _is_picture
) -> tuple[dict[str, Path], dict[str, str]]:
    """The image files in a folder, at any depth, by name; and those that cannot be used, with the reason."""
    good: dict[str, Path] = {}
    bad: dict[str, str] = {}
    seen = {os.path.realpath(above) for above in Path(os.path.abspath(folder)).parents}
    for here, inner, names in os.walk(folder, followlinks=True):
        if os.path.realpath(here) in seen:  # a link to a folder above
            inner.clear()
            continue
        seen.add(os.path.realpath(here))
        inner[:] = sorted(name for name in inner if not name.startswith(HIDDEN))
        for name in sorted([*names, *inner]):
            path = Path(here, name)
            if name.startswith(".") or not is_image(path):
                continue
            label = prefix + path.relative_to(folder).as_posix()
            fault = images.fault_of(path)
            if fault:
                bad[label] = fault
            else:
                good[label] = path
        inner[:] = [name for name in inner if not is_image(Path(name))]
    return good, bad


def other_files(folder: Path) -> Counter[str]:
    """The numbers of files of kinds that are not read, by suffix."""
    found: Counter[str] = Counter()
    for _, _, names in os.walk(folder):
        found.update(suffix for name in names for suffix in OTHERS if name.lower().endswith(suffix))
    return found


def _contents(folder: Path) -> str:
    """What a folder without images holds, in a few words."""
    names = sorted(path.name for path in folder.iterdir())
    return f"found {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "it is empty"
