"""Group convolutions of volumes against plain `conv3d` of the same total width.

    python bench/volumes.py [--repeats 7] [--isa avx2]

`times plain` is how many times as fast as plain `conv3d` a layer through the kernel is; plain is measured in both
memory formats, and the faster one counts. `filters times plain` is the same for conv3d with turned filters, which
ran before there was a kernel for volumes. `asked for` is the goal. One thread, CPU time, contenders interleaved.
"""

import time

import torch
from conv import forward, forward_and_backward
from harness import Rows, medians, run
from torch import nn

import quarterturn as qt

SIZES = ((48, 24, 1), (96, 16, 2), (192, 12, 4))  # width, side, batch
GROUPS = (qt.mirrors(1, 2, 3), qt.about(qt.D4, 1), qt.OCTA, qt.OCTA_FULL)
GOALS = {"mirrors-1-2-3": (3, 4, 5), "D4-1": (2.5, 3.5, 4), "octa": (3, 4.5, 6), "octa-full": ("", "", 4)}


def _last(layer: nn.Conv3d) -> nn.Conv3d:
    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last_3d)
    return layer


def measure(repeats: int) -> Rows:
    rows: Rows = []
    for kernel in (3, 1):
        for place, (width, side, batch) in enumerate(SIZES):
            x = torch.randn(batch, width, side, side, side)
            last = x.contiguous(memory_format=torch.channels_last_3d)
            plain, other = (nn.Conv3d(width, width, kernel, padding=kernel // 2) for _ in range(2))
            layers = {
                ("plain", ""): (plain, x),
                ("plain", "last"): (_last(other), last),
            }
            for group in GROUPS:
                features = width // group.order
                for via in ("fourier", "conv"):
                    how = {"padding": kernel // 2, "rotate": "filters", "via": via}
                    layers[group.name, via] = qt.RollConv(group, features, features, kernel, **how), x  # type: ignore[arg-type, assignment]
            for what, prepare in (("forward", forward), ("forward and backward", forward_and_backward)):
                runs = {" ".join(name): prepare(layer, maps) for name, (layer, maps) in layers.items()}
                seconds = medians(runs, repeats, time.process_time)
                best = min(seconds["plain "], seconds["plain last"])
                for group in GROUPS:
                    rows.append(
                        {
                            "group": group.name,
                            "kernel": "x".join([str(kernel)] * 3),
                            "width": width,
                            "side": side,
                            "batch": batch,
                            "what": what,
                            "times plain": round(best / seconds[f"{group.name} fourier"], 2),
                            "asked for": GOALS[group.name][place] if kernel > 1 else "",
                            "filters times plain": round(best / seconds[f"{group.name} conv"], 2),
                        }
                    )
    return rows


if __name__ == "__main__":
    run("volumes", __doc__, measure, repeats=7)
