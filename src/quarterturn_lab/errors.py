"""The lab's errors, in the library's family: a message says what came, what was needed and what to do."""

from quarterturn.errors import QuarterturnError


class DataError(QuarterturnError):
    """A folder, file or image that cannot be used."""


class ConfigError(QuarterturnError):
    """Settings that do not go together, or that do not fit a run's checkpoint."""


class RunError(QuarterturnError):
    """A run that cannot start or go on: its directory is in use, the disk is full, the loss diverges."""
