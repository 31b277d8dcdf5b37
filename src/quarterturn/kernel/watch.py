"""Who counts what runs. The dispatcher of torch does not see all calls of the kernel, so these are reported here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Watcher = Callable[[str, tuple[Tensor | None, ...]], None]  # gets a name, and the tensors that are read and written
_watcher: ContextVar[Watcher | None] = ContextVar("who counts", default=None)


def report(what: str, *tensors: Tensor | None) -> None:
    """Tell the one who counts, if there is one, of a call of the kernel."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, tensors)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Report calls of the kernel to the watcher, a dispatch mode that counts. For that, everything runs as without."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def dispatch_modes() -> int:
    """How many modes of torch's dispatcher look at the numbers; one that counts does not.

    >>> dispatch_modes()
    0
    """
    return torch._C._len_torch_dispatch_stack() - (_watcher.get() is not None)
