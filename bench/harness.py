"""Measuring on a noisy machine: contenders side by side in one process, interleaved repeats, medians, ratios."""

import argparse
import csv
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from quarterturn.kernel.compiler import PARTS, file_of
from quarterturn.kernel.library import FOLDER, kernels
from quarterturn_lab.training.worker import ALLOCATOR

RESULTS = Path(__file__).parent / "results"
Rows = list[dict[str, object]]


AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def start_again_with_a_warm_allocator() -> None:
    """glibc reads its thresholds before main(): set them, for all contenders alike, and start this script again.

    With `--isa avx2` all contenders run code for AVX2, whatever the processor has: torch and its libraries, and the
    kernel, of which the later ones are left out.
    """
    wanted = dict(ALLOCATOR)
    if isa() == "avx2":
        wanted |= {**AVX2, FOLDER: os.environ.get(FOLDER) or _avx2_kernels()}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def isa() -> str | None:
    """What `--isa` asks for, read before there is a parser."""
    return next((after for given, after in pairwise(sys.argv) if given == "--isa"), None)


def _avx2_kernels() -> str:
    """A folder with the compiled kernels up to AVX2."""
    kernels()  # compiles them where they are not
    folder = tempfile.mkdtemp(prefix="quarterturn-avx2-")
    for part in PARTS:
        for code in ("portable", "avx2"):
            file_of(code, Path(folder), part).symlink_to(file_of(code, part=part))
    return folder


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
    cpu, lines = platform.processor() or platform.machine(), []
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    name = "-".join("".join(c if c.isalnum() else " " for c in cpu).split()).lower()
    if name == "amd-epyc" and any(line.split() == ["cpu", "family", ":", "26"] for line in lines):
        name = "amd-zen-5"  # a virtual machine that does not say which one it is
    return name if isa() is None else f"{isa()}-code-{name}"


def record(name: str) -> Path:
    """The file of this machine's results of that name, with this version of torch."""
    return RESULTS / f"{name}-{machine()}-torch{torch.__version__.split('+')[0]}.csv"


def save(name: str, rows: Rows, head: Sequence[str] = ()) -> Path:
    """Write the rows as CSV; `head` names the columns where there are no rows."""
    RESULTS.mkdir(exist_ok=True)
    path = record(name)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else list(head), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write(name: str, rows: Rows) -> Path:
    """Write the rows as CSV, named by machine and torch version, and print them as a table."""
    path = save(name, rows)
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print(f"-> {path}")
    return path


def latest(name: str) -> Path:
    """The result of that name with the newest torch; of several machines one has to be named, as in conv-amd-epyc."""
    form = re.compile(rf"{re.escape(name)}(?:-(.+))?-torch([\d.]+)\.csv")
    found = [(match[1], match[2], path) for path in RESULTS.iterdir() if (match := form.fullmatch(path.name))]
    found = [each for each in found if each[0] is None] or found  # a machine that is named in full
    machines = sorted({str(where) for where, _, _ in found})
    if len(machines) != 1:
        raise LookupError(f"{name}: there are results of {', '.join(machines) or 'no machine'}, name one of them")
    return max(found, key=lambda each: tuple(map(int, each[1].split("."))))[2]


def markdown(rows: list[list[str]]) -> str:
    """Rows of cells as a Markdown table; the first is its head."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


# --- commands ---------------------------------------------------------------------------------------------------------


def parser_for(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the text at the top of a script."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=("avx2",), help="run code for these instructions, the best by default")
    return parser


def run(
    name: str, description: str | None, measure: Callable[[int], Rows], repeats: int, threads: Sequence[int] = ()
) -> None:
    """A whole script: `measure(repeats)` with one thread, or with each of these numbers of them, written as `name`."""
    start_again_with_a_warm_allocator()
    parser = parser_for(description)
    parser.add_argument("--repeats", type=int, default=repeats)
    if threads:
        parser.add_argument("--threads", type=int, nargs="+", default=list(threads))
    options = parser.parse_args()
    rows: Rows = []
    for count in options.threads if threads else [1]:
        torch.set_num_threads(count)
        rows += measure(options.repeats)
    write(name, rows)
