"""The commands `data info` and `data verify`: what a folder holds, and whether every image can be read."""

from pathlib import Path
from typing import Any

from quarterturn_lab.data import image_mask_pairs, images, mnist
from quarterturn_lab.data.dataset import Settings, checked_settings
from quarterturn_lab.data.layouts import Layout, layout_of
from quarterturn_lab.data.look import look
from quarterturn_lab.data.read_all import each
from quarterturn_lab.data.watch import watching
from quarterturn_lab.errors import DataError
from quarterturn_lab.progress import Bars


def info(folder: Path, options: dict[str, Any]) -> None:
    """Print what `quarterturn fit` would find in the folder."""
    if _idx_files(folder):
        for path in _idx_files(folder):
            print(f"{path}: {' x '.join(map(str, mnist.read_idx(path).shape))}")
        return
    with Bars() as bars, watching(bars.files):
        found = look(_settings(folder, options))
    for line in found.lines():
        print(line)
    print(f"next: quarterturn fit {folder}")


def verify(folder: Path, options: dict[str, Any]) -> bool:
    """Decode every image and mask and print those that cannot be used; True if there are none."""
    if _idx_files(folder):
        shapes = {path.name: mnist.read_idx(path).shape for path in _idx_files(folder)}
        print(f"{len(shapes)} idx files are complete")
        return True
    settings = _settings(folder, options)
    with Bars() as bars, watching(bars.files):
        found = look(settings)
        settings = settings.model_copy(update={"channels": found.channels, "floats": found.floats})
        layout = layout_of(settings)
        bad = {**found.bad, **_undecodable(layout, found.bad, settings)}
    for name, fault in bad.items():
        print(f"bad: {name} {fault}")
    everything = len(layout.files) + len(layout.bad)
    print(f"{everything - len(bad):,} of {everything:,} images in {found.folder} can be used")
    return not bad


def _undecodable(layout: Layout, known: dict[str, str], settings: Settings) -> dict[str, str]:
    """The images that cannot be decoded, and why."""
    faults: dict[Path, str] = {}
    files = [(name, path) for name, path in layout.files.items() if name not in known]
    mask_of = {path: layout.labels[name] for name, path in files}

    def attempt(path: Path) -> None:
        try:
            if layout.meaning and layout.axes == 3:
                image_mask_pairs.volume(path, mask_of[path], settings, layout.meaning)
            elif layout.meaning:
                image_mask_pairs.one(path, mask_of[path], settings, meaning=layout.meaning)
            else:
                images.decoded(path, settings)
        except DataError as error:
            faults[path] = str(error).removeprefix(f"{path} ")

    for _ in each(files, attempt, True, []):
        pass
    return {name: faults[path] for name, path in files if path in faults}


def _settings(folder: Path, options: dict[str, Any]) -> Settings:
    return checked_settings(folder=str(folder), side=64, channels=3, rules=2, **options)


def _idx_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-ubyte*")) or sorted((folder / "mnist").glob("*-ubyte*"))
