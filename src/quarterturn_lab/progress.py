"""Progress of one or several runs: bars on a terminal, plain lines when piped."""

import sys
import time
from types import TracebackType
from typing import Any


class Bars:
    """`with Bars() as bars: bars.update("baseline seed 0", step, total, loss, images)`.

    `images` is the number of images in a step. On a terminal each name has a bar. Elsewhere each name prints a line
    every `interval` seconds, and one at its end.
    """

    def __init__(self, interval: float = 10.0) -> None:
        self.interval = interval
        self.started: dict[str, tuple[float, int]] = {}
        self.printed: dict[str, float] = {}
        self.tasks: dict[str, Any] = {}
        self.bars: Any = None

    def __enter__(self) -> "Bars":
        if sys.stdout.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
            )
            self.bars = Progress(*columns).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars:
            self.bars.__exit__(kind, error, trace)

    def files(self, what: str, done: int, total: int) -> None:
        """Show how many files are done: what `data.watch.watching` calls."""
        self.update(what, done, total, None, 1)

    def update(self, name: str, step: int, total: int, loss: float | None, images: int, unit: str = "images") -> None:
        """Show that a run has reached this step."""
        now = time.monotonic()
        start, first = self.started.setdefault(name, (now, step))
        rate = (step - first) / (now - start) if now > start else 0.0
        notes = [f"loss {loss:.3f}"] if loss is not None else []
        note = "  ".join(
            [*notes, *([f"{rate * images:,.{0 if rate * images >= 10 else 1}f} {unit}/s"] if rate else [])]
        )
        if self.bars:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=total, note=note)
            self.bars.update(self.tasks[name], completed=step, total=total, note=note)
        elif step >= total or now - self.printed.get(name, 0.0) >= self.interval:
            left = f"  {clock((total - step) / rate)} left" if rate and step < total else ""
            if step < total or self.printed.get(name) != float("inf"):
                print(f"{name}: {100 * step // total:3d}%  {note}{left}", flush=True)
            self.printed[name] = now if step < total else float("inf")

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        if self.bars:
            self.bars.console.print(line, highlight=False, markup=False)
        else:
            print(line, flush=True)


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds, or hours, minutes and seconds.

    >>> clock(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
