"""Signals that ask a command to end: it saves first, says so, and ends with 128 and the signal's number.

    SIGHUP 129 (the terminal was closed)   SIGINT 130 (Ctrl-C)   SIGTERM 143 (kill, shutdown, a cluster's time limit)

A second one ends it at once. Signals that are ignored when a command starts, as under nohup, stay so.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

NAMES = ("SIGHUP", "SIGINT", "SIGTERM")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
ASKED = "quarterturn: {name}: saving a checkpoint, then ending (once more: end at once)\n"

Handler = Callable[[int, FrameType | None], Any]


class Stopped(BaseException):
    """A signal has ended the command; no handler of other errors catches it, as with KeyboardInterrupt."""

    def __init__(self, number: int, saved: str = "") -> None:
        self.code = 128 + number
        name = signal.Signals(number).name
        super().__init__(f"ended by {name}{', ' if saved else ''}{saved}. Run the same command again to resume")


@contextmanager
def at_once() -> Iterator[None]:
    """A signal raises `Stopped` where the command is."""
    with _handled(_stop):
        yield


def _stop(number: int, _: FrameType | None) -> None:
    raise Stopped(number)


@contextmanager
def later(says: bool = True) -> Iterator[Callable[[], int]]:
    """A signal is noted instead, and said: the function tells which has come, or 0. The second one raises `Stopped`."""
    noted = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            _stop(number, frame)
        noted = number
        if not says:
            return
        with suppress(OSError):  # the terminal may be gone
            os.write(2, ASKED.format(name=signal.Signals(number).name).encode())  # print may be in the midst of a line

    with _handled(note):
        yield lambda: noted


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Signals that are not ignored go to this handler. Only the main thread can set handlers."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: found for number, found in before.items() if found not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
