"""Atomic writing: a file holds either its old or its new content, never part of it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quarterturn_lab.errors import RunError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def no_space(what: str) -> Iterator[None]:
    """Turn "no space left" into an error that says what could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise RunError(
                f"could not write {what}: {os.strerror(error.errno or 0).lower()}. Earlier files are intact: "
                "free some space and run the same command again"
            ) from error
        raise


def check_replaceable(path: Path) -> None:
    """Raise if there is something else than a file at this place: renaming would put a file where a device was."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or pipe"
        raise RunError(f"{path} is {kind}, and a file is to be written: give another name")


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write to a temporary file, flush it to the disk, then rename it."""
    check_replaceable(path)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode() if isinstance(content, str) else content
    try:
        with no_space(str(path)):
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
