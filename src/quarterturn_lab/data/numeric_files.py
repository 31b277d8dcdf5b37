"""Reads files of numeric values: FITS, and float, 16-bit or many-channel TIFF.

Nothing here needs torch.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.errors import DataError

FITS = frozenset({".fits", ".fit", ".fts"})
TIFF = frozenset({".tif", ".tiff"})


def read(path: Path, max_pixels: int) -> NDArray[np.float32]:
    """The unscaled values of a file as `(channels, H, W)`. Values that are not finite raise."""
    kind = path.suffix.lower()
    try:
        with quiet():
            array = _fits(path) if kind in FITS else _tiff(path) if kind in TIFF else _picture(path)
    except Missing as error:
        raise DataError(f"{path} needs {error}") from None
    except FileNotFoundError:
        raise DataError(f"{path} no longer exists") from None
    except Exception as error:  # each package has its own error classes
        raise DataError(f"{path} cannot be read ({error}): it is damaged, truncated or not an image") from None
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3:
        shape = " x ".join(map(str, array.shape))
        raise DataError(f"{path} has an array of {shape}: an image has 2 axes, or 3 with channels")
    if array.shape[1] * array.shape[2] > max_pixels:
        raise DataError(too_many_pixels(path, array.shape[2], array.shape[1], max_pixels))
    values = array.astype(np.float32)
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise DataError(f"{path} has {count:,} values that are not finite: replace them first")
    return values


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of libraries about odd files that they can read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def too_many_pixels(path: Path, width: int, height: int, limit: int) -> str:
    what = f"{path} has {width} x {height} pixels, more than the limit of {limit:,}"
    return f"{what}: make it smaller, or raise --max-pixels"


class Missing(Exception):
    """A package that is not installed, and how to install it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package}: pip install "quarterturn[{extra}]"')


def _fits(path: Path) -> NDArray[Any]:
    """The first image in the file; the axes of a cube are channels, rows, columns."""
    try:
        from astropy.io import fits  # type: ignore[import-untyped]
    except ImportError:
        raise Missing("astropy", "fits") from None
    with fits.open(path, memmap=False) as parts:
        for part in parts:
            if part.is_image and part.data is not None:
                return np.asarray(part.data)
    raise ValueError("no image in the file")


def _tiff(path: Path) -> NDArray[Any]:
    """All samples of the first image; pages of the same size are channels."""
    try:
        import tifffile
    except ImportError:
        return _picture(path, "tifffile")
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        array, axes = series.asarray(), series.axes
    return np.moveaxis(array, (axes.index("Y"), axes.index("X")), (-2, -1))


def _picture(path: Path, helper: str = "") -> NDArray[Any]:
    """The unscaled values of a file that Pillow can read."""
    try:
        with Image.open(path) as image:
            if getattr(image, "n_frames", 1) > 1 and helper:
                raise Missing(helper, "tiff")
            array = np.asarray(image.convert("RGB") if image.mode == "P" else image)
    except OSError:
        if helper:
            raise Missing(helper, "tiff") from None
        raise
    return array if array.ndim == 2 else array.transpose(2, 0, 1)
