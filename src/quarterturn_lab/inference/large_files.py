"""Windows of image files: TIFF, slides and rasters part by part, other files at once. Nothing here needs torch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.data import images, numeric_files
from quarterturn_lab.data.numeric_files import Missing
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.runs.model_card import ModelCard

Array = NDArray[Any]
Pair = tuple[float, float]
Tags = tuple[tuple[Any, ...], ...]  # of TIFF: code, type, count, value, whether once
SLIDES = frozenset({".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide"})
RASTERS = frozenset({".jp2", ".j2k", ".vrt", ".img"})
LARGE = 4_000_000  # pixels; smaller TIFF files are read at once
SCALE, TIES, MATRIX, *KEYS = 33550, 33922, 34264, 34735, 34736, 34737  # tags of GeoTIFF
CONVERT = "convert it to a tiled TIFF, such as by `gdal_translate -co TILED=YES IMAGE OUT.tif`"


class NotInParts(DataError):
    """A file that can be read at once, if it is small enough, and not in parts."""


@dataclass(frozen=True)
class Picture:
    """An open image: `read(top, bottom, left, right)` gives `(channels, height, width)` as `images.decoded` does."""

    path: Path
    width: int
    height: int
    bands: tuple[int, ...]  # its possible numbers of channels
    read: Callable[[int, int, int, int], Array]
    georeference: Tags = ()
    spacing: Pair | None = None  # micrometres from a pixel to the next, along x and y


@contextmanager
def opened(path: Path, card: ModelCard, convert: bool = False, level: int = 0) -> Iterator[Picture]:
    """The image of a file. Grey and colour must match the training images, unless `convert`."""
    fault = images.fault_of(path)
    if fault:
        raise DataError(f"{path} {fault}")
    kind = path.suffix.lower()
    in_parts = _slide if kind in SLIDES else _raster if kind in RASTERS else None
    if kind in numeric_files.TIFF and (level or _count(path) > LARGE):
        in_parts = _tiff
    if level and in_parts is None:
        raise ConfigError(f"--level {level}: {path} has one level, leave it out")
    try:
        with numeric_files.quiet(), ExitStack() as stack:
            try:
                picture = stack.enter_context((in_parts or _at_once)(path, card, level))
            except NotInParts:
                if in_parts is not _tiff or level or _count(path) > card.settings.max_pixels:
                    raise
                picture = stack.enter_context(_at_once(path, card, level))
            check_channels(path, picture.bands, card, convert)
            yield picture
    except Missing as error:
        raise DataError(f"{path} needs {error}") from None


def check_channels(path: Path, bands: tuple[int, ...], card: ModelCard, convert: bool) -> None:
    """Raise unless a file has one of the numbers of channels of the training images, or `convert` is given."""
    if card.bands and not convert and not set(bands) & set(card.bands):
        trained = " or ".join(map(str, card.bands))
        raise DataError(
            f"{images.has_channels(path, bands[0])}, but the network was trained on images with {trained}: use "
            "--convert to convert between grey and colour"
        )


@contextmanager
def _at_once(path: Path, card: ModelCard, level: int) -> Iterator[Picture]:
    _check_size(path, card.settings.max_pixels)
    array, bands = images.decoded(path, card.settings)
    georeference, spacing = _about(path) if path.suffix.lower() in numeric_files.TIFF else ((), None)
    _, height, width = array.shape

    def read(top: int, bottom: int, left: int, right: int) -> Array:
        return array[:, top:bottom, left:right]

    yield Picture(path, width, height, bands, read, georeference, spacing)


def _check_size(path: Path, limit: int) -> None:
    try:
        with numeric_files.opened(path) as image:
            width, height = image.size
    except Exception:  # decoding it says what is wrong
        return
    if width * height > limit:
        raise DataError(
            f"{path} has {width:,} x {height:,} pixels, more than the limit of {limit:,} for files that are read at "
            f"once: raise --max-pixels, or {CONVERT}"
        )


def _as_decoded(path: Path, array: Array, card: ModelCard) -> Array:
    """A window `(channels, height, width)` of a file's values as `images.decoded` gives it."""
    if card.settings.floats:
        values = array.astype(np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{path} has values that are not finite: replace them first")
        return values
    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(array, 0, -1) if len(array) > 1 else array[0]))
    pixels = np.asarray(images.eight_bits(picture).convert("L" if card.settings.channels == 1 else "RGB"))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _check_values(path: Path, channels: int, dtype: np.dtype[Any], card: ModelCard) -> tuple[int, ...]:
    """The number of channels that count, if the network can take them."""
    if card.settings.floats:
        if channels != card.settings.channels:
            needed = f"{card.settings.channels} are needed, see --channels"
            raise DataError(f"{images.has_channels(path, channels)}: {needed}")
        return (channels,)
    if dtype != np.uint8:
        raise NotInParts(
            f"{path} has values of {8 * dtype.itemsize} bits, and the network was trained on 8: convert it"
        )
    if channels > 4:
        raise DataError(f"{images.has_channels(path, channels)}, and 1 or 3 are needed: save those to use")
    return (3,) if channels > 2 else (1,)


def _check_level(path: Path, level: int, sizes: list[tuple[int, int]]) -> None:
    if not 0 <= level < len(sizes):
        known = ", ".join(f"{i} ({width:,} x {height:,})" for i, (width, height) in enumerate(sizes))
        raise ConfigError(f"--level {level}: {path} has level{'s' if len(sizes) > 1 else ''} {known}")


# --- TIFF -------------------------------------------------------------------------------------------------------------


def _count(path: Path) -> int:
    """The number of pixels of a TIFF file; 0 if it cannot be read, and reading it says what is wrong."""
    try:
        with numeric_files.opened(path) as image:
            return image.width * image.height
    except Exception:  # Pillow knows few kinds of values
        try:
            with numeric_files.quiet(), numeric_files.opened_tiff(path) as file:
                return int(file.pages[0].imagewidth) * int(file.pages[0].imagelength)
        except Exception:
            return 0


@contextmanager
def _tiff(path: Path, card: ModelCard, level: int) -> Iterator[Picture]:
    try:
        file = numeric_files.opened_tiff(path)
        series = file.series[0]
        for each in series.levels:
            numeric_files.check_length(path, each)
    except (Missing, DataError):
        raise
    except Exception as error:  # tifffile has its own classes
        raise DataError(f"{path} cannot be read ({error}): it is damaged, truncated or not an image") from None
    with file:
        _check_level(path, level, [_width_height(each) for each in series.levels])
        part = series.levels[level]
        width, height = _width_height(part)
        pages = [n for n, axis in zip(part.shape, part.axes, strict=True) if axis not in "YXS" and n > 1]
        if pages and not card.settings.floats:
            raise DataError(f"{path} has {pages[0]} pages or frames: save the one to use as a file of its own")
        page = part.keyframe
        if not card.settings.floats and (page.photometric not in (1, 2, 6) or page.tags.valueof(274, 1) != 1):
            raise NotInParts(
                f"{path} has inverted, indexed or turned pixels, which are not read in parts: save it as RGB"
            )
        channels = int(np.prod([n for n, axis in zip(part.shape, part.axes, strict=True) if axis not in "YX"]))
        bands = _check_values(path, channels, part.dtype, card)
        window = _windows(path, part, series, level, card.settings.max_pixels)
        full = _width_height(series)
        scale = (full[0] / width, full[1] / height)
        yield Picture(
            path,
            width,
            height,
            bands,
            lambda *box: _as_decoded(path, window(*box), card),
            _georeference(file.pages[0], scale),
            _spacing(file, scale),
        )


def _width_height(series: Any) -> tuple[int, int]:
    return series.shape[series.axes.index("X")], series.shape[series.axes.index("Y")]


def _windows(path: Path, part: Any, series: Any, level: int, max_pixels: int) -> Callable[[int, int, int, int], Array]:
    """Reads windows of a level of a TIFF file: through the system if it is one piece, else piece by piece."""
    axes, page, width = part.axes, part.keyframe, _width_height(part)[0]
    array: Any = None
    if part.dataoffset is None:
        if np.prod(page.chunks) > max_pixels * page.samplesperpixel:
            raise NotInParts(f"{path} is compressed in one piece, which cannot be read in parts: {CONVERT}")
        try:
            import zarr
        except ImportError:
            raise Missing("zarr", "tiff") from None
        array = zarr.open(series.aszarr(level=level), mode="r")
    strips = part.dataoffset is None and not page.is_tiled
    rows: dict[tuple[int, int], Array] = {}  # strips hold whole rows: the windows beside each other share them

    def cut(top: int, bottom: int, left: int, right: int) -> Array:
        where = tuple({"Y": slice(top, bottom), "X": slice(left, right)}.get(axis, slice(None)) for axis in axes)
        try:
            if array is None:
                dtype = np.dtype(part.parent.byteorder + part.dtype.char)
                found = np.array(np.memmap(path, dtype, "r", part.dataoffset, part.shape)[where])
            else:
                found = np.asarray(array[where])
        except Exception as error:  # each compression has its own classes
            raise DataError(f"{path} cannot be read ({error}): it is damaged or truncated") from None
        moved = np.moveaxis(found, (axes.index("Y"), axes.index("X")), (-2, -1))
        return moved.reshape(-1, bottom - top, right - left)

    def window(top: int, bottom: int, left: int, right: int) -> Array:
        if not strips:
            return cut(top, bottom, left, right)
        if (top, bottom) not in rows:
            rows.clear()
            rows[top, bottom] = cut(top, bottom, 0, width)
        return rows[top, bottom][:, :, left:right]

    return window


def _about(path: Path) -> tuple[Tags, Pair | None]:
    """The georeference of a TIFF file and the spacing of its pixels, as far as they can be read."""
    try:
        with numeric_files.quiet(), numeric_files.opened_tiff(path) as file:
            return _georeference(file.pages[0], (1, 1)), _spacing(file, (1, 1))
    except Exception:  # tifffile is missing, or does not read what Pillow does
        return (), None


def _georeference(page: Any, scale: Pair) -> Tags:
    """The tags of GeoTIFF, for pixels that are larger by these factors."""
    x, y = scale
    found = []
    for code in (SCALE, TIES, MATRIX, *KEYS):
        tag = page.tags.get(code)
        if tag is None:
            continue
        value = tag.value
        if code == SCALE:
            value = (value[0] * x, value[1] * y, *value[2:])
        elif code == TIES:
            value = tuple(v / (x, y, 1, 1, 1, 1)[i % 6] for i, v in enumerate(value))
        elif code == MATRIX:
            value = tuple(v * (x, y, 1, 1)[i % 4] for i, v in enumerate(value))
        found.append((code, int(tag.dtype), tag.count, value, True))
    return tuple(found)


def _spacing(file: Any, scale: Pair) -> Pair | None:
    """Micrometres between pixels, from OME's metadata or the resolution that a TIFF file has."""
    x = y = None
    if file.is_ome:
        from xml.etree import ElementTree

        pixels = next(
            (e.attrib for e in ElementTree.fromstring(file.ome_metadata).iter() if e.tag.endswith("Pixels")), {}
        )
        if pixels.get("PhysicalSizeXUnit", "µm") == "µm" and {"PhysicalSizeX", "PhysicalSizeY"} <= set(pixels):
            x, y = float(pixels["PhysicalSizeX"]), float(pixels["PhysicalSizeY"])
    else:
        tags = file.pages[0].tags
        unit = {2: 25400.0, 3: 10000.0}.get(int(tags.valueof(296, 1)))  # an inch, a centimetre
        across, down = tags.valueof(282), tags.valueof(283)
        if unit and across and down and across[0] and down[0]:
            x, y = unit * across[1] / across[0], unit * down[1] / down[0]
    return None if x is None or y is None else (x * scale[0], y * scale[1])


# --- slides and rasters -----------------------------------------------------------------------------------------------


@contextmanager
def _slide(path: Path, card: ModelCard, level: int) -> Iterator[Picture]:
    try:
        import openslide
    except ImportError:
        raise Missing("openslide", "slides") from None
    try:
        slide = openslide.OpenSlide(path)
    except openslide.OpenSlideError as error:
        raise DataError(f"{path} cannot be read ({error}): it is damaged or not a slide") from None
    with slide:
        _check_level(path, level, list(slide.level_dimensions))
        width, height = slide.level_dimensions[level]
        by = slide.level_downsamples[level]
        bands = _check_values(path, 3, np.dtype(np.uint8), card)

        def read(top: int, bottom: int, left: int, right: int) -> Array:
            try:
                found = slide.read_region((round(left * by), round(top * by)), level, (right - left, bottom - top))
            except openslide.OpenSlideError as error:
                raise DataError(f"{path} cannot be read ({error}): it is damaged or truncated") from None
            return _as_decoded(path, np.moveaxis(np.asarray(found), -1, 0), card)

        sides = [slide.properties.get(f"openslide.mpp-{axis}") for axis in "xy"]
        spacing = (float(sides[0]) * by, float(sides[1]) * by) if sides[0] and sides[1] else None
        yield Picture(path, width, height, bands, read, spacing=spacing)


@contextmanager
def _raster(path: Path, card: ModelCard, level: int) -> Iterator[Picture]:
    try:
        import rasterio  # type: ignore[import-untyped]
        from rasterio.windows import Window  # type: ignore[import-untyped]
    except ImportError:
        raise Missing("rasterio", "geo") from None
    try:
        source = rasterio.open(path)
    except rasterio.errors.RasterioIOError as error:
        raise DataError(f"{path} cannot be read ({error}): it is damaged or not an image") from None
    with source:
        sizes = [(source.width, source.height)]
        sizes += [(-(-source.width // by), -(-source.height // by)) for by in source.overviews(1)]
        _check_level(path, level, sizes)
        if level:
            source.close()
            source = rasterio.open(path, overview_level=level - 1)
        bands = _check_values(path, source.count, np.dtype(source.dtypes[0]), card)

        def read(top: int, bottom: int, left: int, right: int) -> Array:
            try:
                found = source.read(window=Window(left, top, right - left, bottom - top))
            except rasterio.errors.RasterioIOError as error:
                raise DataError(f"{path} cannot be read ({error}): it is damaged or truncated") from None
            return _as_decoded(path, found, card)

        yield Picture(path, source.width, source.height, bands, read, _raster_tags(source))
        source.close()


def _raster_tags(source: Any) -> Tags:
    """The georeference of any raster as GDAL writes it into a GeoTIFF."""
    import rasterio
    from rasterio.io import MemoryFile  # type: ignore[import-untyped]

    if source.crs is None and source.transform == rasterio.Affine.identity():
        return ()
    about = {"driver": "GTiff", "width": 1, "height": 1, "count": 1, "dtype": "uint8"}
    with MemoryFile() as memory:
        with memory.open(**about, crs=source.crs, transform=source.transform):
            pass
        import tifffile

        with tifffile.TiffFile(memory) as file:
            return _georeference(file.pages[0], (1, 1))
