"""Masks: what the values of label maps mean, seen from the maps themselves.

    pixels      two values (0 and 255, 0 and 1, black and a colour): background and object
    instances   numbers that differ from map to map, each in one piece, stored in 16 bits or counted from the top: every
                number is an object of its own
    regions     a few values or colours, the same in all maps: a class for each; 255 beside small numbers does not count

`--task` says it where this goes wrong.
"""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage  # type: ignore[import-untyped]

from quarterturn_lab.data import images, numeric_files, volumes
from quarterturn_lab.data.dataset import COLOUR, VOID
from quarterturn_lab.data.watch import watched
from quarterturn_lab.errors import ConfigError, DataError

Map = NDArray[np.int64]
IMAGE_FOLDERS = ("images", "imagestr", "image", "imgs", "img", "sat", "photos", "input", "inputs")
MASK_FOLDERS = (
    "masks",
    "mask",
    "labels",
    "labelstr",
    "label",
    "map",
    "maps",
    "annotations",
    "gt",
    "segmentation",
    "segmentations",
)
ENDINGS = ("_mask", "-mask", "_masks", "_label", "_labels", "_seg", "_segmentation", "_gt", "_annotation")
NAMES = "classes.txt"  # a file with the names of the classes 0, 1, ..., a line each
MOST = 1000  # maps that are looked at
CLOSELY = 30  # of which so many piece by piece
CLASSES = 64  # more values than this are no classes
LEFT_OUT = 255  # beside small numbers, pixels without a class


@dataclass(frozen=True)
class Meaning:
    """What the values of label maps stand for: the class of each value, or instances."""

    task: str
    classes: tuple[str, ...]
    values: tuple[int, ...] = ()  # of the classes, in their order; empty if classes are numbered
    void: bool = False  # whether `LEFT_OUT` does not count
    words: str = ""

    def read(self, path: Path, max_pixels: int) -> NDArray[np.uint16]:
        """A label map: instances, or numbers of classes, with `VOID` for pixels that do not count."""
        found = values_of(path, max_pixels)
        if self.task == "instances":
            if found.min() < 0 or found.max() > np.iinfo(np.uint16).max:
                raise DataError(f"{path} has values outside 0..65535: renumber the instances")
            return found.astype(np.uint16)
        if self.task == "pixels":
            return (found != self.values[0]).astype(np.uint16)
        out = np.full(found.shape, VOID, dtype=np.uint16)
        known = (found == LEFT_OUT) if self.void else np.zeros(found.shape, dtype=bool)
        for number, value in enumerate(self.values or range(len(self.classes))):
            out[found == value] = number
            known |= found == value
        if not known.all():
            value = int(found[~known][0])
            raise DataError(
                f"{path} has {named(value)}, which is none of the {len(self.classes)} classes: renumber it, or put the "
                f"names of all classes into {NAMES}, a line each (those of volumes into dataset.json)"
            )
        return out


def values_of(path: Path, max_pixels: int) -> Map:
    """The values of a label map `(H, W)`; a colour is one number. JPEG, which blurs values, is black and white.

    Those of a label volume have three axes.
    """
    fault = images.fault_of(path)
    if fault:
        raise DataError(f"{path} {fault}")
    if volumes.is_volume(path):
        return volumes.labels(path, max_pixels)
    array, lossy = _stored(path, max_pixels)
    if array.ndim == 3 and array.shape[2] == 2:  # grey with transparency
        array = array[:, :, 0]
    if array.ndim == 3 and array.shape[2] != 3:
        raise DataError(f"{path} has {array.shape[2]} channels: a label map has one value or colour for each pixel")
    if array.dtype.kind == "f" and not np.array_equal(array, array.round()):
        raise DataError(f"{path} has values that are not whole numbers: a label map has the number of a class")
    if lossy:
        return ((array if array.ndim == 2 else array.max(axis=2)) > 127).astype(np.int64)
    whole = array.astype(np.int64)
    if whole.ndim == 2:
        return whole
    red, green, blue = whole.transpose(2, 0, 1)
    grey = (red == green) & (green == blue)
    return np.where(grey, red, COLOUR + (red << 16) + (green << 8) + blue)


def _stored(path: Path, max_pixels: int) -> tuple[NDArray[Any], bool]:
    """The array of a file, and whether its compression changes values. Transparency is left out."""
    try:
        with numeric_files.opened(path) as image:
            numeric_files.check_size(path, *image.size, max_pixels)
            frames = getattr(image, "n_frames", 1)
            if frames == 1:
                lossy = image.format in ("JPEG", "MPO")
                plain = image.convert("RGB") if image.mode in ("RGBA", "CMYK", "YCbCr", "RGBX") else image
                return np.asarray(plain), lossy
    except DataError:
        raise
    except images.UNREADABLE:
        if path.suffix.lower() not in (*numeric_files.TIFF, *numeric_files.FITS):
            raise DataError(f"{path} cannot be read: it is damaged, truncated or not an image") from None
        return numeric_files.read(path, max_pixels).transpose(1, 2, 0).squeeze(), False
    what = f"{path} has {frames} pages: a label map has one"
    stack = "; slices of a volume need an axis Z in the file's OME or ImageJ metadata, in its image too"
    raise DataError(what + stack * (path.suffix.lower() in numeric_files.TIFF))


def named(value: int) -> str:
    """A value or colour in words.

    >>> named(7), named(COLOUR + 0xFF0000)
    ('the value 7', 'the colour #ff0000')
    """
    return f"the colour #{value - COLOUR:06x}" if value >= COLOUR else f"the value {value}"


# --- what they mean ---------------------------------------------------------------------------------------------------


def meaning(
    paths: Sequence[Path], task: str, max_pixels: int, names: tuple[str, ...] = (), source: str = NAMES
) -> Meaning:
    """What the values of these label maps mean. `task` and the names of the classes say it, if they are given.

    The names come from the file `source`.
    """
    files = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    return _meaning(files, task, max_pixels, names, source)


@functools.lru_cache(maxsize=8)  # a run looks at the same maps several times
def _meaning(
    files: tuple[tuple[Path, int, int], ...], task: str, max_pixels: int, names: tuple[str, ...], source: str
) -> Meaning:
    paths = [path for path, _, _ in files]
    if task not in ("auto", "pixels", "regions", "instances"):
        raise ConfigError(f"--task {task} is not for images with masks: give pixels, regions or instances")
    some = [paths[i] for i in np.linspace(0, len(paths) - 1, min(MOST, len(paths))).round().astype(int)]
    with ThreadPoolExecutor(4) as pool:
        seen = [
            value
            for value in watched(
                "reading masks", pool.map(lambda path: _values_or_none(path, max_pixels), some), len(some)
            )
            if value is not None
        ]
    if not seen:
        try:
            values_of(paths[0], max_pixels)
        except DataError as error:
            raise DataError(f"none of the {len(paths)} masks can be read; the first: {error}") from None
    values = sorted(set().union(*(found for found, _ in seen)))
    if task == "auto":
        task = (
            "regions" if names else _task(values, [found for found, _ in seen], [path for _, path in seen], max_pixels)
        )
    if task == "instances":
        return Meaning(task, ("background", "object"), words="each has a value of its own in the masks")
    if len(values) < 2:
        raise DataError(f"all {len(seen)} masks that were looked at have {named(values[0])} alone, such as {paths[0]}")
    if task == "pixels":
        rest = ", ".join(named(value).removeprefix("the ") for value in values[1:3]) + (", ..." if values[3:] else "")
        return Meaning(task, ("background", "object"), (values[0],), words=f"object: {rest} in the masks")
    void = LEFT_OUT in values and len(values) > 2 and values[-2] < CLASSES and len(names) <= LEFT_OUT
    if void:
        values.remove(LEFT_OUT)
    note = ", without pixels of value 255" if void else ""
    if names and max(values) < len(names):
        return Meaning(task, names, (), void, f"names as given{note}")
    if names and len(names) != len(values):
        more = f"{len(names)} classes are named, but the masks have {len(values)} values: {values[:8]}"
        raise DataError(f"{more}. Name them all in {source}, or remove the names there")
    if len(values) > CLASSES:
        raise DataError(
            f"the masks have {len(values)} values or more, such as {named(values[-1])} in {paths[0]}: too many to be "
            "classes. Give --task instances if each is an object, or save them without smoothing or compression"
        )
    own = tuple("background" if value == 0 else named(value).removeprefix("the ") for value in values)
    return Meaning(task, names or own, tuple(values), void, f"by the values of the masks{note}")


def _values_or_none(path: Path, max_pixels: int) -> tuple[list[int], Path] | None:
    try:
        return np.unique(values_of(path, max_pixels)).tolist(), path
    except DataError:
        return None  # reported when the pair is read


def _task(values: list[int], by_map: list[list[int]], paths: list[Path], max_pixels: int) -> str:
    """pixels, instances or regions."""
    if len(values) <= 2:
        return "pixels"
    if max(values) >= COLOUR:
        return "regions"
    sets = [[value for value in found if value] for found in by_map]
    filled = [found for found in sets if found]
    counted = np.mean([found == list(range(1, len(found) + 1)) for found in filled])
    if len({len(found) for found in filled}) == 1 and len(values) <= CLASSES:
        return "regions"  # the same number of values everywhere
    places = np.linspace(0, len(paths) - 1, min(CLOSELY, len(paths))).round().astype(int)
    shares = [_in_pieces(values_of(paths[i], max_pixels)) for i in places]
    pieces, in_order = np.mean([share for share, _ in shares]), np.mean([order for _, order in shares])
    large = len(values) > CLASSES // 2 or _has_16_bits(paths[0])  # nobody needs 16 bits for a few classes
    if pieces >= 0.8 and (large or (counted >= 0.8 and in_order >= 0.9)):
        return "instances"
    return "regions"


def _has_16_bits(path: Path) -> bool:
    try:
        with numeric_files.opened(path) as image:
            return numeric_files.bits_of(image) > 8
    except images.UNREADABLE:  # read as numbers
        return True


def _in_pieces(found: Map) -> tuple[float, float]:
    """The share of the values that are in one piece, and whether they are counted from the top."""
    renumbered: Any = np.unique(found, return_inverse=True)[1].reshape(found.shape) + (0 if (found == 0).any() else 1)
    boxes = [box for box in ndimage.find_objects(renumbered) if box is not None]
    single = [ndimage.label(renumbered[box] == number)[1] == 1 for number, box in enumerate(boxes, start=1)]
    tops = [box[0].start for box in boxes]
    return (float(np.mean(single)) if single else 1.0), float(tops == sorted(tops))


# --- folders ----------------------------------------------------------------------------------------------------------


def folders_of(folders: Sequence[Path]) -> tuple[Path, Path] | None:
    """The folder of images and the folder of masks among these."""
    pictures = [path for path in folders if path.name.lower() in IMAGE_FOLDERS]
    maps = [path for path in folders if path.name.lower() in MASK_FOLDERS]
    return (pictures[0], maps[0]) if len(pictures) == len(maps) == 1 else None


def stem_of(name: str) -> str:
    """The name of a file without its suffix."""
    return volumes.stem(name) if name.lower().endswith(volumes.NIFTI) else name.rpartition(".")[0] or name


def key_of(name: str) -> str:
    """The name by which an image and its mask find each other.

    >>> key_of("a/b_mask.png")
    'a/b'
    """
    stem = stem_of(name)
    return next((stem.removesuffix(ending) for ending in ENDINGS if stem.lower().endswith(ending)), stem)
