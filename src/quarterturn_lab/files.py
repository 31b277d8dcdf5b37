"""Writing files so that what was there stays whole until what is new is whole."""

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
                f"could not write {what}: {os.strerror(error.errno or 0).lower()}. What was written before is whole: "
                "free some space and give the same command again"
            ) from error
        raise


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write, flush to the disk, rename: at any moment the file is the old one or the new one."""
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
