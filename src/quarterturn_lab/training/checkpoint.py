"""Checkpoints: a killed run resumes from one and ends with the same weights as if it had not been killed."""

import io
import json
from pathlib import Path
from typing import Any

import torch

from quarterturn_lab import ranks
from quarterturn_lab.data.dataset import Data
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.files import write_atomically
from quarterturn_lab.training.loop import Best, State

# Fields of a state.
NUMBERS = ("step", "loss_sum", "images_seen", "first_loss", "recent_loss", "worse", "stopped", "seconds")


def save(directory: Path, state: State, records: list[dict[str, Any]], data: Data) -> None:
    """Write the state of a run to checkpoint.pt; `records` are those of its epochs so far."""
    buffer = io.BytesIO()  # first into memory, so that a full disk is reported by our own write
    torch.save({**_contents(state), "records": json.dumps(records), "data": data.fingerprint}, buffer)
    write_atomically(directory / "checkpoint.pt", buffer.getvalue())


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


def restore(directory: Path, state: State, data: Data) -> list[dict[str, Any]]:
    """Load the checkpoint, if there is one, cut metrics.jsonl back to it, and return its records."""
    path = directory / "checkpoint.pt"
    records: list[dict[str, Any]] = []
    if path.exists():
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["data"] != data.fingerprint:
            raise ConfigError(
                f"{path} was made with other images: give the same --data as before, or remove the run directory"
            )
        try:
            _put(saved, state)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{path} does not fit the network in config.json: {str(error).splitlines()[0]}") from None
        records = json.loads(saved["records"])
    write_atomically(directory / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    return records
