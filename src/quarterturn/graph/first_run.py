"""What a network's code makes when it runs for the first time and keeps, such as tables of the distances of patches.

A network is read after a run: so its constants have the same names whether it has run before or not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Take back at the end what runs and tracing leave in the network."""
    restore = _snapshot(model)
    try:
        yield
    finally:
        restore()


def run_once(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Have the network make what it keeps. What it computes of parameters is taken back: they will learn."""
    restore = _snapshot(model)
    try:
        with torch.enable_grad():
            model(*(x.clone() for x in inputs))
    except Exception:  # reading the network says what is wrong
        restore()
    else:
        restore(keep=lambda value: isinstance(value, Tensor) and not value.requires_grad)


def _snapshot(model: nn.Module) -> Callable[..., None]:
    """Takes back what has changed since: attributes, buffers and dictionaries, but not values that are to `keep`."""
    held: list[dict[str, Any]] = []
    for module in model.modules():
        held += [vars(module), *([module._buffers] if isinstance(module._buffers, dict) else [])]
        held += [value for name, value in vars(module).items() if type(value) is dict and not name.startswith("_")]
    before = [(each, dict(each)) for each in held]

    def restore(keep: Callable[[Any], bool] = lambda value: False) -> None:
        for each, content in before:
            for name in [n for n in each if n not in content and not keep(each[n])]:
                del each[name]
            for name, value in content.items():
                if name not in each or (each[name] is not value and not keep(each[name])):
                    each[name] = value

    return restore
