"""Reads files of numeric values: FITS, and float, 16-bit or many-channel TIFF.

Nothing here needs torch.
"""

import bz2
import gzip
import io
import logging
import lzma
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from quarterturn_lab.data import tiff_structure
from quarterturn_lab.errors import DataError

FITS = frozenset({".fits", ".fit", ".fts"})
TIFF = frozenset({".tif", ".tiff"})
VALUES = 4  # times the limit of pixels: so many values may all channels have together
DENSEST = 20_000  # times can pixels be packed; without packing 8 times, where a byte holds eight of them
BYTES = 8  # of a value at most: so many times the limit may a compressed file become
PACKED: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZ": bz2.open,
    b"\xfd7": lzma.open,
}  # by the first two bytes


def read(path: Path, max_pixels: int, rules: int = 1) -> NDArray[np.float32]:
    """The unscaled values of a file as `(channels, H, W)`. Values that are not finite raise."""
    kind = path.suffix.lower()
    try:
        with quiet():
            if kind in FITS:
                array = _fits(path, max_pixels)
            elif kind in TIFF:
                array = _tiff(path, max_pixels, rules)
            else:
                array = _picture(path, max_pixels, rules)
    except Missing as error:
        raise DataError(f"{path} needs {error}") from None
    except FileNotFoundError:
        raise DataError(f"{path} no longer exists") from None
    except DataError:
        raise
    except Exception as error:  # each package has its own error classes
        raise DataError(f"{path} cannot be read ({error}): it is damaged, truncated or not an image") from None
    values = array.astype(np.float32)
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise DataError(f"{path} has {count:,} values that are not finite: replace them first")
    return values


@dataclass(frozen=True)
class Header:
    """What a file says about its image before it is decoded."""

    channels: int
    width: int
    height: int
    bits: int  # of a value
    floats: bool = False
    pages: int = 1  # which are channels, if the file does not say what they are


def header(path: Path, max_pixels: int) -> Header:
    """The header of a FITS or TIFF file."""
    try:
        with quiet():
            shape, dtype, axes = _fits_header(path, max_pixels) if path.suffix.lower() in FITS else _tiff_header(path)
    except Missing as error:
        raise DataError(f"{path} needs {error}") from None
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} is damaged or not an image ({error})") from None
    channels, height, width = _three_axes(path, shape)
    return Header(
        channels, width, height, 8 * dtype.itemsize, dtype.kind == "f", channels if set(axes) & set(PAGES) else 1
    )


def bits_of(image: Image.Image) -> int:
    """Bits for each value of an open file, before Pillow cuts them to 8."""
    if image.mode in ("I", "F"):
        return 32
    stored = getattr(image, "tag_v2", {}).get(258)  # BitsPerSample of a TIFF
    if stored:
        return int(max(stored if isinstance(stored, tuple) else (stored,)))
    tile = getattr(image, "tile", ())
    args = tile[0].args if tile else ""
    raw = str(args[0] if isinstance(args, tuple) and args else args)
    return 16 if raw.endswith((";16B", ";16L", ";16N")) or image.mode.startswith("I;16") else 8


def samples_of(image: Image.Image) -> int:
    """Values for each pixel of an open file."""
    return int(getattr(image, "tag_v2", {}).get(277, len(image.getbands())))  # SamplesPerPixel of a TIFF


def has_more_channels(image: Image.Image) -> bool:
    """Whether Pillow would leave out channels of an open file."""
    return samples_of(image) > len(image.getbands())


def _three_axes(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width; axes of length one before them do not count."""
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) not in (2, 3):
        sizes = " x ".join(map(str, shape))
        raise DataError(f"{path} has an array of {sizes}: an image has 2 axes, or 3 with channels")
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    return channels, height, width


def check_size(path: Path, width: int, height: int, limit: int, channels: int = 1) -> None:
    """Raise if an image is too large to be decoded."""
    if width * height > limit:
        raise DataError(too_many_pixels(path, width, height, limit))
    if width * height * channels > VALUES * limit:
        raise DataError(
            f"{path} has {channels} channels of {width} x {height} pixels, more than {VALUES * limit:,} values: "
            "choose fewer channels, or raise --max-pixels"
        )


class _Silence:
    """No warnings while anybody reads: Python has one list of filters for all threads, so the last one restores it."""

    def __init__(self) -> None:
        self.lock, self.readers, self.filters = threading.Lock(), 0, warnings.catch_warnings()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Suppress the warnings of libraries about odd files that they can read."""
        with self.lock:
            if not self.readers:
                self.filters = warnings.catch_warnings()
                self.filters.__enter__()
                warnings.simplefilter("ignore")
            self.readers += 1
        try:
            yield
        finally:
            with self.lock:
                self.readers -= 1
                if not self.readers:
                    self.filters.__exit__(None, None, None)


quiet = _Silence()


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image file as Pillow opens it, without its warnings. What TIFF files claim is looked at first."""
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    with quiet():
        tiff_structure.check(path)
        with Image.open(path) as image:
            yield image


def too_many_pixels(path: Path, width: int, height: int, limit: int) -> str:
    what = f"{path} has {width} x {height} pixels, more than the limit of {limit:,}"
    return f"{what}: make it smaller, or raise --max-pixels"


class Missing(Exception):
    """A package that is not installed, and how to install it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package}: pip install "quarterturn[{extra}]"')


# --- FITS -------------------------------------------------------------------------------------------------------------


def _fits_header(path: Path, limit: int) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    """Shape, type and axes of the first image in the file; the axes of a cube are channels, rows, columns."""
    with _opened_fits(path, limit) as parts:
        part = _first_image(parts)
        values = part.header.get("BITPIX", 8)
        scaled = part.header.get("BSCALE", 1) != 1
        dtype = np.dtype(np.float32 if scaled or values < 0 else f"u{abs(values) // 8}")
        return tuple(part.shape), dtype, ""


def _fits(path: Path, limit: int) -> NDArray[Any]:
    with _opened_fits(path, limit) as parts:
        part = _first_image(parts)
        channels, height, width = _three_axes(path, tuple(part.shape))
        check_size(path, width, height, limit, channels)
        return np.asarray(part.data).reshape(channels, height, width)


def _opened_fits(path: Path, limit: int) -> Any:
    try:
        from astropy.io import fits  # type: ignore[import-untyped]
    except ImportError:
        raise Missing("astropy", "fits") from None
    with path.open("rb") as file:
        unpack = PACKED.get(file.read(2))
    if unpack is None:
        return fits.open(path, memmap=False)
    with unpack(path) as packed:
        content = packed.read(BYTES * limit)
        if packed.read(1):
            raise DataError(f"{path} is more than {BYTES * limit:,} bytes when it is unpacked: raise --max-pixels")
    return fits.open(io.BytesIO(content), memmap=False)


def _first_image(parts: Any) -> Any:
    for part in parts:
        if part.is_image and part.shape:
            return part
    raise ValueError("no image in the file")


# --- TIFF -------------------------------------------------------------------------------------------------------------

PAGES = "QIRP"  # axes of pages that the file does not explain
STACKS = {"Z": "slices", "T": "times"}


def _tiff_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    with opened_tiff(path) as file:
        shape, axes = _moved(file.series[0])
        _check_stack(path, shape, axes)
        return shape, file.series[0].dtype, axes


def _tiff(path: Path, limit: int, rules: int) -> NDArray[Any]:
    """All samples of the first image; pages of the same size are channels, but not slices or times by the new rules."""
    try:
        file = opened_tiff(path)
    except Missing:
        return _picture(path, limit, rules, "tifffile")
    with file:
        series = file.series[0]
        shape, axes = _moved(series)
        if rules > 1:
            _check_stack(path, shape, axes)
        channels, height, width = _three_axes(path, shape)
        check_size(path, width, height, limit, channels)
        check_length(path, series)
        array = series.asarray()
    places = (series.axes.index("Y"), series.axes.index("X"))
    return np.moveaxis(array, places, (-2, -1)).reshape(channels, height, width)


def opened_tiff(path: Path) -> Any:
    """An open TIFF file of tifffile, whose first page has pixels."""
    try:
        import tifffile
    except ImportError:
        raise Missing("tifffile", "tiff") from None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # it tells each oddity of a file in a line
    tiff_structure.check(path)
    file = tifffile.TiffFile(path)
    try:
        width, height = file.pages.first.imagewidth, file.pages.first.imagelength
        if width * height < 1:
            raise ValueError(f"it says that it has {width} x {height} pixels")
    except Exception:
        file.close()
        raise
    return file


def check_length(path: Path, series: Any) -> None:
    """Raise if a file cannot hold the pixels of an image in it."""
    if series.nbytes > path.stat().st_size * (8 if int(series.keyframe.compression) == 1 else DENSEST):
        raise ValueError(f"it is too short for {series.nbytes:,} bytes of pixels")


def _moved(series: Any) -> tuple[tuple[int, ...], str]:
    """Shape and axes of an image with rows and columns last."""
    others = [i for i, axis in enumerate(series.axes) if axis not in "YX"]
    order = [*others, series.axes.index("Y"), series.axes.index("X")]
    return tuple(series.shape[i] for i in order), "".join(series.axes[i] for i in others)


def _check_stack(path: Path, shape: tuple[int, ...], axes: str) -> None:
    for axis, length in zip(axes, shape, strict=False):
        if axis in STACKS and length > 1:
            raise DataError(f"{path} has {length} {STACKS[axis]}: save the one to use, or a projection, as a file")


# --- other files ------------------------------------------------------------------------------------------------------


def _picture(path: Path, limit: int, rules: int, helper: str = "") -> NDArray[Any]:
    """The unscaled values of a file that Pillow can read; it cuts colours of 16 bits to 8, so they go another way."""
    try:
        with opened(path) as image:
            check_size(path, *image.size, limit)
            if helper and (getattr(image, "n_frames", 1) > 1 or (bits_of(image) > 8 and len(image.getbands()) > 1)):
                raise Missing(helper, "tiff")
            if bits_of(image) > 8 and len(image.getbands()) > 1:
                return _png(path)
            upright = ImageOps.exif_transpose(image) if rules > 1 else image
            array = np.asarray(upright.convert("RGB") if image.mode == "P" else upright)
    except OSError:
        if helper:
            raise Missing(helper, "tiff") from None
        raise
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _png(path: Path) -> NDArray[Any]:
    """Colours of 16 bits, without transparency."""
    try:
        import imagecodecs
    except ImportError:
        raise Missing("imagecodecs", "tiff") from None
    array = np.atleast_3d(imagecodecs.png_decode(path.read_bytes()))
    return array[:, :, : 1 if array.shape[2] < 3 else 3].transpose(2, 0, 1)
