"""Export to a TorchScript file: the plain network, traced, with the model card beside it in the file."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quarterturn_lab.inference.agreement import Written
from quarterturn_lab.inference.network import runner
from quarterturn_lab.inference.source import Source
from quarterturn_lab.runs.model_card import KEY

CPU = torch.device("cpu")


def write(source: Source, path: Path) -> Written:
    """Write the file and load it again."""
    save(source, source.plain, path)
    return Written({"torch.jit": runner(load(path), CPU)}, runner(source.net, CPU), source.numbers())


def save(source: Source, net: nn.Module, path: Path) -> None:
    """Trace a network on an example of the source, and save it with the model card."""
    example = torch.from_numpy(source.numbers()[0])
    traced = _quietly(torch.jit.trace, net.eval(), example, check_trace=False)
    buffer = io.BytesIO()  # on a full disk, torch's own writing ends the process
    _quietly(torch.jit.save, traced, buffer, _extra_files={f"{KEY}.json": source.card.to_json()})
    path.write_bytes(buffer.getbuffer())


def load(path: Path) -> nn.Module:
    """The network of a TorchScript file."""
    return _quietly(torch.jit.load, str(path), map_location="cpu")


def _quietly(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """torch.jit is no longer developed, and says so at each call; the programs that read such files are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # sizes that it reads are compared on others
        return call(*arguments, **options)
