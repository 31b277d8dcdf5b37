"""Galaxies, in the layout of the Galaxy Zoo challenge: images, and a table with the share of votes for each answer.

    DIR/images_training_rev1/<GalaxyID>.jpg   424 x 424, colour
    DIR/training_solutions_rev1.csv           GalaxyID,Class1.1,Class1.2,... one row for each image

The columns of the table are the answers. The split follows the order of the rows: the first 80 per cent are for
training, the next 10 for validation, the last 10 for testing. With all 61,578 galaxies the split is the paper's: 55,421
for training, the last 6,157 for testing.
"""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data.dataset import NO_IMAGES, Dataset, Indices, Settings
from quarterturn_lab.data.folders import existing
from quarterturn_lab.data.read_all import Files, by_stem, squares
from quarterturn_lab.errors import DataError

IMAGES, TABLE, TEST_IMAGES = "images_training_rev1", "training_solutions_rev1.csv", "images_test_rev1"
TREE = f"the folder of the Galaxy Zoo challenge:\n  {{folder}}/{IMAGES}/<GalaxyID>.jpg\n  {{folder}}/{TABLE}"
ALL, ALL_TEST = 61_578, 6_157  # in the paper


def load(settings: Settings) -> Dataset:
    """Images with shares of votes. They are not cropped to the network's input, to leave room for augmentation."""
    folder = inside(existing(settings.folder, TREE))
    tree = TREE.format(folder=folder)
    for name, there in ((IMAGES, (folder / IMAGES).is_dir()), (TABLE, (folder / TABLE).is_file())):
        if not there:
            raise DataError(f"{folder / name} is missing; expected {tree}")
    answers, rows = table(folder / TABLE)
    files = paired(folder / IMAGES, rows, folder / TABLE, settings.skip_bad)
    room = max(settings.side, settings.longest or settings.side)
    room -= (room - settings.side) % 2  # so that the network's input is exactly central
    read = squares("galaxies", files, settings.model_copy(update={"side": room}))
    train, valid, test = split(len(read.names))
    return Dataset(
        read.array,
        np.array([rows[name] for name in read.names], dtype=np.float32),
        answers,
        tuple(read.names),
        train,
        test,
        read.fingerprint,
        tuple(read.bad),
        valid,
        "answers",
        tuple(read.bands),
    )


def inside(folder: Path) -> Path:
    """The folder that holds the table, which may be one level down."""
    return folder / "galaxies" if (folder / "galaxies" / TABLE).is_file() else folder


def split(count: int) -> tuple[Indices, Indices, Indices]:
    """The indices for training, validation and testing, in file order."""
    if count < 10:
        raise DataError(
            f"{count} galaxies are too few to split into training, validation and test images: give at least 10"
        )
    everything = np.arange(count)
    if count == ALL:
        return everything[:-ALL_TEST], NO_IMAGES, everything[-ALL_TEST:]
    first, second = count * 8 // 10, count * 9 // 10
    return everything[:first], everything[first:second], everything[second:]


def table(path: Path) -> tuple[tuple[str, ...], dict[str, NDArray[np.float64]]]:
    """The names of the answers, and their shares by GalaxyID, in file order. Errors name the line."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            lines = list(csv.reader(file))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path} is not a CSV table: {error}") from None
    header = [name.strip() for name in lines[0]] if lines else []
    if len(header) < 2 or header[0].lower() != "galaxyid":
        raise DataError(f"{path}, line 1: expected a header GalaxyID,Class1.1,..., found {','.join(header[:4])!r}")
    twice = [name for name, times in Counter(header).items() if times > 1]
    if twice:
        raise DataError(f"{path}, line 1: the column {twice[0]} appears more than once")
    rows: dict[str, NDArray[np.float64]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line:
            name, values = _row(path, number, line, header)
            if name in rows:
                raise DataError(f"{path}, line {number}: GalaxyID {name} appears a second time")
            rows[name] = values
    return tuple(header[1:]), rows


def _row(path: Path, number: int, line: list[str], header: list[str]) -> tuple[str, NDArray[np.float64]]:
    if len(line) != len(header):
        raise DataError(f"{path}, line {number}: {len(line)} columns, but the header has {len(header)}")
    values = []
    for column, text in zip(header[1:], line[1:], strict=True):
        try:
            value = float(text)
        except ValueError:
            raise DataError(f"{path}, line {number}, {column}: {text!r} is not a number") from None
        if not 0 <= value <= 1:
            raise DataError(f"{path}, line {number}, {column}: {text} is outside 0..1, the range of a share of votes")
        values.append(value)
    return line[0].strip(), np.array(values)


def paired(folder: Path, rows: dict[str, NDArray[np.float64]], source: Path, skip: bool) -> Files:
    """Names and paths of the images, in the order of the rows. A row or image on its own raises, or is skipped."""
    found = by_stem(folder)
    without_image = [name for name in rows if name not in found]
    without_row = [name for name in found if name not in rows]
    if not skip and without_image:
        raise DataError(
            f"{source} has {len(without_image)} row{'s' if len(without_image) > 1 else ''} without an image in "
            f"{folder}: {_some(without_image)}. Use --skip-bad to skip them"
        )
    if not skip and without_row:
        raise DataError(
            f"{folder} has {len(without_row)} image{'s' if len(without_row) > 1 else ''} without a row in {source}: "
            f"{_some([found[name].name for name in without_row])}. Use --skip-bad to skip them"
        )
    files = [(name, found[name]) for name in rows if name in found]
    if not files:
        raise DataError(f"no image in {folder} has a row in {source}: name images by GalaxyID")
    return files


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
