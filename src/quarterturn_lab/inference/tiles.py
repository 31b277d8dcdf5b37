"""An image in tiles: which pixels a network must see so that its answers are those for the whole image.

A tile starts at a multiple of the network's total stride from the image's first pixel, and ends at such a multiple from
its last one. So each orientation, at whichever corner it starts its windows, puts them where it would in the whole
image (decision 44). Nothing here needs torch: a network is a function from arrays to arrays.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Run = Callable[[NDArray[np.float32]], NDArray[Any]]  # (N, C, H, W) -> (N, classes, H', W')
Sizes = tuple[int, ...]  # height and width, or the three of a volume
SIDE = 512  # of a tile, in pixels without what is around it
TILE = 64  # ... of a volume, in voxels
VOXELS = 1_000_000  # a volume with fewer is seen in one piece


class Span(NamedTuple):
    """Along one axis: the inputs from `start` to `stop`, of which the outputs from `first` to `last` are exact."""

    start: int
    stop: int
    first: int
    last: int


Tile = tuple[Span, ...]  # a part of an image: rows and columns; or of a volume


@dataclass(frozen=True)
class View:
    """How a network sees an image of a certain size, and how to run it on a tile of it."""

    run: Callable[[NDArray[np.float32], Tile, Sizes], NDArray[Any]]  # a part of the image, its place, the image's sizes
    inputs: Sizes
    outputs: Sizes
    step: int = 1  # the total stride
    reach: int = 0  # pixels around a tile that its outputs depend on, beyond those without an output of their own
    stride: int = 1  # inputs for each output
    alone: str = ""  # why tiles are seen alone: the layer that looks at the whole image

    def of(self, sizes: Sizes) -> "View":
        """The same for an image of other sizes, larger or smaller by a multiple of the step."""
        outputs = tuple(
            count + (size - n) // self.stride for count, size, n in zip(self.outputs, sizes, self.inputs, strict=True)
        )
        return replace(self, inputs=sizes, outputs=outputs)

    def tiles(self, side: int) -> list[Tile]:
        """The tiles of the image, row by row. A turned image has the turned tiles."""
        along = (self._spans(*sizes, side) for sizes in zip(self.inputs, self.outputs, strict=True))
        return list(product(*along))

    def _spans(self, inputs: int, outputs: int, side: int) -> list[Span]:
        if inputs <= side + 2 * self.reach:
            return [Span(0, inputs, 0, outputs)]
        return [
            Span(self._corner(first * self.stride), inputs - self._corner((outputs - last) * self.stride), first, last)
            for first, last in pairwise(cuts(outputs, -(-outputs * self.stride // side)))
        ]

    def _corner(self, place: int) -> int:
        """The last corner that leaves enough room before this place, as seen from the end of the axis that is near."""
        return max(0, (place - self.reach) // self.step * self.step)

    def exact(self, image: NDArray[np.float32], tile: Tile) -> NDArray[Any]:
        """The outputs of a tile for its part of the image, `(C, H, W)` -> `(classes, H', W')`."""
        found = self.run(np.ascontiguousarray(image)[None], tile, self.inputs)[0]
        kept = (slice(span.first - span.start // self.stride, span.last - span.start // self.stride) for span in tile)
        return found[(..., *kept)]

    def parts(self, image: NDArray[np.float32], side: int) -> Iterator[tuple[Tile, NDArray[Any]]]:
        """The outputs of an image in memory, tile by tile."""
        for tile in self.tiles(side):
            place: tuple[Any, ...] = (..., *(slice(span.start, span.stop) for span in tile))
            yield tile, self.exact(image[place], tile)


def cuts(length: int, count: int) -> list[int]:
    """Where to cut an axis into about so many parts: at the same places as seen from both ends.

    >>> cuts(10, 4), cuts(11, 4)
    ([0, 2, 5, 8, 10], [0, 2, 4, 7, 9, 11])
    """
    count += length % 2 and 1 - count % 2  # an odd length has no middle to cut at
    before = [length * i // count for i in range((count + 1) // 2)]
    return [*before, *([length // 2] if count % 2 == 0 else []), *(length - cut for cut in reversed(before))]


@dataclass(frozen=True)
class Network:
    """A trained network as a function of whole inputs, and of tiles of images of given sizes."""

    run: Run
    view: Callable[[Sizes], View]
    identity: str  # of its weights
