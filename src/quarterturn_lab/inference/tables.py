"""Tables of predictions for networks that label whole images, or windows of them. Nothing here needs torch."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import images
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.files import write_atomically
from quarterturn_lab.inference.whole_images import Run
from quarterturn_lab.runs.model_card import ModelCard

Files = list[tuple[str, Path]]  # names and paths
Progress = Callable[[int, int], None]  # images done, number of images
Place = tuple[int, int, int, int]  # x, y, width, height in pixels of the image
PLACE = ("x", "y", "width", "height")
MOST = 1_000_000  # images in a batch, and pixels of a side
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a cell that begins so


@dataclass(frozen=True)
class Options:
    """How to predict. With a `window`, a network sees squares of that side, `stride` apart, instead of whole images."""

    batch: int = 64
    convert: bool = False
    grey: bool = False
    skip_bad: bool = False
    window: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "window", "stride"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                raise ConfigError(f"--{name} {value}: give 1 or more, and at most {MOST:,}")
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


def rows(run: Run, card: ModelCard, files: Files, options: Options, progress: Progress) -> Iterator[Row]:
    """The rows of all images in order, computed in batches of images or windows."""
    inputs = _inputs(card, files, options, progress)
    while several := list(islice(inputs, options.batch)):
        seen = [x for _, x in several if x is not None]
        answers = iter(card.answers(run(np.stack(seen))) if seen else ())
        for row, x in several:
            yield row if x is None else Row(row.name, row.place, next(answers))


def _inputs(
    card: ModelCard, files: Files, options: Options, progress: Progress
) -> Iterator[tuple[Row, NDArray[np.float32] | None]]:
    for number, (name, path) in enumerate(files, start=1):
        try:
            array = decoded(path, card, options.convert, scaled=options.window is None)
        except DataError as error:
            if not options.skip_bad:
                raise
            yield Row(name, skipped=str(error)), None
        else:
            for place in windows(array.shape[2], array.shape[1], options):
                part = array if place is None else array[:, place[1] :][:, : place[3], place[0] :][:, :, : place[2]]
                yield Row(name, place), card.scaling(images.fitted(part, card.settings))
        progress(number, len(files))


def decoded(path: Path, card: ModelCard, convert: bool, scaled: bool) -> NDArray[np.float32]:
    """The pixels of an image. Grey and colour must match the training images, unless `convert`."""
    array, bands = images.decoded(path, card.settings, scaled)
    if card.bands and not convert and not set(bands) & set(card.bands):
        trained = " or ".join(map(str, card.bands))
        raise DataError(
            f"{images.has_channels(path, bands[0])}, but the network was trained on images with {trained}: use "
            "--convert to convert between grey and colour"
        )
    return array


def windows(width: int, height: int, options: Options) -> Iterable[Place | None]:
    """Where the windows of an image are, row by row; the last ones end at its edge. None is the whole image.

    >>> [place for place in windows(25, 10, Options(window=10))]
    [(0, 0, 10, 10), (10, 0, 10, 10), (15, 0, 10, 10)]
    """
    side = options.window
    if side is None:
        return [None]
    step = options.stride or side
    return [
        (x, y, min(side, width), min(side, height))
        for y in _starts(height, side, step)
        for x in _starts(width, side, step)
    ]


def _starts(length: int, side: int, step: int) -> list[int]:
    last = max(length - side, 0)
    return [*range(0, last, step), last]


# --- files ------------------------------------------------------------------------------------------------------------


def write_rows(out: Path, card: ModelCard, found: list[Row], options: Options) -> None:
    """Write the table of a prediction: name, place of the window, predicted class or tags, and all answers.

    With `skip_bad` a last column says why an image was skipped.
    """
    label = {"classes": "predicted_class", "tags": "predicted_tags"}.get(card.task)
    header = ["image", *(PLACE if options.window else ()), *([label] if label else ()), *card.classes]
    if options.skip_bad:
        header.append("skipped")
    cells = []
    for row in found:
        line = [safe(row.name)]
        line += map(str, row.place or [""] * 4) if options.window else ()
        if row.answers is None:
            line += [""] * (bool(label) + len(card.classes))
        else:
            line += [safe(predicted(card, row.answers))] if label else ()
            line += [f"{value:.8g}" for value in row.answers]
        cells.append([*line, *([safe(row.skipped)] if options.skip_bad else ())])
    write_cells(out, list(map(safe, header)), cells)


def predicted(card: ModelCard, answers: NDArray[np.float64]) -> str:
    """The name of the most probable class, or of the tags with a probability of at least a half."""
    if card.task == "classes":
        return card.classes[int(answers.argmax())]
    return ";".join(name for name, value in zip(card.classes, answers, strict=True) if value >= 0.5)


def safe(text: str) -> str:
    """Text for a cell that no spreadsheet takes for a formula.

    >>> safe("=1+1"), safe("cell-3")
    ("'=1+1", 'cell-3')
    """
    return f"'{text}" if text.startswith(FORMULA) else text


def write_cells(out: Path, header: Iterable[str], lines: Iterable[Iterable[str]]) -> None:
    """Write a CSV file."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, buffer.getvalue())
