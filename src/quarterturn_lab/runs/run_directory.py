"""Run directories: locking, checking and reading them. They hold these files:

config.json  environment.json  metrics.jsonl  checkpoint.pt  model.safetensors  model.json  summary.json
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.files import no_space
from quarterturn_lab.settings.config import Config, difference, read


def check_config(config: Config, directory: Path) -> None:
    """Raise if the run in the directory was started with other settings."""
    path = directory / "config.json"
    if not path.exists():
        return
    changed = difference(read(path.read_text()), config)
    if changed:
        raise ConfigError(
            f"{directory} holds a run with other settings ({'; '.join(changed)}): use the same settings, another "
            "--runs-dir or --seed, or remove the directory"
        )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the run directory. The lock ends with the process, even if it is killed."""
    import fcntl

    with (directory / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise RunError(
                f"{directory} is in use by another process (PID {holder}): wait for it, or use another "
                "--runs-dir or --seed"
            ) from None
        with no_space(str(directory / "lock")):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def summary(directory: Path) -> dict[str, Any]:
    """The summary of a finished run."""
    path = directory / "summary.json"
    if not path.exists():
        state = "is not finished" if (directory / "config.json").exists() else "is not a run directory"
        raise RunError(f"{directory} {state}, it has no summary.json: start or resume a run with `quarterturn train`")
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}): remove it, and run the same command again") from None


def records(directory: Path) -> list[dict[str, Any]]:
    """The records of the epochs, without a line that was cut off when the run was killed."""
    path = directory / "metrics.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def config_of(directory: Path) -> Config:
    """The settings of a finished run."""
    summary(directory)
    path = directory / "config.json"
    try:
        return read(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{directory} has no config.json: copy the whole directory") from None
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is damaged ({error}): train it again") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def finished(root: Path) -> list[Path]:
    """The directories of all finished runs in a directory, at any depth."""
    return sorted(path.parent for path in root.rglob("summary.json"))
