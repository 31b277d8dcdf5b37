"""Measuring on a noisy machine: contenders side by side in one process, interleaved repeats, medians, ratios."""

import csv
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from quarterturn_lab.training.sweep import ALLOCATOR

RESULTS = Path(__file__).parent / "results"


def start_again_with_a_warm_allocator() -> None:
    """glibc reads its thresholds before main(): set them, for all contenders alike, and start this script again."""
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})


def medians(
    contenders: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds of each contender: the median over rounds in which each one runs once."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(repeats + 1):
        for name, run in contenders.items():
            start = clock()
            run()
            if round_number:  # the first round only warms up
                seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine() -> str:
    """A short name of this machine's processor, for file names."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return "-".join("".join(c if c.isalnum() else " " for c in cpu).split()).lower()


def write(name: str, rows: list[dict[str, object]]) -> Path:
    """Write the rows as CSV, named by machine and torch version, and print them as a table."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{machine()}-torch{torch.__version__.split('+')[0]}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print(f"-> {path}")
    return path


def newest(name: str) -> Path:
    """The newest result of that name."""
    return max(RESULTS.glob(f"{name}-*.csv"), key=lambda path: (path.stat().st_mtime, path.name))


def markdown(rows: list[list[str]]) -> str:
    """Rows of cells as a Markdown table; the first is its head."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])
