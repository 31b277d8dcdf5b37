"""What a folder of images holds, without decoding all of it: what `data info` and `fit` say first."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from quarterturn_lab.data import images
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.layouts import Layout, layout_of
from quarterturn_lab.data.numeric_files import quiet
from quarterturn_lab.data.own_images import split
from quarterturn_lab.data.watch import watched
from quarterturn_lab.errors import DataError

SAMPLE = 50  # files that are decoded, to see what values they hold
SHOWN = 5  # names in a list


@dataclass(frozen=True)
class Found:
    """What a folder holds. `channels` and `floats` are the settings that read it as it is."""

    folder: Path
    layout: str  # in words
    task: str
    classes: tuple[str, ...]  # names of classes, tags or numbers
    counts: tuple[int, ...]  # images of each class or tag; empty for other tasks
    images: int
    parts: dict[str, int]  # train, valid, test
    channels: int
    floats: bool
    sides: tuple[int, int, int]  # smallest, median and largest of the longest sides
    levels: str  # the values in the files, in words
    bad: dict[str, str]  # files that cannot be used, and why
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The summary, a line each."""
        low, middle, high = self.sides
        size = f"{high} pixels" if low == high else f"{low} to {high} pixels (median {middle})"
        kind = {1: "grey", 3: "colour"}.get(self.channels, f"{self.channels} channels")
        found = [
            f"{self.folder}: {self.images:,} images, {self.layout}",
            f"to learn: {self._target()}",
            f"images: {kind}, {self.levels}; longest side {size}",
            "split: " + ", ".join(f"{count:,} {PART_NAMES[part]}" for part, count in self.parts.items()),
        ]
        if self.bad:
            first = ", ".join(f"{name} ({fault})" for name, fault in list(self.bad.items())[:SHOWN])
            more = f", and {len(self.bad) - SHOWN} more" if len(self.bad) > SHOWN else ""
            what = "1 file cannot" if len(self.bad) == 1 else f"{len(self.bad):,} files cannot"
            found.append(f"{what} be used: {first}{more}. --skip-bad leaves them out")
        return [*found, *self.notes]

    def _target(self) -> str:
        count = len(self.classes)
        if self.task in ("numbers", "answers"):
            what = "a number" if count == 1 else f"{count} numbers"
            return f"{what if self.task == 'numbers' else f'{count} shares'}: {some(self.classes)}"
        if self.task in DENSE:
            kind = {"pixels": "a mask of", "instances": "objects, from a mask of", "regions": "a mask of"}[self.task]
            return f"{kind} {count} classes: {some(self.classes)}"
        order = sorted(range(len(self.classes)), key=lambda i: -self.counts[i])
        largest = [f"{self.classes[i]} ({self.counts[i]:,})" for i in order[:SHOWN]]
        rest = f", ... down to {self.classes[order[-1]]} ({self.counts[order[-1]]:,})" if len(order) > SHOWN else ""
        what = f"one of {count} classes" if self.task == "classes" else f"any of {count} tags"
        return f"{what}: {', '.join(largest)}{rest}"


DENSE = ("pixels", "instances", "regions")
PART_NAMES = {"train": "to train", "valid": "to validate", "test": "to test"}


def look(settings: Settings) -> Found:
    """What the folder of the settings holds. Files that cannot be used are listed; a layout that cannot be, raises."""
    layout = layout_of(settings)
    layout, sizes, modes = _headers(layout)
    channels, floats, levels, notes = _values(layout, modes)
    names = tuple(layout.files)
    parts = split(layout, names, settings)
    longest = sorted(max(size) for size in sizes)
    return Found(
        layout.root,
        layout.words,
        layout.task,
        layout.classes,
        _counts(layout),
        len(names),
        {part: len(indices) for part, indices in parts.items()},
        channels,
        floats,
        (longest[0], longest[len(longest) // 2], longest[-1]),
        levels,
        layout.bad,
        (*layout.notes, *notes),
    )


def _counts(layout: Layout) -> tuple[int, ...]:
    labels = [layout.labels[name] for name in layout.files]
    if layout.task == "classes":
        counts = Counter(labels)
        return tuple(counts[i] for i in range(len(layout.classes)))
    return tuple(int(sum(column)) for column in zip(*labels, strict=True)) if layout.task == "tags" else ()


def _headers(layout: Layout) -> tuple[Layout, list[tuple[int, int]], Counter[str]]:
    """The layout without files that are no images, and the sizes and modes of the others."""
    sizes, modes, bad = [], Counter[str](), {}
    with quiet():
        for name, path in watched("looking", layout.files.items(), len(layout.files)):
            try:
                with Image.open(path) as image:
                    images.check_is_one_picture(path, image)
                    if layout.meaning:
                        _check_mask(path, image.size, layout.labels[name])
                    sizes.append(image.size)
                    modes[image.mode] += 1
            except DataError as error:
                bad[name] = str(error).removeprefix(f"{path} ")
            except (OSError, SyntaxError, ValueError) as error:
                bad[name] = (
                    "is empty" if not path.stat().st_size else f"is damaged or not an image ({type(error).__name__})"
                )
    if not sizes:
        name, fault = next(iter(bad.items()))
        raise DataError(f"none of the {len(bad)} images in {layout.root} can be used; the first: {name} {fault}")
    return layout.without(bad), sizes, modes


def _check_mask(path: Path, size: tuple[int, int], mask: Path) -> None:
    with Image.open(mask) as image:
        if image.size != size:
            sizes = f"{size[0]} x {size[1]} and {image.size[0]} x {image.size[1]}"
            raise DataError(f"{path} and its mask {mask.name} differ in size, {sizes}: they must be equal")


def _values(layout: Layout, modes: Counter[str]) -> tuple[int, bool, str, list[str]]:
    """Channels, whether to keep floats, levels in words, and notes."""
    notes: list[str] = []
    if set(modes) <= {"1", "L"}:
        return 1, False, "8 bits", notes
    settings = Settings(folder=None, side=64, channels=3, rules=2)
    colours = [name for name, path in sample(layout.files) if not _is_grey(path, settings)]
    if not colours:
        notes.append("the colour files that were looked at hold grey values, so all are read as grey")
    return (3 if colours else 1), False, "8 bits", notes


def _is_grey(path: Path, settings: Settings) -> bool:
    try:
        return 1 in images.decoded(path, settings, scaled=True)[1]
    except DataError:
        return True


def sample(files: dict[str, Path]) -> list[tuple[str, Path]]:
    """Up to `SAMPLE` files, spread evenly over all."""
    items = list(files.items())
    places = np.linspace(0, len(items) - 1, min(SAMPLE, len(items))).round().astype(int)
    return [items[i] for i in places]


def some(names: tuple[str, ...]) -> str:
    """The first names of a list."""
    return ", ".join(names[:SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > SHOWN else "")
