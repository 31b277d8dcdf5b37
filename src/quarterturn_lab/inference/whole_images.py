"""Maps of images in memory from a fully convolutional network, in blocks if it has no strides.

Nothing here needs torch: a network is a function from arrays to arrays.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.inference.tiles import Network, Run, Sizes, Tile, View
from quarterturn_lab.runs.model_card import ModelCard, probabilities

BLOCK = 256  # side of a block of the output; keeps the feature maps small
MOST = 16_000_000  # pixels that a network with strides may see at once


def object_map(
    run: Run, image: NDArray[np.float32], margin: int = 0, shrinks: bool = False, task: str = "pixels"
) -> NDArray[np.float64]:
    """`(C, H, W)` -> `(H - 2 margin, W - 2 margin)`: the probability that each pixel belongs to an object.

    For regions `(classes, H - 2 margin, W - 2 margin)`: the probability of each class.
    """
    height, width = image.shape[1:]
    view = plain_view(run, (height, width), margin, shrinks)
    return joined(view, ((tile, probabilities(task, found[None])[0]) for tile, found in view.parts(image, BLOCK)))


def joined(view: View, parts: Iterable[tuple[Tile, NDArray[np.float64]]]) -> NDArray[np.float64]:
    """One map of the maps of all tiles."""
    whole = None
    for tile, part in parts:
        if whole is None:
            whole = np.empty((*part.shape[: -len(tile)], *view.outputs))
        place: tuple[Any, ...] = (..., *(slice(span.first, span.last) for span in tile))
        whole[place] = part
    assert whole is not None
    return whole


def plain_view(run: Run, sizes: Sizes, margin: int, shrinks: bool) -> View:
    """How a network sees an image, by what is known without trying.

    Without strides, each output depends only on its neighbourhood, so overlapping blocks give the same result as the
    whole image. `shrinks`: the network has strides, and the image is not split.
    """
    outputs = tuple(length - 2 * margin for length in sizes)
    return View(lambda part, tile, whole: run(part), sizes, outputs, reach=max(sizes) if shrinks else 0)


def plain_network(run: Run, card: ModelCard, identity: str = "") -> Network:
    """A network of which only the model card is known, such as that of an ONNX file."""

    def view(sizes: Sizes) -> View:
        if card.shrinks and math.prod(sizes) > MOST:
            size = " x ".join(f"{length:,}" for length in reversed(sizes))
            raise ConfigError(
                f"the network has strides, and an ONNX file does not say where to cut {size} pixels into tiles: use "
                "the run directory instead of --onnx"
            )
        return plain_view(run, sizes, card.margin, card.shrinks)

    return Network(run, view, identity)
