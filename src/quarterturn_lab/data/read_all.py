"""Reading many files: what cannot be used is named, or left out and counted; what was read is kept in the cache."""

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
    """All images of a set as the network's squares, those that could not be read left out."""

    array: NDArray[Any]
    names: list[str]
    bad: list[str]
    bands: list[int]
    fingerprint: str


def squares(kind: str, files: Files, settings: Settings) -> Squares:
    """The images, decoded or from the cache. Those that cannot be read raise, or are left out with `skip_bad`."""
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
    """The images of a folder by their names without endings, sorted; two of one name raise. No hidden files."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in images.SUFFIXES and not path.name.startswith("."):
            if path.stem in found:
                raise DataError(f"{folder} has two images named {path.stem}: {found[path.stem].name}, {path.name}")
            found[path.stem] = path
    return found


def every(files: Files, read: Callable[[Path], Item], skip_bad: bool) -> tuple[dict[str, Item], list[str]]:
    """What each file holds, and the names of those that cannot be used."""
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
        raise DataError(f"{first}{others}. --skip-bad leaves such images out")
    if not good:
        raise DataError(f"none of the {len(files)} images can be used; the first: {first}")
    return good, bad


def check_none_bad(bad: list[str], files: Files, skip_bad: bool) -> None:
    """The cache of a run with --skip-bad remembers what it left out, and does not hide it from others."""
    if bad and not skip_bad:
        raise DataError(f"{dict(files)[bad[0]]} cannot be read. --skip-bad leaves such images out")
