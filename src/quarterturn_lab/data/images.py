"""From image files of any kind to square arrays of bytes."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm", ".ppm"})


def read(path: Path, settings: Settings) -> NDArray[np.uint8]:
    """One image as `(channels, side, side)` bytes: its longest side scaled, centred on the background.

    Any mode of Pillow will do: palettes, 1, 16 and 32 bits, transparency (on white). What cannot be read raises, named.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own limit of pixels is only a warning; ours is below
            with Image.open(path) as image:
                if image.width * image.height > settings.max_pixels:
                    raise DataError(
                        f"{path} has {image.width} x {image.height} pixels, more than the limit of "
                        f"{settings.max_pixels:,}: make it smaller, or raise --max-pixels"
                    )
                image.draft("L" if settings.channels == 1 else "RGB", (settings.side, settings.side))
                plain = _plain(image, "L" if settings.channels == 1 else "RGB")
    except DataError:
        raise
    except Image.DecompressionBombError:
        raise DataError(
            f"{path} has far more pixels than the limit of {settings.max_pixels:,}: make it smaller"
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path} is not there any more") from None
    except (OSError, SyntaxError, ValueError, IndexError, MemoryError) as error:
        raise DataError(f"{path} cannot be read ({error}): it is broken, truncated or no image") from None
    return _fitted(plain, settings)


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """8 bits, grey or RGB."""
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it holds values that are not finite")
        top = values.max(initial=0.0)
        scale = 255.0 if top <= 1 and image.mode == "F" else 1.0 if top <= 255 and image.mode != "I;16" else 1 / 257
        image = Image.fromarray((values * scale).clip(0, 255).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        pixels = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels)
    return image.convert(mode)


def _fitted(image: Image.Image, settings: Settings) -> NDArray[np.uint8]:
    side, longest = settings.side, settings.longest or settings.side
    factor = longest / max(image.size)
    width, height = (max(1, round(length * factor)) for length in image.size)
    scaled = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    scaled = scaled[None] if scaled.ndim == 2 else scaled.transpose(2, 0, 1)
    if settings.invert:
        scaled = 255 - scaled
    out = np.zeros((len(scaled), side, side), dtype=np.uint8)  # inverted white and black are both 0: the background
    height, width = min(height, side), min(width, side)
    top, left = (side - height) // 2, (side - width) // 2
    up, before = (scaled.shape[1] - height) // 2, (scaled.shape[2] - width) // 2
    out[:, top : top + height, left : left + width] = scaled[:, up : up + height, before : before + width]
    return out
