"""The lab's errors: a message says what came, what was needed and what to do. Nothing here imports torch."""

from collections.abc import Iterable


class LabError(ValueError):
    """A mistake in the use of the lab; the command line prints the message alone."""


class DataError(LabError):
    """A folder, file or image that cannot be used."""


class ConfigError(LabError):
    """Settings that do not go together, or that do not fit a run's checkpoint."""


class RunError(LabError):
    """A run that cannot start or go on: its directory is in use, the disk is full, the loss diverges."""


def unknown(what: str, name: object, valid: Iterable[str]) -> ConfigError:
    """The error for a name that is not among the valid ones; offers the nearest."""
    from quarterturn.errors import unknown as nearest  # its package imports torch

    return ConfigError(str(nearest(what, name, valid)))
