"""Group convolutions of volumes against plain `conv3d` of the same total width.

    python bench/volumes.py [--repeats 7] [--isa avx2] [--profile]

`times plain` is how many times as fast as plain `conv3d` a layer through the kernel is; plain is measured in both
memory formats, and the faster one counts. `filters times plain` is the same for conv3d with turned filters, which
runs where a layer has strides, and ran everywhere before there was a kernel for volumes. `asked for` is the goal. One
thread, CPU time, contenders interleaved.

With `--profile`: where the kernel's time goes, by `perf` (Debian: linux-perf), which looks 2000 times a second which
function is running. Plain is in torch's default format here. `GFLOPS` of the kernel are those of its products, fewer
than plain's, in the time that they take.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from conv import forward, forward_and_backward
from harness import Rows, medians, parser_for, run, start_again_with_a_warm_allocator, write
from torch import Tensor, nn
from torch.nn.grad import conv3d_weight

import quarterturn as qt
from quarterturn.fourier.transforms import transform_of

SIZES = ((48, 24, 1), (96, 16, 2), (192, 12, 4))  # width, side, batch
STRIDED = ((48, 24, 1), (48, 25, 1), (192, 12, 4), (192, 13, 4))
GROUPS = (qt.mirrors(1, 2, 3), qt.about(qt.D4, 1), qt.OCTA, qt.OCTA_FULL)
GOALS = {"mirrors-1-2-3": (3, 4, 5), "D4-1": (2.5, 3.5, 4), "octa": (3, 4.5, 6), "octa-full": ("", "", 4)}
FUNCTIONS = {  # of the kernel, by what their names contain
    "transform": "Analysis",
    "products": "multiply|correlate",
    "back": "Synthesis",
    "padding": "pad",
    "output": "write|gather_plane",
}


def _last(layer: nn.Conv3d) -> nn.Conv3d:
    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last_3d)
    return layer


def _compared(kernel: int, stride: int, size: tuple[int, int, int], goals: int | None, repeats: int) -> Rows:
    """All groups against plain, forward and with gradients."""
    width, side, batch = size
    x = torch.randn(batch, width, side, side, side)
    last = x.contiguous(memory_format=torch.channels_last_3d)
    plain, other = (nn.Conv3d(width, width, kernel, stride, kernel // 2) for _ in range(2))
    layers: dict[tuple[str, str], tuple[nn.Module, Tensor]] = {
        ("plain", ""): (plain, x),
        ("plain", "last"): (_last(other), last),
    }
    for group in GROUPS:
        features = width // group.order
        for via in ("fourier", "conv") if stride == 1 else ("conv",):
            how = {"stride": stride, "padding": kernel // 2, "rotate": "filters", "via": via}
            layers[group.name, via] = qt.RollConv(group, features, features, kernel, **how), x  # type: ignore[arg-type]
    rows: Rows = []
    for what, prepare in (("forward", forward), ("forward and backward", forward_and_backward)):
        runs = {" ".join(name): prepare(layer, maps) for name, (layer, maps) in layers.items()}
        seconds = medians(runs, repeats, time.process_time)
        best = min(seconds["plain "], seconds["plain last"])
        for group in GROUPS:
            rows.append(
                {
                    "group": group.name,
                    "kernel": "x".join([str(kernel)] * 3),
                    "stride": stride,
                    "width": width,
                    "side": side,
                    "batch": batch,
                    "what": what,
                    "times plain": round(best / seconds[f"{group.name} fourier"], 2) if stride == 1 else "",
                    "asked for": "" if goals is None else GOALS[group.name][goals],
                    "filters times plain": round(best / seconds[f"{group.name} conv"], 2),
                }
            )
    return rows


def measure(repeats: int) -> Rows:
    rows: Rows = []
    for kernel in (3, 1):
        for place, size in enumerate(SIZES):
            rows += _compared(kernel, 1, size, place if kernel > 1 else None, repeats)
    for size in STRIDED:
        rows += _compared(3, 2, size, None, repeats)
    return rows


# --- where the time goes ----------------------------------------------------------------------------------------------


def shares(call: Callable[[], object], seconds: float = 1.0) -> Counter[str]:
    """What part of the time each kind of function takes, by samples of this process."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "samples"))
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "2000", "-p", str(os.getpid()), "-o", file]
        perf = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(0.5)  # until it looks
        end = time.process_time() + seconds
        while time.process_time() < end:
            call()
        perf.send_signal(signal.SIGINT)
        perf.wait()
        script = ["perf", "script", "-i", file, "-F", "ip,sym"]
        samples = subprocess.run(script, check=True, capture_output=True, text=True).stdout.split("\n")
    found: Counter[str] = Counter()
    for sample in filter(None, samples):
        found[next((name for name, form in FUNCTIONS.items() if re.search(form, sample)), "rest")] += 1
    total = found.total()
    return Counter({name: count / total for name, count in found.items()})


def profile(repeats: int) -> Rows:
    """The forward pass and the gradient to weights; that to the input is a forward pass with other numbers."""
    rows: Rows = []
    ops = torch.ops.quarterturn
    ones, corner = [1] * 3, [-1] * 3
    for width, side, batch in (SIZES[0], SIZES[2]):
        x, y = torch.randn(2, batch, width, side, side, side)
        layer = nn.Conv3d(width, width, 3, padding=1)
        plain = {
            "forward": partial(layer, x),
            "gradient to weights": partial(conv3d_weight, x, layer.weight.shape, y, padding=1),
        }
        for group in GROUPS:
            features, transform = width // group.order, transform_of(group)
            assert transform is not None
            weight = torch.randn(features, width, 3, 3, 3)
            how = [a for element in group.elements for a in element], ones, corner * group.order
            kernel = {
                "forward": partial(ops.volume_conv, x, weight, None, *how, [side] * 3),
                "gradient to weights": partial(ops.volume_conv_weight_gradient, x, y, *how, [3] * 3),
            }
            window = 2e-9 * batch * side**3 * 27
            products = window * features**2 * sum(rows * parts * columns for rows, parts, columns in transform.jobs)
            for what, call in kernel.items():
                seconds = medians({"plain": plain[what], "kernel": call}, repeats, time.process_time)
                part = shares(call)
                rows.append(
                    {
                        "group": group.name,
                        "width": width,
                        "what": what,
                        "plain ms": round(1e3 * seconds["plain"], 1),
                        "plain GFLOPS": round(window * width**2 / seconds["plain"]),
                        "kernel ms": round(1e3 * seconds["kernel"], 1),
                        "GFLOPS": round(products / (seconds["kernel"] * part["products"])),
                        **{f"% {name}": round(100 * part[name]) for name in (*FUNCTIONS, "rest")},
                    }
                )
    return rows


if __name__ == "__main__":
    if "--profile" in sys.argv:
        start_again_with_a_warm_allocator()
        parser = parser_for(__doc__)
        parser.add_argument("--repeats", type=int, default=7)
        parser.add_argument("--profile", action="store_true")
        torch.set_num_threads(1)
        with torch.no_grad():
            write("volume-parts", profile(parser.parse_args().repeats))
    else:
        run("volumes", __doc__, measure, repeats=7)
