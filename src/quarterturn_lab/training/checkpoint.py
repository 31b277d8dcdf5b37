"""Checkpoints: a killed run resumes from one and ends with the same weights as if it had not been killed.

    checkpoint.pt            the newest
    checkpoint.previous.pt   the one before
    checkpoint.best.pt       the one with the best validation score, with --keep best

Each begins with the SHA-256 of the rest. One that is damaged is put aside, and the run goes on from the next.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from quarterturn_lab import ranks
from quarterturn_lab.data.dataset import Data
from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.files import damaged, read_bytes, write_atomically
from quarterturn_lab.models import pretrained
from quarterturn_lab.training.loop import Best, State

NEWEST, PREVIOUS, BEST = NAMES = ("checkpoint.pt", "checkpoint.previous.pt", "checkpoint.best.pt")
DAMAGED = "checkpoint.damaged.pt"
MARK = b"quarterturn checkpoint 2\n"  # then 64 digits of the SHA-256, a line's end, and what torch.save wrote
START = len(MARK) + 65
# Fields of a state.
NUMBERS = ("step", "loss_sum", "images_seen", "first_loss", "recent_loss", "worse", "stopped", "seconds")
FIELDS = {"net", "optimizer", "scaler", "numbers", "records", "data"}  # older files lack others
WAY_OUT = "remove it, and run the same command again"


def exists(directory: Path) -> bool:
    """Whether a run has a checkpoint."""
    return any((directory / name).exists() for name in NAMES)


def save(directory: Path, state: State, records: list[dict[str, Any]], data: Data, best: bool = False) -> None:
    """Write the state of a run; `records` are those of its epochs so far. `best`: its weights are the best so far."""
    buffer = io.BytesIO()  # first into memory, so that a full disk is reported by our own write
    torch.save({**_contents(state), "records": json.dumps(records), "data": data.fingerprint}, buffer)
    content = buffer.getbuffer()
    digest = hashlib.sha256(content).hexdigest()
    if best:
        write_atomically(directory / BEST, MARK, f"{digest}\n", content)
    write_atomically(directory / NEWEST, MARK, f"{digest}\n", content, previous=directory / PREVIOUS)


def _contents(state: State) -> dict[str, Any]:
    return {
        "net": state.net.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "scaler": state.fabric.strategy.precision.state_dict(),
        "average": state.average.net.state_dict() if state.average else None,
        "best": vars(state.best) if state.best else None,
        "numbers": {name: getattr(state, name) for name in NUMBERS},
    }


def _put(saved: dict[str, Any], state: State) -> None:
    state.net.load_state_dict(saved["net"])
    if state.average:
        state.average.net.load_state_dict(saved["average"])
    state.optimizer.load_state_dict(saved["optimizer"])
    state.fabric.strategy.precision.load_state_dict(saved["scaler"])
    state.best = Best(**saved["best"]) if saved.get("best") else None  # older files have none
    for name, value in saved["numbers"].items():
        setattr(state, name, value if name != "seconds" else {**state.seconds, **value})  # older files have fewer


def share(state: State) -> None:
    """Give the restored state of the first process to those that train with it, which may have no such file."""
    if ranks.world() > 1 and ranks.agreed(state.step):
        saved = ranks.agreed(_contents(state) if ranks.rank() == 0 else {})
        if ranks.rank():
            _put(saved, state)


def read(path: Path) -> dict[str, Any]:
    """What a checkpoint holds. One that is damaged raises; no code in it runs."""
    content = memoryview(read_bytes(path, WAY_OUT))
    try:
        if bytes(content[: len(MARK)]) == MARK:
            if hashlib.sha256(content[START:]).hexdigest().encode() + b"\n" != bytes(content[len(MARK) : START]):
                raise ValueError("its checksum differs from its content")
            content = content[START:]
        else:
            _check_older(content)
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not isinstance(found, dict) or FIELDS - found.keys():
            raise ValueError("it does not hold the state of a run")
        json.loads(found["records"])
    except pretrained.UNREADABLE as error:
        raise damaged(path, error, WAY_OUT) from None
    return found


def _check_older(content: memoryview) -> None:
    """Raise if a file of an older version, which has no checksum of its own, differs from those that zip keeps."""
    if bytes(content[:4]) != b"PK\3\4":
        raise ValueError("it is not a checkpoint")
    pretrained.refuse_compressed(io.BytesIO(content))
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        if part := parts.testzip():
            raise ValueError(f"the checksum of {part} differs")


def restore(
    directory: Path, state: State, data: Data, say: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Load the newest whole checkpoint, if there is one, cut metrics.jsonl back to it, and return its records."""
    path, saved = newest(directory, say)
    records: list[dict[str, Any]] = []
    if saved is not None:
        if saved["data"] != data.fingerprint:
            raise ConfigError(
                f"{path} was made with other images: give the same --data as before, or remove the run directory"
            )
        try:
            _put(saved, state)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} does not fit the network in config.json: {str(error).splitlines()[0]}") from None
        records = json.loads(saved["records"])
    write_atomically(directory / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    return records


def newest(directory: Path, say: Callable[[str], None] | None = None) -> tuple[Path, dict[str, Any] | None]:
    """The newest checkpoint that is whole; those that are not are put aside. None if there never was one."""
    faults = []
    for name in NAMES:
        path = directory / name
        if not path.exists():
            continue
        try:
            saved = read(path)
        except RunError as error:
            faults.append((path, error))
            continue
        for other, fault in faults:
            other.replace(directory / DAMAGED)
            if say:
                say(f"{str(fault).removesuffix(f': {WAY_OUT}')}: going on from {name}, step {saved['numbers']['step']}")
        return path, saved
    if faults:
        raise faults[0][1]
    return directory / NEWEST, None
