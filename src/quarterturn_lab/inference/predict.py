"""Predictions for image files, with the network of a run or of an ONNX file. Nothing here needs torch.

Outputs are written to a temporary place and renamed when complete.
"""

import glob
import io
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.data import images
from quarterturn_lab.data.dataset import COLOUR
from quarterturn_lab.data.layouts import OTHERS
from quarterturn_lab.errors import ConfigError, DataError, RunError
from quarterturn_lab.files import no_space, write_atomically
from quarterturn_lab.inference.tables import Files, Options, Progress, Row, decoded, rows, write_rows
from quarterturn_lab.inference.whole_images import Run, object_map, with_margin
from quarterturn_lab.runs.model_card import KEY, ModelCard, read

SMALL = 64  # pixels; below, a network may have no room for its windows
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
            raise DataError(_nothing_in(text))
        for name, path in here:
            if name in found and found[name].resolve() != path.resolve():
                raise DataError(f"{found[name]} and {path} have the same name: predict them in separate commands")
            found[name] = path
    return list(found.items())


def _of(text: str) -> Iterator[tuple[str, Path]]:
    """What the text stands for, with links that lead nowhere and folders named as images: reading names them."""
    path = Path(text)
    if path.is_file() or (path.is_symlink() and not path.exists()):
        yield path.name, path
    elif path.is_dir():
        for inner in sorted(path.rglob("*")):
            if _looks_like_an_image(inner):
                yield inner.relative_to(path).as_posix(), inner
    else:
        for match in map(Path, sorted(glob.glob(text, recursive=True))):
            if match.is_file() or _looks_like_an_image(match):
                yield match.name, match


def _looks_like_an_image(path: Path) -> bool:
    return path.suffix.lower() in images.SUFFIXES and not path.name.startswith(".")


def _nothing_in(text: str) -> str:
    if not Path(text).is_dir():
        return f"{text} does not exist"
    kinds = sorted({path.suffix.lower() or path.name for path in Path(text).rglob("*") if path.is_file()})
    found = ", ".join(f"{kind} ({OTHERS[kind]})" if kind in OTHERS else kind for kind in kinds[:5]) or "nothing"
    return f"{text} contains no images: found {found}; JPEG, PNG, TIFF, BMP, GIF, WebP, PGM and FITS can be read"


# --- predictions ------------------------------------------------------------------------------------------------------


def predict(run: Run, card: ModelCard, files: Files, out: Path, options: Options, progress: Progress) -> list[Row]:
    """Write a table of probabilities, or a mask for each image; returns the images that were skipped."""
    if not card.is_dense:
        if options.grey:
            raise ConfigError("--grey is for masks, and this network labels whole images: leave it out")
        if out.is_dir():
            raise ConfigError(f"--out {out} is a folder: give the name of a file, such as {out / 'predictions.csv'}")
        found = list(rows(run, card, files, options, progress))
        skipped = _some_left([row for row in found if row.skipped], files)
        write_rows(out, card, found, options)
        return skipped
    if options.window:
        raise ConfigError("--window is for networks that label whole images; this one labels each pixel of any image")
    if options.grey and card.task == "regions":
        raise ConfigError("--grey is for masks of two classes, and these have more: leave it out")
    if out.suffix.lower() not in PICTURES:
        return _write_masks(run, card, _named(files, out), out, options, progress)
    if len(files) > 1:
        raise ConfigError(f"--out {out} is one file, but there are {len(files)} images: give a folder")
    buffer = io.BytesIO()
    made = picture(mask(run, card, files[0][1], options.convert), options.grey, card.values)
    made.save(buffer, "PNG" if out.suffix.lower() == ".png" else "TIFF")
    progress(1, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, buffer.getvalue())
    return []


def _some_left(skipped: list[Row], files: Files) -> list[Row]:
    if len(skipped) == len(files):
        raise DataError(f"none of the {len(files)} images can be used; the first: {skipped[0].skipped}")
    return skipped


# --- masks ------------------------------------------------------------------------------------------------------------


def mask(run: Run, card: ModelCard, path: Path, convert: bool) -> NDArray[np.float64]:
    """The probability of each pixel (and class), for an image of any size; the image is extended by reflection."""
    image = card.scaled(decoded(path, card, convert, scaled=False))
    height, width = image.shape[1:]
    try:
        return object_map(run, with_margin(image, card.margin), card.margin, card.shrinks, card.task)
    except Exception as error:  # torch, onnxruntime and our layers have their own classes
        if min(height, width) >= SMALL:
            raise
        why = str(error).splitlines()[0]
        raise DataError(f"{path} has {width} x {height} pixels, too few for the network ({why})") from None


def picture(probabilities: NDArray[np.float64], grey: bool, values: tuple[int, ...] = ()) -> Image.Image:
    """A mask as an image with values 0 and 255, or with probabilities as grey levels.

    Regions have the values or colours of the masks that the network has learned from, or the numbers of the classes.
    """
    if probabilities.ndim == 3:
        found = np.array(values or range(len(probabilities)))[probabilities.argmax(axis=0)]
        if max(values, default=0) < COLOUR:
            return Image.fromarray(found.astype(np.uint8 if found.max() < 256 else np.uint16))
        grey_ones = np.stack([found] * 3, axis=-1)
        colours = np.stack([found >> shift & 255 for shift in (16, 8, 0)], axis=-1)
        return Image.fromarray(np.where(found[..., None] < COLOUR, grey_ones, colours).astype(np.uint8))
    levels = (255 * probabilities).round() if grey else np.where(probabilities >= 0.5, 255, 0)
    return Image.fromarray(levels.astype(np.uint8))


def _named(files: Files, folder: Path) -> Files:
    """The files under the names of their masks, which must differ."""
    names = [(f"{name.rpartition('.')[0] or name}.png", path) for name, path in files]
    twice = next((name for name, times in Counter(name for name, _ in names).items() if times > 1), None)
    if twice:
        raise ConfigError(f"two images would be written to {folder / twice}: predict them in separate commands")
    return names


def _write_masks(
    run: Run, card: ModelCard, names: Files, folder: Path, options: Options, progress: Progress
) -> list[Row]:
    """Write all masks to a temporary folder, then move them into place."""
    folder = folder.absolute()
    scratch = (folder if folder.is_dir() else folder.parent) / f".{folder.name}.{os.getpid()}"
    skipped: dict[Path, str] = {}
    try:
        with no_space(str(folder)):
            for number, (name, path) in enumerate(names, start=1):
                try:
                    made = picture(mask(run, card, path, options.convert), options.grey, card.values)
                except DataError as error:
                    if not options.skip_bad:
                        raise
                    skipped[path] = str(error)
                else:
                    (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                    made.save(scratch / name)
                progress(number, len(names))
            left = _some_left([Row(path.name, skipped=why) for path, why in skipped.items()], names)
            for name, path in names:
                if path not in skipped:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (scratch / name).replace(folder / name)
            return left
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
