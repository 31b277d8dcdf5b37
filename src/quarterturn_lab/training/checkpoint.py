"""Checkpoints: one file, replaced as a whole; a run that was killed goes on from it and ends with the same weights."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quarterturn_lab.data.dataset import Data
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.files import write_atomically
from quarterturn_lab.training.loop import State

NUMBERS = ("step", "loss_sum", "images_seen", "first_loss", "recent_loss", "seconds")  # of a state


def save(directory: Path, net: nn.Module, state: State, records: list[dict[str, Any]], data: Data) -> None:
    """Write where a run is; `records` are those of its epochs so far."""
    buffer = io.BytesIO()  # first into memory: a full disk then shows as an error of our own write
    torch.save(
        {
            "net": net.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "scaler": state.scaler.state_dict(),
            "numbers": {name: getattr(state, name) for name in NUMBERS},
            "records": json.dumps(records),
            "data": data.fingerprint,
        },
        buffer,
    )
    write_atomically(directory / "checkpoint.pt", buffer.getvalue())


def restore(directory: Path, net: nn.Module, state: State, data: Data) -> list[dict[str, Any]]:
    """Load the checkpoint, if there is one, and cut metrics.jsonl back to where it was made; the records."""
    path = directory / "checkpoint.pt"
    records: list[dict[str, Any]] = []
    if path.exists():
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["data"] != data.fingerprint:
            raise ConfigError(f"{path} was made with other images than these: give the same --data, or remove the run")
        try:
            net.load_state_dict(saved["net"])
            state.optimizer.load_state_dict(saved["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{path} does not fit the network of config.json: {str(error).splitlines()[0]}") from None
        state.scaler.load_state_dict(saved["scaler"])
        for name, value in saved["numbers"].items():
            setattr(state, name, value)
        records = json.loads(saved["records"])
    write_atomically(directory / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    return records
