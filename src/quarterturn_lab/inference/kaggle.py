"""Kaggle submissions: the columns and rows of the sample file, filled with a network's predictions."""

import csv
from collections import Counter
from pathlib import Path

from quarterturn_lab.data import images
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.files import safe
from quarterturn_lab.inference.tables import Files, Progress, vectors, write_cells
from quarterturn_lab.inference.tiles import Run
from quarterturn_lab.runs.model_card import ModelCard

FOLDERS = {"plankton": "test", "galaxies": "images_test_rev1"}  # folder of the images to predict, by loader


def submit(run: Run, card: ModelCard, sample: Path, folder: Path, out: Path, batch: int, progress: Progress) -> None:
    """Write the submission. Every row of the sample needs an image in the folder."""
    if card.is_dense:
        raise ConfigError("this network predicts masks, which have no submission format: use `quarterturn predict`")
    header, names = read_sample(sample)
    order = columns(header, card.classes, sample)
    files = find(names, folder, sample)
    answers = vectors(run, card, files, batch, False, progress)
    lines = (
        [safe(name), *(f"{value:.8g}" for value in row)] for name, row in zip(names, answers[:, order], strict=True)
    )
    write_cells(out, map(safe, header), lines)


def read_sample(path: Path) -> tuple[tuple[str, ...], list[str]]:
    """The header, and the first column of all rows."""
    if not path.is_file():
        raise DataError(f"{path} does not exist: --sample takes the sample submission of the challenge")
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            lines = [line for line in csv.reader(file) if line]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path} is not a CSV table: {error}") from None
    if len(lines) < 2 or len(lines[0]) < 2:
        raise DataError(f"{path}: expected a header with column names, and a row for each image")
    names = [line[0] for line in lines[1:]]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise DataError(f"{path} lists {twice[0]} more than once: remove the duplicate")
    return tuple(lines[0]), names


def columns(header: tuple[str, ...], classes: tuple[str, ...], sample: Path) -> list[int]:
    """The index of the network's output for each column of the sample."""
    missing = [name for name in header[1:] if name not in classes]
    left = [name for name in classes if name not in header[1:]]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(header) - 1} columns of {sample} are not outputs of the network, such as "
            f"{missing[0]}: it has {len(classes)} outputs, such as {classes[0]}"
        )
    if left or len(header) - 1 != len(classes):
        raise DataError(f"{sample} has no column for {len(left)} of the network's outputs, such as {left[0]}")
    return [classes.index(name) for name in header[1:]]


def find(names: list[str], folder: Path, sample: Path) -> Files:
    """The image of each row, found by its file name with or without the extension."""
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist: --images takes the folder of the images to predict")
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in images.SUFFIXES]
    known = {path.stem: path for path in paths} | {path.name: path for path in paths}
    missing = [name for name in names if name not in known]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(names)} rows of {sample} have no image in {folder}: {', '.join(missing[:3])}"
            + (", ..." if len(missing) > 3 else "")
        )
    return [(name, known[name]) for name in names]
