"""Dense layers in their block-diagonal form against the whole matrix, turned filters included, as RollLinear runs them.

    python bench/dense.py [--repeats 7]

The columns say how many times as fast as `via="linear"` the layer is with `via="fourier"`; for 1x1x1 windows, as fast
as RollConv through torch's convolution. `rows` are examples, or positions. One thread, CPU time.
"""

import time

import torch
from conv import forward, forward_and_backward
from harness import medians, run
from torch import nn

import quarterturn as qt
from quarterturn import C2, C4, D4, OCTA, OCTA_FULL

SIZES = ((32, 192), (32, 528), (64, 1056), (256, 2064), (9216, 192))  # rows, total width: multiples of 24 or nearly
VOLUMES = ((8, 528), (6, 1056), (4, 2112))  # side, total width


def compare(slow: nn.Module, fast: nn.Module, x: torch.Tensor, repeats: int) -> dict[str, object]:
    times = {}
    for what, prepare in (("forward", forward), ("forward and backward", forward_and_backward)):
        seconds = medians({"slow": prepare(slow, x), "fast": prepare(fast, x)}, repeats, time.process_time)
        times[what] = round(seconds["slow"] / seconds["fast"], 2)
    return {**times}


def measure(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for group in (C2, C4, D4, OCTA):
        for batch, width in SIZES:
            features = width // group.order
            x = torch.randn(batch, features * group.order)
            slow = qt.RollLinear(group, features, features, rotate="filters", via="linear")
            fast = qt.RollLinear(group, features, features, rotate="filters", via="fourier")
            row = {"group": group.name, "layer": "dense", "rows": batch, "width": x.shape[1]}
            rows.append({**row, **compare(slow, fast, x, repeats)})
    for group in (OCTA, OCTA_FULL):
        for side, width in VOLUMES:
            features = width // group.order
            x = torch.randn(4, width, side, side, side).contiguous(memory_format=torch.channels_last_3d)
            conv = qt.RollConv(group, features, features, 1, rotate="filters", via="conv")
            dense = qt.RollConv(group, features, features, 1, rotate="filters")
            row = {"group": group.name, "layer": "1x1x1", "rows": 4 * side**3, "width": width}
            rows.append({**row, **compare(conv, dense, x, repeats)})
    return rows


if __name__ == "__main__":
    run("dense", __doc__, measure, repeats=7)
