"""Images with label maps of the same size, read for the loaders of scenes."""

import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import cache, images, volumes
from quarterturn_lab.data.dataset import NO_IMAGES, Ragged, Scenes, Settings
from quarterturn_lab.data.masks import Meaning
from quarterturn_lab.data.numeric_files import check_size, opened
from quarterturn_lab.data.read_all import by_stem, check_none_bad, each
from quarterturn_lab.errors import DataError

Pair = tuple[str, Path, Path]  # name, image, label map


def matched(image_folder: Path, label_folder: Path, prefix: str, skip: bool) -> list[Pair]:
    """Images and label maps with the same name without extension. A file on its own raises, or is skipped."""
    pictures, maps = by_stem(image_folder), by_stem(label_folder)
    for here, there, what, folder in (
        (pictures, maps, "label map", label_folder),
        (maps, pictures, "image", image_folder),
    ):
        alone = [path for stem, path in here.items() if stem not in there]
        if alone and not skip:
            others = f" ({len(alone)} such files)" if len(alone) > 1 else ""
            raise DataError(f"{alone[0]} has no {what} in {folder}{others}. Use --skip-bad to skip them")
    return [(f"{prefix}{stem}", pictures[stem], maps[stem]) for stem in pictures if stem in maps]


def read(
    kind: str,
    pairs: list[Pair],
    settings: Settings,
    instances: bool,
    least: int = 1,
    meaning: Meaning | None = None,
) -> Scenes:
    """The scenes, from the cache if possible, all of them for training; the loader splits them.

    Labels are 0 and 1, or instance numbers; or what `meaning` says. `least` is the smallest side allowed.
    """
    files = [(name, path) for name, path, _ in pairs] + [(f"{name}, labels", path) for name, _, path in pairs]
    asked: dict[str, Any] = {
        "channels": settings.channels,
        "invert": settings.invert,
        "instances": instances,
        "least": least,
    }
    if settings.axes == 3:
        asked["axes"] = 3
    if meaning:
        asked |= {"meaning": asdict(meaning), "floats": settings.floats, "rules": settings.rules}
    key = cache.fingerprint({"kind": kind, **asked}, files)
    label_of = {path: label for _, path, label in pairs}

    def make() -> cache.Made:
        about: dict[str, Any] = {"names": [], "shapes": [], "bad": [], "bands": []}

        def arrays() -> Iterator[NDArray[np.uint8]]:
            maps = []  # two bytes for each pixel, after all images; until then they are compressed
            pictures = [(name, path) for name, path, _ in pairs]
            for name, (image, labels, bands) in each(
                pictures,
                lambda path: (
                    volume(path, label_of[path], settings, meaning)
                    if settings.axes == 3
                    else one(path, label_of[path], settings, instances, least, meaning)
                ),
                settings.skip_bad,
                about["bad"],
            ):
                about["names"].append(name)
                about["shapes"].append(image.shape)
                about["bands"] = sorted({*about["bands"], bands})
                maps.append(zlib.compress(labels.tobytes(), 1))
                yield np.ascontiguousarray(image).ravel().view(np.uint8)
            for packed in maps:
                yield np.frombuffer(zlib.decompress(packed), dtype=np.uint8)

        return arrays(), about

    flat, about = cache.cached(key, make)
    check_none_bad(about["bad"], files, settings.skip_bad)
    kind_of = np.dtype(np.float32 if settings.floats else np.uint8)
    end = kind_of.itemsize * sum(int(np.prod(shape)) for shape in about["shapes"])
    pixels = Ragged(flat[:end].view(kind_of), about["shapes"])
    return Scenes(
        images=pixels,
        labels=Ragged(flat[end:].view(np.uint16), [shape[1:] for shape in about["shapes"]]),
        classes=("background", "object"),
        names=tuple(about["names"]),
        train=np.arange(len(pixels)),
        test=NO_IMAGES,
        fingerprint=key,
        bad=tuple(about["bad"]),
        task="instances" if instances else "pixels",
        bands=tuple(about["bands"]),
    )


def one(
    path: Path,
    label_path: Path,
    settings: Settings,
    instances: bool = True,
    least: int = 1,
    meaning: Meaning | None = None,
) -> tuple[NDArray[Any], NDArray[np.uint16], int]:
    """An image `(C, H, W)`, its labels `(H, W)`, and the number of channels of its file."""
    image, bands = images.decoded(path, settings)
    if min(image.shape[1:]) < least:
        raise DataError(f"{path} has {image.shape[2]} x {image.shape[1]} pixels: at least {least} x {least} are needed")
    limit = settings.max_pixels
    labels = meaning.read(label_path, limit) if meaning else read_labels(label_path, instances, limit)
    if labels.shape != image.shape[1:]:
        sizes = " and ".join(f"{shape[1]} x {shape[0]}" for shape in (image.shape[1:], labels.shape))
        raise DataError(f"{path} and {label_path} differ in size, {sizes}: they must be equal")
    return (255 - image if settings.invert else image), labels, bands[0]


def volume(
    path: Path, label_path: Path, settings: Settings, meaning: Meaning | None
) -> tuple[NDArray[Any], NDArray[np.uint16], int]:
    """A volume `(C, *sizes)`, its labels `(*sizes)`, and the number of its channels."""
    limit = settings.max_pixels
    assert meaning is not None
    volumes.check_pair(path, volumes.header(path, limit), label_path, volumes.header(label_path, limit))
    return volumes.read(path, settings.channels, limit), meaning.read(label_path, limit), settings.channels


def read_labels(path: Path, instances: bool, max_pixels: int) -> NDArray[np.uint16]:
    """A label map `(H, W)`: the instance numbers, or 1 where any channel is above 0."""
    fault = images.fault_of(path)
    if fault:
        raise DataError(f"{path} {fault}")
    try:
        with opened(path) as image:
            check_size(path, *image.size, max_pixels)
            if not instances and image.mode in ("P", "PA", "LA", "RGBA"):
                values = np.asarray(image.convert("RGB"))  # ignore transparency
            else:
                values = np.asarray(image)
    except DataError:
        raise
    except images.UNREADABLE as error:
        raise DataError(f"{path} cannot be read ({error}): it is damaged, truncated or not an image") from None
    if not instances:
        return ((values if values.ndim == 2 else values.max(axis=2)) > 0).astype(np.uint16)
    if values.ndim != 2:
        raise DataError(f"{path} has {values.shape[2]} channels: an instance map has one number for each pixel")
    if values.min() < 0 or values.max() > np.iinfo(np.uint16).max:
        raise DataError(f"{path} has values outside 0..65535: renumber the instances")
    return values.astype(np.uint16)
