"""Where the forward time of the kernel goes: shares of its parts, by sampling with Linux' `perf`.

    python bench/shares.py [--seconds 5]

Per cent of the time in the kernel, one thread. Each layer runs in a process of its own, which is what perf samples.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from conv import FORMS, SIZES, forward
from harness import parser_for, start_again_with_a_warm_allocator, write

import quarterturn as qt

PARTS = {  # by the functions of layer.h and vectors.h
    "products": ("multiply",),
    "transform of the input": ("analyse",),
    "its reordering": ("realign", "split_orientations"),
    "transform and reordering of the output": ("synthesise", "join_orientations"),
}


def work(form: int, size: int, seconds: float) -> None:
    """What perf watches."""
    torch.set_num_threads(1)
    (_, group, via), (width, side, batch, kernel) = FORMS[form], SIZES["table"][size]
    x = torch.randn(batch, width, side, side).contiguous(memory_format=torch.channels_last)
    features = width // group.order
    layer = qt.RollConv(group, features, features, kernel, padding=kernel // 2, rotate="filters", via=via)  # type: ignore[arg-type]
    run = forward(layer, x)
    run()  # the first call takes its time
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run()


def shares(form: int, size: int, seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        again = [sys.executable, __file__, "--work", str(form), str(size), "--seconds", str(seconds)]
        subprocess.run(["perf", "record", "-q", "-o", data, *again], check=True, capture_output=True)
        report = ["perf", "report", "-i", data, "--stdio", "-F", "period,dso,symbol", "-t", ";"]
        text = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    found = dict.fromkeys([*PARTS, "rest"], 0)
    for line in text.splitlines():
        period, file, symbol, *_ = [*line.split(";", 2), "", ""]
        if period.strip().isdigit() and "_kernel_" in file:
            part = next((p for p, names in PARTS.items() if any(n in symbol.split("(const")[0] for n in names)), "rest")
            found[part] += int(period)
    total = max(1, sum(found.values()))
    return {part: round(100 * periods / total) for part, periods in found.items()}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        form, size = options.work
        work(form, size, options.seconds)
        return
    rows = [
        {"group": name, "form": via, "width": width, **shares(form, size, options.seconds)}
        for form, (name, _, via) in enumerate(FORMS)
        for size, (width, *_) in enumerate(SIZES["table"])
    ]
    write("shares", rows)


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
