"""Predictions for image files, with the network of a run or of an ONNX file. Nothing here needs torch.

Outputs get their names when they are complete. What is done before that is kept, and the same command continues.
"""

import glob
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import images, volumes
from quarterturn_lab.data.layouts import OTHERS
from quarterturn_lab.errors import ConfigError, DataError, RunError
from quarterturn_lab.files import check_replaceable, damaged, no_space, sha256, write_atomically
from quarterturn_lab.inference import masks, volume_masks
from quarterturn_lab.inference.large_files import Picture, opened
from quarterturn_lab.inference.masks import Say
from quarterturn_lab.inference.tables import Files, Options, Progress, write_table
from quarterturn_lab.inference.tiles import Network, Run
from quarterturn_lab.inference.unfinished import state_of, unfinished
from quarterturn_lab.inference.whole_images import plain_network
from quarterturn_lab.runs.model_card import KEY, ModelCard, read

SUM, NO_SUM = f"{KEY}_sum", f"sha256:{'0' * 64}"  # in the metadata of an ONNX file
LARGEST = 2 << 30  # bytes of an ONNX file: the limit of its format
PICTURES = (".png", *masks.TIFF)


def onnx_network(file: Path) -> tuple[Network, ModelCard]:
    """The network of an ONNX file that `quarterturn export` wrote, for images of any size."""
    run, card = onnx_runner(file)
    return plain_network(run, card, sha256(file)), card


def onnx_runner(file: Path) -> tuple[Run, ModelCard]:
    """The network of an ONNX file that `quarterturn export` wrote."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        raise RunError('--onnx needs onnxruntime: pip install "quarterturn[onnx]"') from None
    if not file.is_file():
        raise RunError(f"{file} does not exist: write it with `quarterturn export RUN --onnx {file}`")
    if file.stat().st_size > LARGEST:
        raise RunError(f"{file} has {file.stat().st_size:,} bytes, and an ONNX file at most {LARGEST:,}: it is none")
    _check_sum(file)
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has many error classes
        cause = " ".join(str(error).split())[:200]
        raise RunError(
            f"{file} cannot be loaded as an ONNX file, write one with `quarterturn export` ({cause})"
        ) from None
    about = session.get_modelmeta().custom_metadata_map
    if KEY not in about:
        raise RunError(f"{file} has no model card: write it with `quarterturn export`")
    card, inputs = read(about[KEY], file), [entry.name for entry in session.get_inputs()]

    def run(batch: NDArray[np.float32]) -> NDArray[Any]:
        try:
            found = session.run(None, dict.fromkeys(inputs, batch))[0]
        except Exception as error:
            cause = " ".join(str(error).split())[:200]
            raise RunError(f"{file} cannot be run on an input of {batch.shape} ({cause})") from None
        if not isinstance(found, np.ndarray) or found.shape[:2] != (len(batch), len(card.classes)):
            raise RunError(f"{file} does not fit its model card: write it again with `quarterturn export`")
        return found

    return run, card


def seal(file: Path) -> None:
    """Put the SHA-256 of an ONNX file into its own metadata, in place of as many zeros."""
    content = file.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    write_atomically(file, content.replace(NO_SUM.encode(), digest.encode(), 1))


def _check_sum(file: Path) -> None:
    """Raise if an ONNX file differs from its checksum. Files of older versions and other programs have none."""
    content = file.read_bytes()
    found = re.search(rb"sha256:[0-9a-f]{64}", content)
    if found and SUM.encode() in content:
        blank = content[: found.start()] + NO_SUM.encode() + content[found.end() :]
        if hashlib.sha256(blank).hexdigest().encode() != found[0].removeprefix(b"sha256:"):
            raise damaged(file, "it differs from its own checksum", "write it again with `quarterturn export`")


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
    return (path.suffix.lower() in images.SUFFIXES or volumes.is_nifti(path)) and not path.name.startswith(".")


def _nothing_in(text: str) -> str:
    if not Path(text).is_dir():
        return f"{text} {images.fault_of(Path(text))}" if Path(text).exists() else f"{text} does not exist"
    kinds = sorted({path.suffix.lower() or path.name for path in Path(text).rglob("*") if path.is_file()})
    found = ", ".join(f"{kind} ({OTHERS[kind]})" if kind in OTHERS else kind for kind in kinds[:5]) or "nothing"
    return f"{text} contains no images: found {found}; JPEG, PNG, TIFF, BMP, GIF, WebP, PGM and FITS can be read"


# --- predictions ------------------------------------------------------------------------------------------------------


def predict(
    network: Network, card: ModelCard, files: Files, out: Path, options: Options, progress: Progress, say: Say
) -> list[str]:
    """Write a table of probabilities, or a mask for each image; returns why images were skipped."""
    if options.max_pixels:
        settings = card.settings.model_copy(update={"max_pixels": options.max_pixels})
        card = replace(card, settings=settings)
    if card.settings.axes == 3:
        return volume_masks.write_all(network, card, files, out, options, progress, say)
    _check(card, files, out, options)
    job = _job(network, card, files, options)
    if not card.is_dense:
        return write_table(out, network.run, card, files, options, job, progress)
    if out.suffix.lower() not in PICTURES:
        return _write_masks(network, card, _named(files, out), out, options, job, progress, say)
    with opened(files[0][1], card, options.convert, options.level) as picture:
        if out.suffix.lower() not in masks.TIFF and _is_too_large(picture, card):
            raise ConfigError(
                f"--out {out}: a mask of so many pixels is written in tiles, give the name of a .tif file"
            )
        with no_space(str(out)), unfinished(out, job) as folder:
            masks.write(network, card, picture, out, folder, options.grey, options.tile, progress, say)
    return []


def _check(card: ModelCard, files: Files, out: Path, options: Options) -> None:
    if scan := next((path for _, path in files if volumes.is_nifti(path)), None):
        raise ConfigError(f"{scan} is a volume, and this network is for images: train one on volumes, or save slices")
    if not card.is_dense:
        if options.grey:
            raise ConfigError("--grey is for masks, and this network labels whole images: leave it out")
        if out.is_dir():
            raise ConfigError(f"--out {out} is a folder: give the name of a file, such as {out / 'predictions.csv'}")
        check_replaceable(out)
        return
    if options.window:
        raise ConfigError("--window is for networks that label whole images; this one labels each pixel of any image")
    if options.grey and card.task == "regions":
        raise ConfigError("--grey is for masks of two classes, and these have more: leave it out")
    if out.suffix.lower() in PICTURES:
        if len(files) > 1:
            raise ConfigError(f"--out {out} is one file, but there are {len(files)} images: give a folder")
        if out.exists() and out.samefile(files[0][1]):
            raise ConfigError(f"--out {out} is the image itself: give another name")
        if out.suffix.lower() in masks.TIFF and find_spec("tifffile") is None:
            raise ConfigError(f'--out {out} needs tifffile: pip install "quarterturn[tiff]", or write a .png file')
        check_replaceable(out)
    elif out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: give a folder, or the name of a .png or .tif file for one image")


def _job(network: Network, card: ModelCard, files: Files, options: Options) -> dict[str, Any]:
    """What makes two commands the same, so that one continues the other."""
    seen = hashlib.sha256(card.to_json().encode())
    for name, path in files:
        try:
            seen.update(repr((name, *state_of(path))).encode())
        except OSError:  # reading it says what is wrong
            seen.update(repr(name).encode())
    chosen = {name: value for name, value in asdict(options).items() if name != "skip_bad"}
    return {"network": network.identity, "images": seen.hexdigest(), **chosen}


def _is_too_large(picture: Picture, card: ModelCard) -> bool:
    return picture.width * picture.height > card.settings.max_pixels


# --- masks of several images ------------------------------------------------------------------------------------------


def _named(files: Files, folder: Path) -> Files:
    """The files under the names of their masks, without the suffix, which must differ."""
    names = [(name.rpartition(".")[0] or name, path) for name, path in files]
    twice = next((name for name, times in Counter(name for name, _ in names).items() if times > 1), None)
    if twice:
        raise ConfigError(f"two images would be written to {folder / twice}.png: predict them in separate commands")
    return names


def _write_masks(
    network: Network,
    card: ModelCard,
    names: Files,
    folder: Path,
    options: Options,
    job: dict[str, Any],
    progress: Progress,
    say: Say,
) -> list[str]:
    """Write all masks to a folder beside the one that is asked for, then move them into place."""
    skipped = []
    with no_space(str(folder)), unfinished(folder, job) as scratch:
        done = scratch / "masks"
        for number, (name, path) in enumerate(names, start=1):
            if not any((done / f"{name}{suffix}").exists() for suffix in (".png", ".tif")):
                try:
                    _write_mask(network, card, done / name, path, scratch, options, say)
                except DataError as error:
                    if not options.skip_bad:
                        raise
                    skipped.append(str(error))
            progress(number, len(names))
        if len(skipped) == len(names):
            raise DataError(f"none of the {len(names)} images can be used; the first: {skipped[0]}")
        for path in sorted(done.rglob("*")):
            if path.is_file():
                place = folder / path.relative_to(done)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
    return skipped


def _write_mask(
    network: Network, card: ModelCard, out: Path, path: Path, scratch: Path, options: Options, say: Say
) -> None:
    """Write a mask to a PNG file, or a tiled TIFF if it has many pixels."""
    with opened(path, card, options.convert, options.level) as picture:
        out = out.with_name(f"{out.name}{'.tif' if _is_too_large(picture, card) else '.png'}")
        with unfinished(scratch / "mask", {"of": str(path)}) as folder:
            masks.write(
                network,
                card,
                picture,
                out,
                folder,
                options.grey,
                options.tile,
                lambda *_: None,
                lambda text: say(f"{path}: {text}"),
            )
