"""Files written whole or not at all, and files read with a limit: a damaged one is named, not believed."""

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quarterturn_lab.errors import FREE_SPACE, FULL, RunError

LARGEST_TEXT = 64 << 20  # bytes of a file of settings, scores or records
PARTIAL = re.compile(
    r"\.(?P<name>.*)\.(?P<host>[^.]+)\.(?P<process>\d+)\.partial"
)  # names of unfinished files and folders
STALE_ELSEWHERE = 7 * 86_400  # seconds after which an unfinished file of another machine is left over


@contextmanager
def no_space(what: str) -> Iterator[None]:
    """Turn "no space left" into an error that says what could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            why = os.strerror(error.errno or 0).lower()
            raise RunError(f"could not write {what}: {why}. {FREE_SPACE}") from error
        raise


# --- writing ----------------------------------------------------------------------------------------------------------


def check_replaceable(path: Path) -> None:
    """Raise if there is something else than a file at this place: renaming would put a file where a device was."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or pipe"
        raise RunError(f"{path} is {kind}, and a file is to be written: give another name")


def write_atomically(path: Path, *content: bytes | memoryview | str, previous: Path | None = None) -> None:
    """Write to a temporary file, flush it to the disk, then rename it. What was there becomes `previous`."""
    check_replaceable(path)
    scratch = unfinished(path)
    try:
        with no_space(str(path)):
            with scratch.open("wb") as file:
                for part in content:
                    file.write(part.encode() if isinstance(part, str) else part)
                file.flush()
                os.fsync(file.fileno())
            if previous and path.exists():
                path.replace(previous)
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def unfinished(path: Path) -> Path:
    """The name of a file or folder while it is made, in the same folder; those of killed processes are removed."""
    clear_unfinished(path.parent, path.name)
    return path.with_name(f".{_short(path.name)}.{_host()}.{os.getpid()}.partial")


def clear_unfinished(folder: Path, name: str = "") -> None:
    """Remove unfinished files and folders of processes that no longer run; those of one name, if it is given."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = PARTIAL.fullmatch(entry.name)
            if found and (not name or found["name"] == _short(name)) and _is_left_over(entry, found):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink(missing_ok=True)


def _is_left_over(entry: "os.DirEntry[str]", found: "re.Match[str]") -> bool:
    if found["host"] != _host():
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_ELSEWHERE
    try:
        os.kill(int(found["process"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _short(name: str) -> str:
    """A name that leaves room for more in the 255 bytes that a file system allows."""
    return os.fsdecode(os.fsencode(name)[:150])


def _host() -> str:
    return re.sub(r"[^\w-]", "_", socket.gethostname())[:40] or "_"


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a cell that begins so


def safe(text: str) -> str:
    """Text for a cell that no spreadsheet takes for a formula.

    >>> safe("=1+1"), safe("cell-3")
    ("'=1+1", 'cell-3')
    """
    return f"'{text}" if text.startswith(FORMULA) else text


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows of numbers and text as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([safe(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return buffer.getvalue()


# --- reading ----------------------------------------------------------------------------------------------------------


def damaged(path: Path, why: object, way_out: str) -> RunError:
    """The error for a file that does not hold what it should: one line, however long the reason."""
    reason = " ".join(str(why).split())[:200]
    return RunError(f"{path} is damaged ({reason}): {way_out}")


def read_bytes(path: Path, way_out: str, limit: int | None = None) -> bytes:
    """The content of a file. Pipes, devices, folders and files above the limit raise before anything is read."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise damaged(path, "it is not a file", way_out)
    if limit is not None and found.st_size > limit:
        raise damaged(path, f"it has {found.st_size:,} bytes, and at most {limit:,} are expected", way_out)
    return path.read_bytes()


def read_text(path: Path, way_out: str) -> str:
    """The text of a small file."""
    try:
        return read_bytes(path, way_out, LARGEST_TEXT).decode()
    except UnicodeDecodeError as error:
        raise damaged(path, error, way_out) from None


def parsed(text: str) -> Any:
    """What JSON says; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, way_out: str) -> dict[str, Any]:
    """The object in a JSON file."""
    text = read_text(path, way_out)
    try:
        found = parsed(text)
    except ValueError as error:
        raise damaged(path, error, way_out) from None
    if not isinstance(found, dict):
        raise damaged(path, f"an object is needed, found {type(found).__name__}", way_out)
    return found


def blocks(path: Path) -> Iterator[bytes]:
    """The content of a file, a few megabytes at a time: no more than that is in memory."""
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            yield block


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    for block in blocks(path):
        digest.update(block)
    return digest.hexdigest()
