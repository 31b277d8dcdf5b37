"""Images of a data set as small pictures inside a page."""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage  # type: ignore[import-untyped]

Picture = NDArray[np.uint8]  # (H, W, 3)
Colour = tuple[int, int, int]
TRUE, FOUND = (255, 200, 0), (40, 190, 255)  # outlines: yellow and blue are told apart by nearly all eyes
SMALLEST, LARGEST = 96, 280  # pixels of the longest side in the page


def light(images: NDArray[Any]) -> NDArray[np.float32]:
    """Values scaled to [0, 1] for display."""
    if images.dtype == np.uint8:
        return np.asarray(images / 255, dtype=np.float32)
    low, high = np.quantile(images, (0.01, 0.99))
    return np.asarray(((images - low) / max(high - low, 1e-9)).clip(0, 1), dtype=np.float32)


def picture(image: NDArray[Any], inverted: bool = False) -> Picture:
    """An image `(C, H, W)` in colour; with other than three channels it is the mean of them, in grey."""
    values = light(image)
    shown = values if len(values) == 3 else np.repeat(values.mean(0, keepdims=True), 3, axis=0)
    shown = 1 - shown if inverted else shown
    return (255 * np.moveaxis(shown, 0, 2)).round().astype(np.uint8)


def outlined(image: Picture, outlines: dict[Colour, NDArray[Any]]) -> Picture:
    """The image, enlarged if it is small, with the outline of each region of these maps in its colour."""
    factor = max(1, -(-SMALLEST * 2 // max(image.shape[:2])))
    large = image.repeat(factor, 0).repeat(factor, 1)
    for colour, regions in outlines.items():
        grown = np.asarray(regions).repeat(factor, 0).repeat(factor, 1)
        edge = ndimage.maximum_filter(grown, 3) != ndimage.minimum_filter(grown, 3)
        large[edge & (grown > 0)] = colour
    return large


def in_page(image: Picture) -> str:
    """The picture as the address of an `<img>`."""
    made = Image.fromarray(image)
    longest = max(made.size)
    wanted = min(max(longest, SMALLEST), LARGEST)
    if wanted != longest:
        width, height = (max(1, round(length * wanted / longest)) for length in made.size)
        made = made.resize((width, height), Image.Resampling.NEAREST if wanted > longest else Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    made.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
