"""A function in several processes that work together over gloo on loopback."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing


def in_processes(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` returns in each process, in the order of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_one, (count, folder, function, arguments), nprocs=count)
        return [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(count)]


def _one(rank: int, count: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    try:
        torch.save(function(rank, *arguments), Path(folder) / str(rank))
    finally:
        distributed.destroy_process_group()
