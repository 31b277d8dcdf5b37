"""Reads many image files through the cache. Unreadable files raise, or are skipped and counted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data import cache, images
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.errors import DataError

Files = list[tuple[str, Path]]  # names and paths
Item = TypeVar("Item")


@dataclass(frozen=True)
class Squares:
    """All readable images of a data set, as squares for the network."""

    array: NDArray[Any]
    names: list[str]
    bad: list[str]
    bands: list[int]
    fingerprint: str


def squares(kind: str, files: Files, settings: Settings) -> Squares:
    """The images, from the cache if possible. Unreadable images raise, or are skipped with `skip_bad`."""
    key = cache.fingerprint({"kind": kind, **settings.cache_key()}, files)

    def make() -> cache.Made:
        bands = set()

        def one(path: Path) -> NDArray[Any]:
            array, found = images.decoded(path, settings, scaled=True)
            bands.add(found[0])
            return images.fitted(array, settings)

        good, bad = every(files, one, settings.skip_bad)
        return np.stack(list(good.values())), {"names": list(good), "bad": bad, "bands": sorted(bands)}

    array, about = cache.cached(key, make)
    check_none_bad(about["bad"], files, settings.skip_bad)
    return Squares(array, about["names"], about["bad"], about["bands"], key)


def by_stem(folder: Path) -> dict[str, Path]:
    """The images of a folder by name without extension, sorted, without hidden files. Duplicate names raise."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in images.SUFFIXES and not path.name.startswith("."):
            if path.stem in found:
                raise DataError(
                    f"{folder} has two images named {path.stem}: {found[path.stem].name}, {path.name}. Remove one"
                )
            found[path.stem] = path
    return found


def every(files: Files, read: Callable[[Path], Item], skip_bad: bool) -> tuple[dict[str, Item], list[str]]:
    """The content of each usable file, and the names of the others."""
    good: dict[str, Item] = {}
    bad: list[str] = []
    first: DataError | None = None
    for name, path in files:
        try:
            good[name] = read(path)
        except DataError as error:
            bad.append(name)
            first = first or error
    if first and not skip_bad:
        others = f"; {len(bad) - 1} more cannot be used, such as {bad[1]}" if len(bad) > 1 else ""
        raise DataError(f"{first}{others}. Use --skip-bad to skip them")
    if not good:
        raise DataError(f"none of the {len(files)} images can be used; the first: {first}")
    return good, bad


def check_none_bad(bad: list[str], files: Files, skip_bad: bool) -> None:
    """Raise if the cache was made with --skip-bad and this run does not skip bad images."""
    if bad and not skip_bad:
        raise DataError(f"{dict(files)[bad[0]]} cannot be read. Use --skip-bad to skip such images")
