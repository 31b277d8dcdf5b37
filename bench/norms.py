"""Batch norm of stacked maps, with statistics over orientations, against torch's over as many features.

    python bench/norms.py [--repeats 15]

Training is forward and backward. `of plain` is the time relative to torch's own in the same memory format, `split of
plain` that of torch's batch norm with orientations as one more axis. One thread, CPU time.
"""

import time
from collections.abc import Callable

import torch
from conv import forward_and_backward
from harness import Rows, medians, run
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4

SIZES = ((C4, 64, 24, 32), (C4, 256, 12, 32), (D4, 56, 26, 64), (D4, 128, 24, 32))  # total width, side, batch
FORMATS = {"features last": torch.channels_last, "features first": torch.contiguous_format}


class Split(nn.BatchNorm3d):
    """Orientations are one more axis."""

    def forward(self, x: Tensor) -> Tensor:
        split = x.unflatten(1, (self.num_features, -1))
        return super().forward(split).flatten(1, 2)


def measure(repeats: int) -> Rows:
    rows: Rows = []
    for group, width, side, batch in SIZES:
        for name, memory_format in FORMATS.items():
            x = torch.randn(batch, width, side, side).contiguous(memory_format=memory_format)
            features = width // group.order
            layers = {
                "plain": nn.BatchNorm2d(width),
                "ours": qt.BatchNorm(group, features, rotate="filters"),
                "split": Split(features),
            }
            runs: dict[str, Callable[[], object]] = {key: forward_and_backward(net, x) for key, net in layers.items()}
            seconds = medians(runs, repeats, time.process_time)
            rows.append(
                {
                    "group": group.name,
                    "width": width,
                    "side": side,
                    "batch": batch,
                    "memory": name,
                    "of plain": round(seconds["ours"] / seconds["plain"], 2),
                    "split of plain": round(seconds["split"] / seconds["plain"], 2),
                }
            )
    return rows


if __name__ == "__main__":
    run("norms", __doc__, measure, repeats=15)
