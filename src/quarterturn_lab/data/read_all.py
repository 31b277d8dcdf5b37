"""Reads many image files through the cache. Unreadable files raise, or are skipped and counted."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from quarterturn_lab.data import cache, images
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.numeric_files import quiet
from quarterturn_lab.data.watch import watched
from quarterturn_lab.errors import DataError

Files = list[tuple[str, Path]]  # names and paths
Item = TypeVar("Item")
AHEAD = 64  # files that are decoded while the ones before are written


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
        about: dict[str, Any] = {"names": [], "bad": [], "bands": []}

        def one(path: Path) -> tuple[NDArray[Any], int]:
            array, found = images.decoded(path, settings, scaled=True)
            return images.fitted(array, settings), found[0]

        def arrays() -> Iterator[NDArray[Any]]:
            for name, (array, bands) in each(files, one, settings.skip_bad, about["bad"]):
                about["names"].append(name)
                about["bands"] = sorted({*about["bands"], bands})
                yield array[None]

        return arrays(), about

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


def each(files: Files, read: Callable[[Path], Item], skip_bad: bool, bad: list[str]) -> Iterator[tuple[str, Item]]:
    """The name and content of each usable file, in order; the names of the others are added to `bad`.

    Several files are read at a time, a few ahead of what is used.
    """
    first: DataError | None = None

    def attempt(path: Path) -> Item | DataError:
        try:
            return read(path)
        except DataError as error:
            return error

    with quiet(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        chunks = (files[start : start + AHEAD] for start in range(0, len(files), AHEAD))
        contents = (content for chunk in chunks for content in pool.map(attempt, [path for _, path in chunk]))
        for (name, _), content in watched("decoding", zip(files, contents, strict=True), len(files)):
            if isinstance(content, DataError):
                bad.append(name)
                first = first or content
            else:
                yield name, content
    if first and not skip_bad:
        others = f"; {len(bad) - 1} more cannot be used, such as {bad[1]}" if len(bad) > 1 else ""
        raise DataError(f"{first}{others}. Use --skip-bad to skip them")
    if len(bad) == len(files):
        raise DataError(f"none of the {len(files)} images can be used; the first: {first}")


def refuse(bad: dict[str, str], skip_bad: bool) -> None:
    """Raise if there are files that cannot be used, and they are not to be skipped."""
    if bad and not skip_bad:
        name, fault = next(iter(bad.items()))
        others = f"; {len(bad) - 1} more cannot be used" if len(bad) > 1 else ""
        raise DataError(f"{name} {fault}{others}. Use --skip-bad to skip them")


def check_none_bad(bad: list[str], files: Files, skip_bad: bool) -> None:
    """Raise if the cache was made with --skip-bad and this run does not skip bad images."""
    if bad and not skip_bad:
        raise DataError(f"{dict(files)[bad[0]]} cannot be read. Use --skip-bad to skip such images")
