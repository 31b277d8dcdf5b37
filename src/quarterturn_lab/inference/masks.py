"""Masks of images of any size, tile by tile. Nothing here needs torch.

Tiles go into an array, in memory or in a file, and from there into a PNG or a tiled TIFF that gets its name at the end.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.data.dataset import COLOUR
from quarterturn_lab.errors import DataError, RunError
from quarterturn_lab.files import no_space
from quarterturn_lab.inference.large_files import Picture, opened
from quarterturn_lab.inference.tiles import SIDE, Network, Tile, View
from quarterturn_lab.inference.unfinished import marks
from quarterturn_lab.inference.whole_images import joined
from quarterturn_lab.runs.model_card import ModelCard, probabilities

SMALL = 64  # pixels; below, a network may have no room for its windows
TIFF = (".tif", ".tiff")
SECONDS = 2  # of work that a kill may lose
PIECE = 512  # side of the tiles of a TIFF file
Say = Callable[[str], None]
Progress = Callable[..., None]  # done, total, unit


def pixels(found: NDArray[np.float64], card: ModelCard, grey: bool) -> NDArray[Any]:
    """A mask with values 0 and 255, or with probabilities as grey levels, `(H, W)`.

    Regions have the values or colours `(H, W, 3)` of the masks that the network has learned from, or the numbers of the
    classes.
    """
    if card.task != "regions":
        levels = (255 * found).round() if grey else np.where(found >= 0.5, 255, 0)
        return levels.astype(np.uint8)
    values = np.array(card.values or range(len(found)))
    chosen = values[found.argmax(axis=0)]
    if values.max() < COLOUR:
        return chosen.astype(np.uint8 if values.max() < 256 else np.uint16)
    grey_ones = np.stack([chosen] * 3, axis=-1)
    colours = np.stack([chosen >> shift & 255 for shift in (16, 8, 0)], axis=-1)
    return np.where(chosen[..., None] < COLOUR, grey_ones, colours).astype(np.uint8)


# --- tiles ------------------------------------------------------------------------------------------------------------


def view_of(network: Network, card: ModelCard, picture: Picture, side: int) -> View:
    """How the network sees the image, which is extended by reflection where the network has no outputs."""
    height, width = (length + 2 * card.margin for length in (picture.height, picture.width))
    if max(height, width) > side + 2 * card.margin:
        return network.view((height, width))
    return View(
        lambda part, tile, sizes: network.run(part), (height, width), (picture.height, picture.width), reach=side
    )


def tile_of(view: View, card: ModelCard, picture: Picture, tile: Tile) -> NDArray[np.float64]:
    """The probability of each pixel (and class) of a tile."""
    rows, columns = (
        np.pad(np.arange(length), card.margin, mode="symmetric")[span.start : span.stop]
        for length, span in zip((picture.height, picture.width), tile, strict=True)
    )
    top, left = int(rows.min()), int(columns.min())
    part = picture.read(top, int(rows.max()) + 1, left, int(columns.max()) + 1)
    image = card.scaled(part[:, rows - top][:, :, columns - left])
    try:
        return probabilities(card.task, view.exact(image, tile)[None])[0]
    except Exception as error:  # torch, onnxruntime and our layers have their own classes
        if min(picture.height, picture.width) >= SMALL:
            raise
        why, size = str(error).splitlines()[0], f"{picture.width} x {picture.height}"
        raise DataError(f"{picture.path} has {size} pixels, too few for the network ({why})") from None


def probability_map(
    network: Network, card: ModelCard, path: Path, convert: bool = False, side: int = SIDE
) -> NDArray[np.float64]:
    """The probability of each pixel (and class) of an image that fits into memory."""
    with opened(path, card, convert) as picture:
        view = view_of(network, card, picture, side)
        return joined(view, ((tile, tile_of(view, card, picture, tile)) for tile in view.tiles(side)))


# --- masks in files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Canvas:
    """A mask in a file of plain numbers, which is opened for each access: no more than that is in memory."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __getitem__(self, where: tuple[slice, slice]) -> NDArray[Any]:
        return np.array(np.memmap(self.path, self.dtype, "r", shape=self.shape)[where])

    def __setitem__(self, where: tuple[slice, slice], values: NDArray[Any]) -> None:
        np.memmap(self.path, self.dtype, "r+", shape=self.shape)[where] = values

    def keep(self) -> None:
        """Have the system write what it still has in memory."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())


def canvas_for(card: ModelCard, picture: Picture, path: Path) -> Canvas:
    """The canvas for the mask of an image."""
    classes = (len(card.classes),) if card.task == "regions" else ()
    one = pixels(np.zeros((*classes, 1, 1)), card, grey=False)
    return Canvas(path, (picture.height, picture.width, *one.shape[2:]), one.dtype)


def write(
    network: Network,
    card: ModelCard,
    picture: Picture,
    out: Path,
    folder: Path,
    grey: bool,
    side: int,
    progress: Progress,
    say: Say,
) -> None:
    """Write the mask of an image. `folder` keeps what is done so far: the same call continues."""
    view = view_of(network, card, picture, side)
    tiles = view.tiles(side)
    canvas = canvas_for(card, picture, folder / "mask.raw")
    note = ""
    if len(tiles) > 1:
        say(_plan(view, picture, len(tiles)))
        note = f"tiles of {side} pixels were seen alone, because of {view.alone}" if view.alone else ""
        _check_space(out, canvas)
    with no_space(str(out)):
        done = folder / "tiles"  # their numbers, a line for each
        with canvas.path.open("ab") as file:
            if file.tell() != canvas.size:  # it begins, or what was written is not on the disk
                done.unlink(missing_ok=True)
            file.truncate(canvas.size)
        finished = {number for line in marks(done) for number in line}
        progress(len(finished), len(tiles), "tiles")
        with _marks(done, canvas) as mark:
            for number, tile in enumerate(tiles):
                if number in finished:
                    continue
                rows, columns = (slice(span.first, span.last) for span in tile)
                canvas[rows, columns] = pixels(tile_of(view, card, picture, tile), card, grey)
                mark(number)
                finished.add(number)
                progress(len(finished), len(tiles), "tiles")
        scratch = folder / f"mask{out.suffix}"
        if out.suffix.lower() in TIFF:
            _write_tiff(canvas, scratch, out, picture, note)
        else:
            Image.fromarray(canvas[:, :]).save(scratch)
        out.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch, out)


@contextmanager
def _marks(path: Path, canvas: Canvas) -> Iterator[Callable[[int], None]]:
    """Writes down which tiles are done, every few seconds, after their pixels are on the disk."""
    new: list[int] = []
    last = time.monotonic()

    def write() -> None:
        canvas.keep()
        with path.open("a") as file:
            file.writelines(f"{number}\n" for number in new)
        new.clear()

    def mark(number: int) -> None:
        nonlocal last
        new.append(number)
        if time.monotonic() - last > SECONDS:
            write()
            last = time.monotonic()

    try:
        yield mark
    finally:
        write()


def _plan(view: View, picture: Picture, count: int) -> str:
    size = f"{picture.width:,} x {picture.height:,} pixels in {count:,} tiles"
    if view.alone:
        return f"{size}, each seen alone with {view.reach} pixels around it, because of {view.alone}"
    return f"{size}, with {view.reach} pixels around each: the result is that of one pass over the whole image"


def _check_space(out: Path, canvas: Canvas) -> None:
    there = canvas.path.stat().st_blocks * 512 if canvas.path.exists() else 0
    needed = 2 * canvas.size - there
    free = shutil.disk_usage(canvas.path.parent).free
    if needed > free:
        raise RunError(
            f"{out} needs up to {needed / 1e9:,.1f} GB while it is written, and {free / 1e9:,.1f} GB are free: make "
            "room, or give another --out"
        )


def _write_tiff(canvas: Canvas, scratch: Path, out: Path, picture: Picture, note: str) -> None:
    """Write a tiled TIFF with the georeference and spacing of the image; OME-TIFF if the name says so."""
    import tifffile

    height, width, *samples = canvas.shape
    pieces = (
        canvas[slice(top, top + PIECE), slice(left, left + PIECE)]
        for top in range(0, height, PIECE)
        for left in range(0, width, PIECE)
    )
    is_ome = out.name.lower().endswith((".ome.tif", ".ome.tiff"))
    about: dict[str, Any] = {"axes": "YXS" if samples else "YX"}
    resolution: dict[str, Any] = {}
    if picture.spacing:
        x, y = picture.spacing
        resolution = {"resolution": (1e4 / x, 1e4 / y), "resolutionunit": "CENTIMETER"}
        about |= {"PhysicalSizeX": x, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": y, "PhysicalSizeYUnit": "µm"}
    if is_ome and note:
        about["Description"] = note
    with tifffile.TiffWriter(scratch, bigtiff=canvas.size > 2**31, ome=is_ome) as file:
        file.write(
            pieces,
            shape=canvas.shape,
            dtype=canvas.dtype,
            tile=(PIECE, PIECE),
            compression="zlib",
            photometric="rgb" if samples else "minisblack",
            software="quarterturn",
            metadata=about if is_ome else None,
            description=None if is_ome else note or None,
            extratags=picture.georeference,
            maxworkers=1,
            **resolution,
        )
