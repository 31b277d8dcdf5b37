"""Trackers: where a run sends its losses and scores on the way, such as TensorBoard or a service of your own.

A tracker is an object with two methods: `log(step, values)` and `close()`. A function that makes one takes the run
directory and the settings, and is named by `--track package.module:function`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.models.libraries import from_factory
from quarterturn_lab.settings.config import Config


class Tracker(Protocol):
    """What a run needs of a tracker."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Take in the losses and scores at a step."""

    def close(self) -> None:
        """The run has ended, or stops here."""


class TensorBoard:
    """Writes the files that `tensorboard --logdir` shows, into `tensorboard/` in the run directory."""

    def __init__(self, directory: Path, config: Config) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError(
                '--tensorboard needs the package tensorboard: pip install "quarterturn[lab,tensorboard]"'
            ) from None
        self.writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


def trackers_of(config: Config, directory: Path) -> list[Tracker]:
    """The trackers that a run's settings ask for."""
    found: list[Tracker] = [TensorBoard(directory, config)] if config.tensorboard else []
    if config.track is not None:
        made = from_factory(config.track, "--track", "the run directory and the settings")(directory, config)
        if not (callable(getattr(made, "log", None)) and callable(getattr(made, "close", None))):
            raise ConfigError(
                f"--track {config.track} gave {type(made).__name__}: an object with log(step, values) and close() is "
                "needed"
            )
        found.append(made)
    return found


@contextmanager
def closing_all(trackers: list[Tracker]) -> Iterator[list[Tracker]]:
    """Close the trackers at the end, also after an error."""
    try:
        yield trackers
    finally:
        for tracker in trackers:
            tracker.close()
