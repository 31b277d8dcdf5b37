"""The lab's errors. A message says what was given, what was expected and what to do. No torch is imported here."""

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What a file is called until it is whole.
UNFINISHED = re.compile(r"(^|/)\.([^/]+?)(\.[^./]+\.\d+\.partial|\.unfinished)(/.*)?$")
FREE_SPACE = "Earlier files are intact: free some space and run the same command again"


class LabError(ValueError):
    """A user's mistake; the command line prints the message without a traceback."""


class DataError(LabError):
    """A folder, file or image that cannot be used."""


class ConfigError(LabError):
    """Settings that contradict each other or do not match a run's checkpoint."""


class RunError(LabError):
    """A run that cannot start or continue: its directory is in use, the disk is full, the loss diverges."""


class Diverged(RunError):
    """The loss, the weights or the outputs are no longer numbers, or far from what they were."""


class Lost(RunError):
    """Another process of the run has ended: a consequence of what that one says, or of who killed it."""


def unknown(what: str, name: object, valid: Iterable[str]) -> ConfigError:
    """The error for an unknown name, with the nearest valid names."""
    from quarterturn.errors import unknown as nearest  # its package imports torch

    return ConfigError(str(nearest(what, name, valid)))


def of_system(error: OSError) -> RunError | None:
    """The error for a place that the system refuses, such as a folder without permissions; None if it names none."""
    if error.errno in FULL:
        what = _meant(error.filename or "a file")
        return RunError(f"could not write {what}: {os.strerror(error.errno or 0).lower()}. {FREE_SPACE}")
    if error.filename is None:
        return None
    if isinstance(error, FileExistsError | NotADirectoryError):
        place = Path(os.fsdecode(error.filename))
        file = next((path for path in (place, *place.parents) if path.is_file()), place)
        return RunError(f"{file} is a file, and a folder is needed: give another place")
    why = (error.strerror or type(error).__name__).lower()
    return RunError(f"{_meant(error.filename)} cannot be used, {why}: give another place, or change its permissions")


def _meant(name: str | bytes) -> str:
    """The file that was to be written, for one that is its beginning.

    >>> _meant("out/.report.html.host.123.partial"), _meant(".o.csv.unfinished/rows.csv"), _meant("a/.b.csv")
    ('out/report.html', 'o.csv', 'a/.b.csv')
    """
    return UNFINISHED.sub(r"\1\2", os.fsdecode(name))
