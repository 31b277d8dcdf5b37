"""Group convolutions on maps in bf16 through the Fourier kernel, against plain conv2d in bf16 and in float32.

    python bench/bf16.py [--repeats 5]

`times plain` is how many times as fast as plain `conv2d` in bf16, channels last and of the same total width, a layer in
bf16 is; `times plain float32` against conv2d in float32; `of float32` is its time relative to the same layer in
float32. Where the processor multiplies in bf16, "fourier-bf16" is measured too, relative to "fourier" in float32. One
thread, CPU time.
"""

import time

import torch
from conv import FORMS, SIZES, forward, forward_and_backward
from harness import medians, run
from torch import nn

import quarterturn as qt
from quarterturn import C4, D4

PAIRS = (("C4", C4, "fourier-bf16"), ("D4", D4, "fourier-bf16")) if qt.kernels().code == "avx512bf16" else ()
ALL_FORMS = (*FORMS, *PAIRS)


def measure(repeats: int) -> list[dict[str, object]]:
    print(qt.kernels())
    rows: list[dict[str, object]] = []
    for width, side, batch, kernel in SIZES["table"]:
        x = torch.randn(batch, width, side, side).contiguous(memory_format=torch.channels_last)
        layers: dict[str, nn.Module] = {"plain": nn.Conv2d(width, width, kernel, padding=kernel // 2)}
        for name, group, via in ALL_FORMS:
            features = width // group.order
            how = {"padding": kernel // 2, "rotate": "filters", "via": via}
            layers[f"{name} {via}"] = qt.RollConv(group, features, features, kernel, **how)
        for what, prepare in (("forward", forward), ("forward and backward", forward_and_backward)):
            seconds = {}
            for dtype in (torch.float32, torch.bfloat16):
                last = {"memory_format": torch.channels_last, "dtype": dtype}
                some = {key: layer for key, layer in layers.items() if dtype is torch.bfloat16 or "bf16" not in key}
                runs = {key: prepare(layer.to(**last), x.to(dtype)) for key, layer in some.items()}  # type: ignore[call-overload]
                seconds[dtype] = medians(runs, repeats, time.process_time)
            half, single = seconds[torch.bfloat16], seconds[torch.float32]
            for name, _, via in ALL_FORMS:
                key = f"{name} {via}"
                rows.append(
                    {
                        "group": name,
                        "form": via,
                        "width": width,
                        "side": side,
                        "batch": batch,
                        "what": what,
                        "times plain": round(half["plain"] / half[key], 1),
                        "times plain float32": round(single["plain"] / half[key], 2),
                        "of float32": round(half[key] / single[key.removesuffix("-bf16")], 2),
                    }
                )
    return rows


if __name__ == "__main__":
    run("bf16", __doc__, measure, repeats=5)
