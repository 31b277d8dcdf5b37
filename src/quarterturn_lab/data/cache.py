"""The cache of decoded images: one folder for each set of files and settings."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.files import no_space

VERSION = 2  # of the format; a change makes new folders


def root() -> Path:
    """The cache folder: $QUARTERTURN_CACHE, or quarterturn/ in the user's cache folder."""
    given = os.environ.get("QUARTERTURN_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "quarterturn"


def fingerprint(settings: dict[str, Any], paths: Iterable[tuple[str, Path]] = ()) -> str:
    """A key from the settings, and the names and contents of the files."""
    digest = hashlib.sha256(json.dumps({"version": VERSION, **settings}, sort_keys=True).encode())
    for name, path in paths:
        content = path.read_bytes()
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


Made = tuple[NDArray[Any], dict[str, Any]]


def cached(key: str, make: Callable[[], Made]) -> Made:
    """The images, memory-mapped, and their metadata; made first if they are not in the cache.

    They are written to a temporary folder that is then renamed: readers see all or nothing, and of two writers one
    wins.
    """
    folder = root() / key
    if not folder.exists():
        images, about = make()
        root().mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=root()))
        try:
            with no_space(f"the cache of decoded images in {root()} ($QUARTERTURN_CACHE sets another folder)"):
                _save(scratch / "images.npy", images)
                (scratch / "about.json").write_text(json.dumps(about))
            try:
                scratch.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return np.load(folder / "images.npy", mmap_mode="r"), json.loads((folder / "about.json").read_text())


def _save(path: Path, images: NDArray[Any]) -> None:
    """Like np.save, but a full disk raises its own error."""
    with path.open("wb") as file:
        header = {"descr": images.dtype.str, "fortran_order": False, "shape": images.shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(images).data)
        file.flush()
        os.fsync(file.fileno())
