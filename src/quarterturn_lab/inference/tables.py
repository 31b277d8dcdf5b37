"""Tables of predictions for networks that label whole images, or windows of them. Nothing here needs torch."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import images, numeric_files
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.files import no_space, safe, write_atomically
from quarterturn_lab.inference.large_files import check_channels, opened
from quarterturn_lab.inference.tiles import SIDE, Run
from quarterturn_lab.inference.unfinished import marks, unfinished
from quarterturn_lab.runs.model_card import ModelCard

Files = list[tuple[str, Path]]  # names and paths
Progress = Callable[..., None]  # how many are done, of how many, and of what (images, unless said)
Place = tuple[int, int, int, int]  # x, y, width, height in pixels of the image
PLACE = ("x", "y", "width", "height")
SMALLEST = 64  # tile
MOST = 1_000_000  # images in a batch, and pixels of a side
LABELS = {"classes": "predicted_class", "tags": "predicted_tags"}  # a column for each task


@dataclass(frozen=True)
class Options:
    """How to predict. With a `window`, a network sees squares of that side, `stride` apart, instead of whole images."""

    batch: int = 64
    convert: bool = False
    grey: bool = False
    skip_bad: bool = False
    window: int | None = None
    stride: int | None = None
    level: int = 0  # of a pyramid
    tile: int = SIDE
    max_pixels: int | None = None  # in place of the limit in training

    def __post_init__(self) -> None:
        for name in ("batch", "window", "stride", "tile", "max_pixels"):
            value = getattr(self, name)
            most = MOST if name != "max_pixels" else MOST**2
            if value is not None and not 1 <= value <= most:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: give 1 or more, and at most {most:,}")
        if self.tile < SMALLEST:
            raise ConfigError(f"--tile {self.tile}: give at least {SMALLEST} pixels")
        if self.stride and not self.window:
            raise ConfigError("--stride is the step between windows: give --window too")


@dataclass(frozen=True)
class Row:
    """The answers for an image or a window of it; or why it was skipped."""

    name: str
    place: Place | None = None
    answers: NDArray[np.float64] | None = None
    skipped: str = ""


def vectors(
    run: Run, card: ModelCard, files: Files, batch: int, convert: bool, progress: Progress
) -> NDArray[np.float64]:
    """Predictions `(images, classes or answers)`, computed in batches."""
    found = rows(run, card, files, Options(batch, convert), progress)
    return np.stack([row.answers for row in found if row.answers is not None])


def rows(run: Run, card: ModelCard, files: Files, options: Options, progress: Progress, skip: int = 0) -> Iterator[Row]:
    """The rows of all images in order, computed in batches of images or windows; without the first windows to skip."""
    inputs = _inputs(card, files, options, progress, skip)
    while several := list(islice(inputs, options.batch)):
        seen = [x for _, x in several if x is not None]
        answers = iter(card.answers(run(np.stack(seen))) if seen else ())
        for row, x in several:
            yield row if x is None else Row(row.name, row.place, next(answers))


def _inputs(
    card: ModelCard, files: Files, options: Options, progress: Progress, skip: int
) -> Iterator[tuple[Row, NDArray[np.float32] | None]]:
    for number, (name, path) in enumerate(files, start=1):
        try:
            for place, part in _parts(path, card, options, skip if number == 1 else 0):
                yield Row(name, place), card.scaling(images.fitted(part, card.settings))
        except DataError as error:
            if not options.skip_bad:
                raise
            yield Row(name, skipped=str(error)), None
        progress(number, len(files))


def _parts(path: Path, card: ModelCard, options: Options, skip: int) -> Iterator[tuple[Place | None, NDArray[Any]]]:
    """The pixels of an image, or of its windows, which are read one by one."""
    if options.window is None and not options.level:
        array, bands = images.decoded(path, card.settings, scaled=True)
        check_channels(path, bands, card, options.convert)
        yield None, array
        return
    with opened(path, card, options.convert, options.level) as picture:
        if options.window is None:
            if picture.width * picture.height > card.settings.max_pixels:
                limit = card.settings.max_pixels
                raise DataError(numeric_files.too_many_pixels(path, picture.width, picture.height, limit))
            yield None, picture.read(0, picture.height, 0, picture.width)
            return
        for place in islice(windows(picture.width, picture.height, options), skip, None):
            x, y, width, height = place
            yield place, picture.read(y, y + height, x, x + width)


def windows(width: int, height: int, options: Options) -> Iterator[Place]:
    """Where the windows of an image are, row by row; the last ones end at its edge.

    >>> [place for place in windows(25, 10, Options(window=10))]
    [(0, 0, 10, 10), (10, 0, 10, 10), (15, 0, 10, 10)]
    """
    side = options.window
    assert side is not None
    step = options.stride or side
    for y in _starts(height, side, step):
        for x in _starts(width, side, step):
            yield x, y, min(side, width), min(side, height)


def _starts(length: int, side: int, step: int) -> list[int]:
    last = max(length - side, 0)
    return [*range(0, last, step), last]


# --- files ------------------------------------------------------------------------------------------------------------


def write_table(
    out: Path, run: Run, card: ModelCard, files: Files, options: Options, job: dict[str, Any], progress: Progress
) -> list[str]:
    """Write a table of predictions; returns why images were skipped.

    Rows go to a file as they come, and the same job continues after the last image there. With `skip_bad` a last column
    says why an image was skipped.
    """
    with no_space(str(out)), unfinished(out, job) as folder:
        table = folder / "rows.csv"
        _add_rows(table, folder / "images", run, card, files, options, progress)
        with table.open(newline="") as file:
            skipped = [line[-1] for line in csv.reader(file) if line[-1]]
        if len(skipped) == len(files):
            raise DataError(f"none of the {len(files)} images can be used; the first: {skipped[0]}")
        scratch = folder / "table.csv"
        with table.open(newline="") as source, scratch.open("w", newline="") as target:
            writer = csv.writer(target, lineterminator="\n")
            writer.writerow(map(safe, _header(card, options)))
            writer.writerows(line if options.skip_bad else line[:-1] for line in csv.reader(source))
            target.flush()
            os.fsync(target.fileno())
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch.replace(out)
        return skipped


def _add_rows(
    table: Path, marked: Path, run: Run, card: ModelCard, files: Files, options: Options, progress: Progress
) -> None:
    """Add the missing rows; lines of `marked` say how far the table is: images, rows of the next one, bytes."""
    *_, (done, part, size) = [[0, 0, 0], *(line for line in marks(marked) if len(line) == 3)]
    with table.open("ab") as start:
        if start.tell() < size:  # as after a power cut: what was written is not on the disk
            done = part = size = 0
            marked.unlink()
        start.truncate(size)
    progress(done, len(files))
    with table.open("a", newline="") as file, marked.open("a") as record:
        writer = csv.writer(file, lineterminator="\n")
        name = files[done][0] if done < len(files) else None  # of the image whose rows are written
        found = rows(run, card, files[done:], options, lambda n, _: progress(done + n, len(files)), part)
        number = done
        while several := list(islice(found, options.batch)):
            for row in several:
                if row.name != name:
                    number, part, name = number + 1, 0, row.name
                writer.writerow(_cells(card, row, options))
                part += 1
            file.flush()
            is_complete = options.window is None or several[-1].skipped
            record.write(f"{number + 1} 0 {file.tell()}\n" if is_complete else f"{number} {part} {file.tell()}\n")
            record.flush()


def _header(card: ModelCard, options: Options) -> list[str]:
    """The columns: name, place of the window, predicted class or tags, and all answers."""
    label = LABELS.get(card.task)
    columns = ["image", *(PLACE if options.window else ()), *([label] if label else ()), *card.classes]
    return [*columns, *(["skipped"] if options.skip_bad else ())]


def _cells(card: ModelCard, row: Row, options: Options) -> list[str]:
    """A row, with a last cell that says why it was skipped."""
    label = card.task in LABELS
    cells = [safe(row.name)]
    cells += map(str, row.place or [""] * 4) if options.window else ()
    if row.answers is None:
        cells += [""] * (label + len(card.classes))
    else:
        cells += [safe(predicted(card, row.answers))] if label else ()
        cells += [f"{value:.8g}" for value in row.answers]
    return [*cells, safe(row.skipped)]


def predicted(card: ModelCard, answers: NDArray[np.float64]) -> str:
    """The name of the most probable class, or of the tags with a probability of at least a half."""
    if card.task == "classes":
        return card.classes[int(answers.argmax())]
    return ";".join(name for name, value in zip(card.classes, answers, strict=True) if value >= 0.5)


def write_cells(out: Path, header: Iterable[str], lines: Iterable[Iterable[str]]) -> None:
    """Write a CSV file."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, buffer.getvalue())
