"""What a folder of images holds, without decoding all of it: what `data info` and `fit` say first."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import images, numeric_files, volumes
from quarterturn_lab.data.dataset import DENSE, Settings
from quarterturn_lab.data.layouts import Layout, layout_of
from quarterturn_lab.data.numeric_files import Header, quiet
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
    detail: str = ""  # what the values of masks mean, in words
    rule: str = ""  # how the images are split, in words
    axes: int = 2  # of images, or of volumes
    spacings: tuple[tuple[float, ...], ...] = ()  # of volumes, each once, in mm

    def lines(self) -> list[str]:
        """The summary, a line each."""
        low, middle, high = self.sides
        size = f"{high} pixels" if low == high else f"{low} to {high} pixels (median {middle})"
        kind = {1: "grey", 3: "colour"}.get(self.channels, f"{self.channels} channels")
        what, images = ("images", f"{kind}, {self.levels}; longest side {size}")
        if self.axes == 3:
            what, images = "volumes", self.levels
        found = [
            f"{self.folder}: {self.images:,} {what}, {self.layout}",
            f"to learn: {self._target()}",
            f"{what}: {images}",
            "split: " + ", ".join(f"{count:,} {PART_NAMES[part]}" for part, count in self.parts.items()) + self.rule,
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
        if self.task == "regions":
            unit = "pixel" if self.axes == 2 else "voxel"
            return f"a class for each {unit}, one of {count}: {some(self.classes)} ({self.detail})"
        if self.task in DENSE:
            return f"{'single objects' if self.task == 'instances' else 'object or background'} ({self.detail})"
        order = sorted(range(len(self.classes)), key=lambda i: -self.counts[i])
        largest = [f"{self.classes[i]} ({self.counts[i]:,})" for i in order[:SHOWN]]
        rest = f", ... down to {self.classes[order[-1]]} ({self.counts[order[-1]]:,})" if len(order) > SHOWN else ""
        what = f"one of {count} classes" if self.task == "classes" else f"any of {count} tags"
        return f"{what}: {', '.join(largest)}{rest}"


PART_NAMES = {"train": "to train", "valid": "to validate", "test": "to test"}


def look(settings: Settings) -> Found:
    """What the folder of the settings holds. Files that cannot be used are listed; a layout that cannot be, raises."""
    layout = layout_of(settings)
    if layout.axes == 3:
        return look_at_volumes(layout, settings)
    layout, headers = _with_headers(layout, settings)
    floats = settings.floats or any(found.bits > 8 or found.channels not in (1, 3) for found in headers.values())
    channels = Counter(found.channels for found in headers.values()).most_common(1)[0][0]
    notes: list[str] = []
    if floats:
        layout = layout.without(
            {
                name: f"has {found.channels} channels, and most have {channels}"
                for name, found in headers.items()
                if found.channels != channels
            }
        )
        levels = _levels(layout, headers, settings.model_copy(update={"channels": channels, "floats": True}))
        if len({headers[name].bits for name in layout.files}) > 1:
            notes.append("some files have 8 bits and some have more: are their values on the same scale?")
    else:
        levels = "8 bits"
        channels = max(found.channels for found in headers.values())
        if channels == 3 and not _has_colour(layout):
            channels = 1
            notes.append(
                f"the files have three equal channels ({len(sample(layout.files))} were looked at): read as grey"
            )
    names = tuple(layout.files)
    parts = split(layout, names, settings)
    longest = sorted(max(headers[name].width, headers[name].height) for name in names)
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
        (*layout.notes, *notes, *_rare(layout)),
        layout.meaning.words if layout.meaning else "",
        _rule(layout),
    )


def look_at_volumes(layout: Layout, settings: Settings) -> Found:
    """What a folder of volumes holds."""
    headers: dict[str, volumes.Header] = {}
    spacings: dict[str, tuple[float, ...]] = {}
    bad: dict[str, str] = {}
    for name, path in watched("looking", layout.files.items(), len(layout.files)):
        try:
            found = volumes.header(path, settings.max_pixels)
            if found.channels not in (1, layout.channels):
                raise DataError(volumes.several(path, found.channels))
            label = layout.labels[name]
            volumes.check_pair(path, found, label, volumes.header(label, settings.max_pixels))
            spacings[name] = volumes.spacing(path, settings.spacing, settings.max_pixels)
            headers[name] = found
        except DataError as error:
            bad[name] = str(error).removeprefix(f"{path} ")
    if not headers:
        name, fault = next(iter({**bad, **layout.bad}.items()))
        raise DataError(f"none of the volumes in {layout.root} can be used; the first: {name} {fault}")
    channels = Counter(found.channels for found in headers.values()).most_common(1)[0][0]
    others = {name: found for name, found in headers.items() if found.channels != channels}
    bad |= {name: f"has {found.channels} channels, and most have {channels}" for name, found in others.items()}
    layout = layout.without(bad)
    names = tuple(layout.files)
    sizes = np.array([headers[name].sizes for name in names])
    each = Counter(tuple(round(size, 3) for size in spacings[name]) for name in names)
    lost = sum(not headers[name].lies for name in names if volumes.is_nifti(layout.files[name]))
    notes = [f"{lost:,} volumes do not say which way they lie: axes are taken as they are stored"] * bool(lost)
    parts = split(layout, names, settings)
    longest = sorted(sizes.max(axis=1).tolist())
    return Found(
        layout.root,
        layout.words,
        layout.task,
        layout.classes,
        (),
        len(names),
        {part: len(indices) for part, indices in parts.items()},
        channels,
        True,
        (longest[0], longest[len(longest) // 2], longest[-1]),
        _volumes_in_words(sizes, each, channels),
        layout.bad,
        (*layout.notes, *notes),
        layout.meaning.words if layout.meaning else "",
        _rule(layout),
        3,
        tuple(each),
    )


def _volumes_in_words(sizes: NDArray[Any], spacings: Counter[tuple[float, ...]], channels: int) -> str:
    low, middle, high = (
        " x ".join(f"{n:.0f}" for n in each) for each in (sizes.min(0), np.median(sizes, 0), sizes.max(0))
    )
    size = f"{high} voxels" if low == high else f"{low} to {high} voxels (median {middle})"
    usual = " x ".join(f"{size:g}" for size in spacings.most_common(1)[0][0])
    every = f"of {usual} mm" if len(spacings) == 1 else f"most of {usual} mm, in {len(spacings)} spacings"
    kind = f", {channels} channels" if channels > 1 else ""
    return f"{size} {every}{kind}; each is scaled to mean 0 and deviation 1"


def _rule(layout: Layout) -> str:
    """How the images are split, in words."""
    if {"valid", "test"} <= set(layout.part.values()):
        return ", as they are split already"
    some_given = f", with your own part to {'test' if 'test' in layout.part.values() else 'validate'}"
    by = "specimen" if layout.group else "name"
    return (
        (some_given if layout.part else "")
        + f", chosen by {by}"
        + (" within each class" if layout.task == "classes" else "")
    )


def _rare(layout: Layout) -> list[str]:
    """A note on classes that cannot be in every part."""
    if layout.task != "classes":
        return []
    few = [name for name, count in zip(layout.classes, _counts(layout), strict=True) if count < 3]
    which = "1 class has" if len(few) == 1 else f"{len(few)} classes have"
    return [f"{which} fewer than 3 images, too few to be in every part: {some(tuple(few))}"] if few else []


def _counts(layout: Layout) -> tuple[int, ...]:
    labels = [layout.labels[name] for name in layout.files]
    if layout.task == "classes":
        counts = Counter(labels)
        return tuple(counts[i] for i in range(len(layout.classes)))
    return tuple(int(sum(column)) for column in zip(*labels, strict=True)) if layout.task == "tags" else ()


def _with_headers(layout: Layout, settings: Settings) -> tuple[Layout, dict[str, Header]]:
    """The layout without files that are no images, and what the headers of the others say."""
    headers: dict[str, Header] = {}
    bad: dict[str, str] = {}
    with quiet():
        for name, path in watched("looking", layout.files.items(), len(layout.files)):
            try:
                headers[name] = header_of(path, settings)
                if layout.meaning:
                    _check_mask(path, headers[name], layout.labels[name], settings.max_pixels)
            except DataError as error:
                bad[name] = str(error).removeprefix(f"{path} ")
    if len(bad) == len(layout.files):
        name, fault = next(iter({**bad, **layout.bad}.items()))
        raise DataError(f"none of the images in {layout.root} can be used; the first: {name} {fault}")
    return layout.without(bad), {name: found for name, found in headers.items() if name not in bad}


def header_of(path: Path, settings: Settings) -> Header:
    """What a file says about its image, or why it cannot be used."""
    found = (
        numeric_files.header(path, settings.max_pixels)
        if path.suffix.lower() in numeric_files.FITS
        else _picture_header(path, settings.max_pixels)
    )
    if found.pages > 1 and not settings.floats:
        raise DataError(
            f"{path} has {found.pages} pages: save the one to use as a file, or give --floats if they are channels"
        )
    if found.width * found.height > settings.max_pixels:
        raise DataError(numeric_files.too_many_pixels(path, found.width, found.height, settings.max_pixels))
    return found


def _picture_header(path: Path, max_pixels: int) -> Header:
    if fault := images.fault_of(path):
        raise DataError(f"{path} {fault}")
    is_tiff = path.suffix.lower() in numeric_files.TIFF
    try:
        with numeric_files.opened(path) as image:
            bits, frames = numeric_files.bits_of(image), getattr(image, "n_frames", 1)
            more = numeric_files.has_more_channels(image) or image.mode not in PLAIN
            if not is_tiff or (frames == 1 and bits <= 8 and not more):
                if not is_tiff and frames > 1:
                    images.check_is_one_picture(path, image)
                width, height = image.size
                loads_all = image.format == "PNG" and "exif" not in image.info  # Pillow would look behind the pixels
                if not loads_all and image.getexif().get(0x0112, 1) > 4:  # stored on its side
                    width, height = height, width
                return Header(1 if image.mode in GREY else 3, width, height, bits, image.mode == "F")
    except DataError:
        raise
    except images.UNREADABLE as error:
        if not is_tiff or not path.stat().st_size:
            raise DataError(f"{path} {_no_image(path, error)}") from None
    return numeric_files.header(path, max_pixels)


GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
PLAIN = ("1", "L", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB")  # of 8-bit TIFF files; others have more channels


def _no_image(path: Path, error: Exception) -> str:
    """Why Pillow cannot open a file."""
    with path.open("rb") as file:
        start = file.read(12)
    if not start:
        return "is empty"
    if start[4:8] == b"ftyp":
        return "is a HEIC file or a film by its contents: save it as JPEG or PNG"
    return f"is damaged or not an image ({type(error).__name__})"


def _check_mask(path: Path, image: Header, mask: Path, max_pixels: int) -> None:
    try:
        found = _picture_header(mask, max_pixels)
    except DataError as error:
        raise DataError(f"{path} has a mask that cannot be used: {error}") from None
    if (found.width, found.height) != (image.width, image.height):
        sizes = f"{image.width} x {image.height} and {found.width} x {found.height}"
        raise DataError(f"{path} and its mask {mask.name} differ in size, {sizes}: they must be equal")


def _has_colour(layout: Layout) -> bool:
    """Whether any of some files has colours, not just three equal channels."""
    settings = Settings(folder=None, side=64, channels=3, rules=2)
    for _, path in sample(layout.files):
        try:
            if 1 not in images.decoded(path, settings, scaled=True)[1]:
                return True
        except DataError:
            continue  # reported when all are decoded
    return False


def _levels(layout: Layout, headers: dict[str, Header], settings: Settings) -> str:
    """The values that some files hold, in words."""
    low, high = np.inf, -np.inf
    for _, path in sample(layout.files):
        try:
            values = images.decoded(path, settings)[0]
        except DataError:
            continue
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    bits = max(headers[name].bits for name in layout.files)
    if any(headers[name].floats for name in layout.files):
        return f"floats from {low:.4g} to {high:.4g}, kept as they are"
    used = max(1, int(high).bit_length()) if np.isfinite(high) else bits
    inside = f"{used} bits in {bits}" if used < bits else f"{bits} bits"
    return f"{inside} (values from {low:,.0f} to {high:,.0f}), kept as they are"


def sample(files: dict[str, Path]) -> list[tuple[str, Path]]:
    """Up to `SAMPLE` files, spread evenly over all."""
    items = list(files.items())
    places = np.linspace(0, len(items) - 1, min(SAMPLE, len(items))).round().astype(int)
    return [items[i] for i in places]


def some(names: tuple[str, ...]) -> str:
    """The first names of a list."""
    return ", ".join(names[:SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > SHOWN else "")
