"""Reads image files as arrays `(C, H, W)`, and fits them to the square input of a network.

`settings.rules` says how. 1 is for the paper's experiments: pixels as they are stored, 16 bits cut to 8, squares filled
with black. 2 is for the user's own images: turned as the camera says (EXIF), more than 8 bits only with `floats`, one
frame in a file, squares filled with the median of the image's own border.

Nothing here needs torch.
"""

import os
import stat
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from quarterturn_lab.data import numeric_files
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.errors import DataError

Array = NDArray[Any]
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm", ".ppm"})
SUFFIXES |= numeric_files.FITS
# What Pillow raises for a damaged file, of which it has many kinds.
UNREADABLE = (
    *(OSError, SyntaxError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError, RuntimeError),
    *(EOFError, MemoryError, struct.error, zlib.error),
)
Image.MAX_IMAGE_PIXELS = None  # the limit is `max_pixels`, which is checked before an image is decoded


def fault_of(path: Path) -> str | None:
    """Why a path cannot be read as a file; None if it can."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "is a link to a file that does not exist" if path.is_symlink() else "no longer exists"
    except OSError as error:
        return f"cannot be opened ({error.strerror})"
    if stat.S_ISDIR(mode):
        return "is a folder, not an image"
    if not stat.S_ISREG(mode):
        return "is not a file of data (a pipe, socket or device)"
    if not os.access(path, os.R_OK):
        return "may not be read (permission denied)"
    return None


def read(path: Path, settings: Settings) -> Array:
    """One image as `(channels, side, side)`: scaled by its longest side, and centred."""
    return fitted(decoded(path, settings, scaled=True)[0], settings)


def decoded(path: Path, settings: Settings, scaled: bool = False) -> tuple[Array, tuple[int, ...]]:
    """One image as `(channels, H, W)`, and its possible numbers of channels: (1,), (3,), or (1, 3) for a grey RGB file.

    Every Pillow mode is converted to bytes, in grey or colour, with transparency on white. With `settings.floats`, the
    values and channels of the file are kept. `scaled`: the image will be `fitted`, so a JPEG may be decoded at lower
    resolution. Unreadable files raise.
    """
    fault = fault_of(path)
    if fault:
        raise DataError(f"{path} {fault}")
    if settings.floats:
        array = numeric_files.read(path, settings.max_pixels, settings.rules)
        if len(array) != settings.channels:
            raise DataError(f"{has_channels(path, len(array))}: {settings.channels} are needed, see --channels")
        return array, (len(array),)
    if settings.channels not in (1, 3):
        raise DataError(
            f"8-bit images have 1 or 3 channels, not {settings.channels}: use --floats for other numbers of channels"
        )
    if path.suffix.lower() in numeric_files.FITS:
        raise DataError(f"{path} is a FITS file: use --floats to read its values")
    mode = "L" if settings.channels == 1 else "RGB"
    least = max(settings.side, settings.longest or settings.side)
    try:
        with numeric_files.opened(path) as image:
            width, height = image.size
            if width * height <= settings.max_pixels:
                if settings.rules == 2:
                    check_is_one_picture(path, image)
                if scaled:
                    image.draft(None, (least, least))
                picture = eight_bits(ImageOps.exif_transpose(image) if settings.rules == 2 else image)
                colours = np.asarray(picture.convert("RGB")) if picture.mode != "L" else None
                plain = np.asarray(picture.convert(mode))
    except FileNotFoundError:
        raise DataError(f"{path} no longer exists") from None
    except DataError:
        raise
    except UNREADABLE as error:
        hint = "; for floats or many channels use --floats" if path.suffix.lower() in numeric_files.TIFF else ""
        raise DataError(f"{path} cannot be read ({error}): it is damaged, truncated or not an image{hint}") from None
    if width * height > settings.max_pixels:
        raise DataError(numeric_files.too_many_pixels(path, width, height, settings.max_pixels))
    array = plain[None] if plain.ndim == 2 else plain.transpose(2, 0, 1)
    if colours is None:
        return array, (1,)
    red, green, blue = colours.transpose(2, 0, 1)
    return array, (1, 3) if np.array_equal(red, green) and np.array_equal(green, blue) else (3,)


def check_is_one_picture(path: Path, image: Image.Image) -> None:
    """Raise if an open file has several frames, or more bits or channels than Pillow would keep."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # phones put a small second picture into their JPEG files
        hint = ", or use --floats if they are channels" if image.format == "TIFF" else ""
        raise DataError(f"{path} has {frames} pages or frames: save the one to use as a file of its own{hint}")
    bits = numeric_files.bits_of(image)
    if bits > 8:
        raise DataError(f"{path} has {bits} bits for each value: use --floats to keep them")
    if numeric_files.has_more_channels(image):
        raise DataError(f"{has_channels(path, numeric_files.samples_of(image))}: use --floats to keep them")


def has_channels(path: Path, count: int) -> str:
    return f"{path} has {count} channel{'s' if count != 1 else ''}"


def eight_bits(image: Image.Image) -> Image.Image:
    """The image in 8 bits, without transparency."""
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it has values that are not finite")
        top = values.max(initial=0.0)
        scale = 255.0 if top <= 1 and image.mode == "F" else 1.0 if top <= 255 and image.mode != "I;16" else 1 / 257
        return Image.fromarray((values * scale).clip(0, 255).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        pixels = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels)
    image.load()
    return image.convert("L") if image.mode == "1" else image


def fitted(array: Array, settings: Settings) -> Array:
    """`(C, H, W)` -> `(C, side, side)`: the longest side scaled to `longest`, then cropped or padded to a square.

    Padding is 0 for bytes (black, or inverted white), and the median of each channel for floats; with the second rules
    the median of its border.
    """
    side, longest = settings.side, settings.longest or settings.side
    factor = longest / max(array.shape[1:])
    height, width = (max(1, round(length * factor)) for length in array.shape[1:])
    scaled = np.stack(
        [np.asarray(Image.fromarray(c).resize((width, height), Image.Resampling.BILINEAR)) for c in array]
    )
    if settings.invert:
        scaled = 255 - scaled
    out = np.zeros((len(scaled), side, side), dtype=scaled.dtype)
    if settings.rules == 2:
        out += np.median(_border(scaled), axis=1).astype(scaled.dtype)[:, None, None]
    elif settings.floats:
        out += np.median(scaled, axis=(1, 2), keepdims=True)
    height, width = min(height, side), min(width, side)
    top, left = (side - height) // 2, (side - width) // 2
    up, before = (scaled.shape[1] - height) // 2, (scaled.shape[2] - width) // 2
    out[:, top : top + height, left : left + width] = scaled[:, up : up + height, before : before + width]
    return out


def _border(array: Array) -> Array:
    """The pixels at the four edges, `(C, count)`."""
    edges = (array[:, 0], array[:, -1], array[:, :, 0], array[:, :, -1])
    return np.concatenate(edges, axis=1)
