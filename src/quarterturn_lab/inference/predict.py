"""Predictions for image files, with the network of a run or of an ONNX file. Nothing here needs torch.

Outputs are written to a temporary place and renamed when complete.
"""

import csv
import glob
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.data import images
from quarterturn_lab.errors import ConfigError, DataError, RunError
from quarterturn_lab.files import no_space, write_atomically
from quarterturn_lab.inference.whole_images import Run, object_map, with_margin
from quarterturn_lab.runs.model_card import KEY, ModelCard, read

Files = list[tuple[str, Path]]  # names and paths
Progress = Callable[[int, int], None]  # images done, number of images
PICTURES = (".png", ".tif", ".tiff")


def onnx_runner(file: Path) -> tuple[Run, ModelCard]:
    """The network of an ONNX file that `quarterturn export` wrote."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        raise RunError('--onnx needs onnxruntime: pip install "quarterturn[onnx]"') from None
    if not file.is_file():
        raise RunError(f"{file} does not exist: write it with `quarterturn export RUN --onnx {file}`")
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has many error classes
        cause = str(error).splitlines()[0]
        raise RunError(
            f"{file} cannot be loaded as an ONNX file, write one with `quarterturn export` ({cause})"
        ) from None
    about = session.get_modelmeta().custom_metadata_map
    if KEY not in about:
        raise RunError(f"{file} has no model card: write it with `quarterturn export`")
    name = session.get_inputs()[0].name
    return (lambda batch: session.run(None, {name: batch})[0]), read(about[KEY], file)


# --- finding images ---------------------------------------------------------------------------------------------------


def find(given: tuple[str, ...]) -> Files:
    """The images in these folders (searched recursively), patterns and files, with unique names."""
    if not given:
        raise DataError("no images given: name files, folders, or patterns such as 'photos/*.png'")
    found: dict[str, Path] = {}
    for text in given:
        here = list(_of(text))
        if not here:
            raise DataError(f"{text} {'contains no images' if Path(text).exists() else 'does not exist'}")
        for name, path in here:
            if name in found and found[name].resolve() != path.resolve():
                raise DataError(f"{found[name]} and {path} have the same name: predict them in separate commands")
            found[name] = path
    return list(found.items())


def _of(text: str) -> Iterator[tuple[str, Path]]:
    path = Path(text)
    if path.is_file():
        yield path.name, path
    elif path.is_dir():
        for inner in sorted(path.rglob("*")):
            if inner.suffix.lower() in images.SUFFIXES and inner.is_file() and not inner.name.startswith("."):
                yield inner.relative_to(path).as_posix(), inner
    else:
        for match in sorted(glob.glob(text, recursive=True)):
            if Path(match).is_file():
                yield Path(match).name, Path(match)


# --- predictions ------------------------------------------------------------------------------------------------------


def prepared(path: Path, card: ModelCard, convert: bool) -> NDArray[np.float32]:
    """An image as input for the network. Grey and colour must match the training images, unless `convert`."""
    array, bands = images.decoded(path, card.settings, scaled=not card.is_dense)
    if card.bands and not convert and not set(bands) & set(card.bands):
        trained = " or ".join(map(str, card.bands))
        raise DataError(
            f"{images.has_channels(path, bands[0])}, but the network was trained on images with {trained}: use "
            "--convert to convert between grey and colour"
        )
    return card.scaling(images.fitted(array, card.settings)) if not card.is_dense else card.scaled(array)


def vectors(
    run: Run, card: ModelCard, files: Files, batch: int, convert: bool, progress: Progress
) -> NDArray[np.float64]:
    """Predictions `(images, classes or answers)`, computed in batches."""
    parts = []
    for start in range(0, len(files), batch):
        inputs = np.stack([prepared(path, card, convert) for _, path in files[start : start + batch]])
        parts.append(card.answers(run(inputs)))
        progress(min(start + batch, len(files)), len(files))
    return np.concatenate(parts)


def mask(run: Run, card: ModelCard, path: Path, convert: bool) -> NDArray[np.float64]:
    """The probability of each pixel (and class), for an image of any size; the image is extended by reflection."""
    image = prepared(path, card, convert)
    return object_map(run, with_margin(image, card.margin), card.margin, card.shrinks, card.task)


# --- files ------------------------------------------------------------------------------------------------------------


def predict(
    run: Run, card: ModelCard, files: Files, out: Path, batch: int, convert: bool, grey: bool, progress: Progress
) -> None:
    """Write a table of probabilities, or a mask for each image."""
    if batch < 1:
        raise ConfigError(f"--batch {batch}: give 1 or more")
    if not card.is_dense:
        if out.is_dir():
            raise ConfigError(f"--out {out} is a folder: give the name of a file, such as {out / 'predictions.csv'}")
        found = vectors(run, card, files, batch, convert, progress)
        write_table(out, ("image", *card.classes), [name for name, _ in files], found)
    elif out.suffix.lower() in PICTURES:
        if len(files) > 1:
            raise ConfigError(f"--out {out} is one file, but there are {len(files)} images: give a folder")
        buffer = io.BytesIO()
        picture(mask(run, card, files[0][1], convert), grey).save(
            buffer, "PNG" if out.suffix.lower() == ".png" else "TIFF"
        )
        progress(1, 1)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, buffer.getvalue())
    else:
        names = [(f"{name.rpartition('.')[0] or name}.png", path) for name, path in files]
        twice = next((name for name in dict(names) if sum(name == other for other, _ in names) > 1), None)
        if twice:
            raise ConfigError(f"two images would be written to {out / twice}: predict them in separate commands")
        _write_masks(names, out, lambda path: mask(run, card, path, convert), grey, progress)


def write_table(out: Path, header: tuple[str, ...], names: list[str], values: NDArray[np.float64]) -> None:
    """Write a CSV file with a row for each name."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    for name, row in zip(names, values, strict=True):
        writer.writerow([name, *(f"{value:.8g}" for value in row)])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, buffer.getvalue())


def picture(probabilities: NDArray[np.float64], grey: bool) -> Image.Image:
    """A mask as an image with values 0 and 255, or with probabilities as grey levels; regions by their numbers."""
    if probabilities.ndim == 3:
        return Image.fromarray(probabilities.argmax(axis=0).astype(np.uint8))
    levels = (255 * probabilities).round() if grey else np.where(probabilities >= 0.5, 255, 0)
    return Image.fromarray(levels.astype(np.uint8))


def _write_masks(
    names: Files, folder: Path, mask_of: Callable[[Path], NDArray[Any]], grey: bool, progress: Progress
) -> None:
    """Write all masks to a temporary folder, then move them into place."""
    folder = folder.absolute()
    scratch = (folder if folder.is_dir() else folder.parent) / f".{folder.name}.{os.getpid()}"
    try:
        with no_space(str(folder)):
            for number, (name, path) in enumerate(names, start=1):
                made = picture(mask_of(path), grey)
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                made.save(scratch / name)
                progress(number, len(names))
            for name, _ in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch / name).replace(folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
