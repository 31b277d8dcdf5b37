"""Long predictions that continue: what is done is kept in a folder beside the output until all is there."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from quarterturn_lab.errors import RunError
from quarterturn_lab.files import no_space


@contextmanager
def unfinished(out: Path, job: dict[str, Any]) -> Iterator[Path]:
    """A folder for what is done of a job; it is removed at the end, and kept after an error or a kill.

    The same job finds what it left. What another one left for the same output is thrown away.
    """
    folder = out.absolute().with_name(f".{out.name}.unfinished")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "job.json").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"another process is writing {out}: wait for it, or give another --out") from None
        file.seek(0)
        text = json.dumps(job, sort_keys=True)
        if _text(file) != text:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != "job.json":
                    path.unlink()
            file.seek(0)
            file.truncate()
            with no_space(str(out)):
                file.write(text)
                file.flush()
        try:
            yield folder
        except BaseException:
            if not any(_is_work(path) for path in folder.rglob("*")):
                shutil.rmtree(folder)
            raise
    shutil.rmtree(folder)


def _text(file: IO[str]) -> str:
    try:
        return file.read()
    except UnicodeDecodeError:  # damaged: as that of another job
        return ""


def marks(path: Path) -> list[list[int]]:
    """The lines of numbers that say what is done, without a last one that was cut off. A damaged file is removed."""
    try:
        return [list(map(int, line.split())) for line in path.read_text().rpartition("\n")[0].splitlines()]
    except FileNotFoundError:
        return []
    except ValueError:
        path.unlink()
        return []


def _is_work(path: Path) -> bool:
    """Whether a file says that something is done, or is a part of it."""
    return path.is_file() and path.stat().st_size > 0 and path.name not in ("job.json", "mask.raw")


def state_of(path: Path) -> tuple[str, int, int]:
    """What changes if a file does: its place, size and time."""
    found = path.stat()
    return str(path.resolve()), found.st_size, found.st_mtime_ns
