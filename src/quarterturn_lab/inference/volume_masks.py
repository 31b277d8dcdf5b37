"""Label volumes for scans, written with the place in space of their scan. Nothing here needs torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import images, volumes
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.files import check_replaceable, no_space, unfinished
from quarterturn_lab.inference.masks import pixels
from quarterturn_lab.inference.tables import Files, Options, Progress
from quarterturn_lab.inference.tiles import TILE, VOXELS, Network
from quarterturn_lab.inference.whole_images import joined
from quarterturn_lab.runs.model_card import ModelCard, probabilities

SUFFIXES = (*volumes.NIFTI, *volumes.STACKS)
OTHERS = (".gz", ".csv", ".nrrd", ".mha", ".mgz", ".npy")  # names of files that are no folders


def labels_of(network: Network, card: ModelCard, path: Path, say: Callable[[str], None]) -> NDArray[Any]:
    """The labels of a scan, in the order of axes that it is read in."""
    scan = card.scaled(volumes.read(path, card.settings.channels, card.settings.max_pixels))
    sizes = tuple(scan.shape[1:])
    if int(np.prod(sizes)) <= VOXELS:
        return pixels(probabilities(card.task, network.run(scan[None]))[0], card, grey=False)
    view = network.view(sizes)
    tiles = view.tiles(TILE)
    border = f"each seen alone, because of {view.alone}" if view.alone else "with the result of one pass over the whole"
    say(f"{' x '.join(map(str, sizes))} voxels in {len(tiles)} tiles, {border}")
    return pixels(
        joined(view, ((tile, probabilities(card.task, part[None])[0]) for tile, part in view.parts(scan, TILE))),
        card,
        grey=False,
    )


def write_all(
    network: Network,
    card: ModelCard,
    files: Files,
    out: Path,
    options: Options,
    progress: Progress,
    say: Callable[[str], None],
) -> list[str]:
    """Write the labels of a scan to a file, or of several into a folder; returns why scans were skipped."""
    _check(files, out, options)
    single = out.name.lower().endswith(SUFFIXES)
    skipped: list[str] = []
    for number, (name, path) in enumerate(files, start=1):
        ending = ".nii.gz" if volumes.is_nifti(path) else ".ome.tif"
        place = out if single else out / f"{volumes.stem(name)}{ending}"
        try:
            _write(place, labels_of(network, card, path, say), path, card.settings.max_pixels)
        except DataError as error:
            if not options.skip_bad:
                raise
            skipped.append(str(error))
        progress(number, len(files))
    if len(skipped) == len(files):
        raise DataError(f"none of the {len(files)} scans can be used; the first: {skipped[0]}")
    return skipped


def _check(files: Files, out: Path, options: Options) -> None:
    if options.grey or options.window:
        raise ConfigError("--grey and --window are for images, and this network labels volumes: leave them out")
    if not out.name.lower().endswith(SUFFIXES):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"--out {out} is a file: give a folder, or the name of a .nii.gz file for one scan")
        if not out.exists() and out.suffix.lower() in (*images.SUFFIXES, *OTHERS):
            raise ConfigError(
                f"--out {out}: labels of a scan are a .nii.gz or .ome.tif file, give such a name or a folder"
            )
        return
    if len(files) > 1:
        raise ConfigError(f"--out {out} is one file, but there are {len(files)} scans: give a folder")
    if out.exists() and out.samefile(files[0][1]):
        raise ConfigError(f"--out {out} is the scan itself: give another name")
    if volumes.is_nifti(out) != volumes.is_nifti(files[0][1]):
        kind = ".nii.gz" if volumes.is_nifti(files[0][1]) else ".ome.tif"
        raise ConfigError(f"--out {out}: labels are written as their scan is, give the name of a {kind} file")
    check_replaceable(out)


def _write(place: Path, labels: NDArray[Any], scan: Path, limit: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = unfinished(place)
    scratch = scratch.with_name(f"{scratch.name}{''.join(Path(place.name).suffixes[-2:])}")
    try:
        with no_space(str(place)):
            volumes.save_like(scratch, labels, scan, limit)
            scratch.replace(place)
    finally:
        scratch.unlink(missing_ok=True)
