"""Run directories: locking, checking and reading them. They hold these files:

config.json  environment.json  metrics.jsonl  checkpoint*.pt  model.safetensors  model.json  summary.json
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.files import damaged, no_space, parsed, read_json, read_text, sha256
from quarterturn_lab.settings.config import Config, difference, read

SEALED = ("config.json", "model.json", "model.safetensors")  # summary.json has their checksums
NEEDED: dict[str, Any] = {  # in every summary
    **dict.fromkeys(("experiment", "row", "task"), str),
    **dict.fromkeys(("seed", "parameters", "train_images", "test_images", "skipped_images", "presentations"), int),
    **dict.fromkeys(("cpu_seconds", "wall_seconds"), int | float),
    **dict.fromkeys(("test", "train"), dict),
    "group": str | None,
}
WAY_OUT = "copy the run directory again, or train it again"


def check_config(config: Config, directory: Path) -> None:
    """Raise if the run in the directory was started with other settings."""
    if not (directory / "config.json").exists():
        return
    changed = difference(read_config(directory), config)
    if changed:
        raise ConfigError(
            f"{directory} holds a run with other settings ({'; '.join(changed)}): use the same settings, another "
            "--runs-dir or --seed, or remove the directory"
        )


def read_config(directory: Path) -> Config:
    """The settings of a run, finished or not."""
    path = directory / "config.json"
    try:
        return read(read_text(path, WAY_OUT))
    except FileNotFoundError:
        raise RunError(f"{directory} has no config.json: copy the whole directory") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


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
    way_out = "remove it, and run the same command again"
    found = read_json(path, way_out)
    if missing := [name for name, kind in NEEDED.items() if not isinstance(found.get(name, ...), kind)]:
        raise damaged(path, f"it has no {' and no '.join(missing)}", way_out)
    return found


def check_sealed(path: Path) -> None:
    """Raise if a file of a finished run is not what it was. Runs of older versions have no checksums."""
    if path.exists() and not path.is_file():
        raise damaged(path, "it is not a file", WAY_OUT)
    sums = summary(path.parent).get("sha256")
    if isinstance(sums, dict) and path.name in sums and path.is_file() and sums[path.name] != sha256(path):
        raise damaged(path, "it differs from the checksum in summary.json", WAY_OUT)


def records(directory: Path) -> list[dict[str, Any]]:
    """The records of the epochs, up to a line that was cut off when the run was killed, or damaged."""
    path = directory / "metrics.jsonl"
    found = []
    for line in read_text(path, "remove it, the scores are in summary.json").splitlines() if path.exists() else ():
        try:
            record = parsed(line)
        except ValueError:
            break
        if not isinstance(record, dict) or not isinstance(record.get("epoch"), int):
            break
        if not all(isinstance(value, int | float | None) for value in record.values()):
            break
        found.append({name: value for name, value in record.items() if value is not None})
    return found


def config_of(directory: Path) -> Config:
    """The settings of a finished run."""
    check_sealed(directory / "config.json")
    return read_config(directory)


def finished(root: Path) -> list[Path]:
    """The directories of all finished runs in a directory, at any depth."""
    return sorted(path.parent for path in root.rglob("summary.json"))
