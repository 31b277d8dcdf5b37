"""Progress of long readings: whoever starts one may watch it. Nothing here prints."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Watcher = Callable[[str, int, int], None]  # what is being done, how many files are done, of how many
Item = TypeVar("Item")

_watcher: ContextVar[tuple[Watcher, float] | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher, after: float = 1.0) -> Iterator[None]:
    """Call `watcher` while files are listed, hashed or decoded inside this block, if it takes longer than `after` s.

    >>> with watching(lambda what, done, total: print(what, done, total), after=0):
    ...     files = list(watched("decoding", ["a.png", "b.png"], 2))
    decoding 1 2
    decoding 2 2
    """
    token = _watcher.set((watcher, after))
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(what: str, items: Iterable[Item], total: int, each: int = 1) -> Iterator[Item]:
    """The items, each reported after it has been used, as so many images."""
    tell, after = _watcher.get() or (None, 0.0)
    start = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if tell and time.monotonic() - start >= after:
            tell(what, number * each, total * each)
