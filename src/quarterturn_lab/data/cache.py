"""The cache of decoded images: one folder for each set of files and settings."""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data.watch import watched
from quarterturn_lab.errors import DataError
from quarterturn_lab.files import blocks, no_space, unfinished, write_atomically

IMAGES, ABOUT, SUMS = "images.npy", "about.json", "sums.json"
VERSION = 2  # of the format; a change makes new folders


def root() -> Path:
    """The cache folder: $QUARTERTURN_CACHE, or quarterturn/ in the user's cache folder."""
    given = os.environ.get("QUARTERTURN_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "quarterturn"


def fingerprint(settings: dict[str, Any], paths: Iterable[tuple[str, Path]] = ()) -> str:
    """A key from the settings, and the names and contents of the files; those that cannot be read count as empty."""
    digest = hashlib.sha256(json.dumps({"version": VERSION, **settings}, sort_keys=True).encode())
    files = list(paths)
    for name, path in watched("reading", files, len(files)):
        size = 0
        with suppress(OSError):
            size = path.stat().st_size if path.is_file() else 0
        digest.update(f"\n{name} {size}\n".encode())
        with suppress(OSError):
            for block in blocks(path) if size else ():
                digest.update(block)
    return digest.hexdigest()[:32]


# The images, as one array or one after the other (equal in shape but for the first axis), and their metadata, complete
# when all images are there.
Made = tuple[NDArray[Any] | Iterator[NDArray[Any]], dict[str, Any]]
Kept = tuple[NDArray[Any], dict[str, Any]]


def cached(key: str, make: Callable[[], Made]) -> Kept:
    """The images, memory-mapped, and their metadata; made first if they are not in the cache.

    They are written to a temporary folder that is then renamed: readers see all or nothing, and of two writers one
    wins.
    """
    folder = root() / key
    found = _kept(folder)
    if found is None:
        images, about = make()
        root().mkdir(parents=True, exist_ok=True)
        scratch = unfinished(folder)
        scratch.mkdir(exist_ok=True)
        try:
            with no_space(f"the cache of decoded images in {root()} ($QUARTERTURN_CACHE sets another folder)"):
                _save(scratch / IMAGES, iter([images]) if isinstance(images, np.ndarray) else images)
                (scratch / ABOUT).write_text(json.dumps(about))
                _seal(scratch)
            try:
                scratch.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        found = _kept(folder)
    if found is None:
        raise DataError(f"the cache of decoded images in {folder} changes while it is read: check the disk")
    return found


def _kept(folder: Path) -> Kept | None:
    """What a folder of the cache holds; None if there is none. A damaged one is removed, to be made again.

    Folders of older versions have no checksums; they get them when they are read for the first time.
    """
    if not folder.exists():
        return None
    try:
        kept = np.load(folder / IMAGES, mmap_mode="r"), json.loads((folder / ABOUT).read_text())
        if not (folder / SUMS).exists():
            with suppress(OSError):  # a cache that may only be read
                _seal(folder)
        elif json.loads((folder / SUMS).read_text()) != _sums(folder):
            raise ValueError("its checksum differs")
        return kept
    except (OSError, EOFError, ValueError, RecursionError):
        aside = unfinished(folder)
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return None


def _seal(folder: Path) -> None:
    write_atomically(folder / SUMS, json.dumps(_sums(folder)))


def _sums(folder: Path) -> dict[str, int]:
    """The CRC-32 of each file: several gigabytes in a second, and any flipped bit changes it."""
    sums = {}
    for name in (IMAGES, ABOUT):
        found = 0
        for block in blocks(folder / name):
            found = zlib.crc32(block, found)
        sums[name] = found
    return sums


def _save(path: Path, parts: Iterator[NDArray[Any]]) -> None:
    """Write arrays as one, like np.save of their concatenation, but a full disk raises its own error.

    Each is written as it comes, so that they need not fit into memory together; the header is written again at the end.
    """
    with path.open("wb") as file:
        length = 0
        for part in parts:
            if not length:
                first = part
                _header(file, first, len(part))
            length += len(part)
            file.write(np.ascontiguousarray(part).data)
        file.seek(0)
        _header(file, first, length)
        file.flush()
        os.fsync(file.fileno())


def _header(file: IO[bytes], part: NDArray[Any], length: int) -> None:
    header = {"descr": part.dtype.str, "fortran_order": False, "shape": (length, *part.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)  # it leaves room for any length
