"""Progress of long readings: whoever starts one may watch it. Nothing here prints."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Watcher = Callable[[str, int, int], None]  # what is being done, how many files are done, of how many
Item = TypeVar("Item")

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` from time to time while files are listed, hashed or decoded inside this block.

    >>> with watching(lambda what, done, total: print(what, done, total)):
    ...     files = list(watched("decoding", ["a.png", "b.png"], 2))
    decoding 1 2
    decoding 2 2
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(what: str, items: Iterable[Item], total: int) -> Iterator[Item]:
    """The items, each reported after it has been used."""
    tell = _watcher.get()
    for number, item in enumerate(items, start=1):
        yield item
        if tell:
            tell(what, number, total)
