"""Where the Fourier kernel is faster than torch's convolution: narrow layers, which kernel/select.py decides about.

    python bench/rule.py [--repeats 9] [--isa avx2]

`times plain` is how many times as fast as plain `conv2d` of the same total width, channels last, a layer through the
kernel is, `filters times plain` the same for conv2d with turned filters, which runs where the kernel does not, and
`picked` which of the two `via="auto"` takes. `kernel gains` says whether the kernel is the faster of the two, to 5 %,
in both columns. One thread, CPU time.
"""

import time

import torch
from conv import forward, forward_and_backward
from harness import medians, run
from torch import nn

import quarterturn as qt
from quarterturn import C2, C4, D4

WIDTHS = {
    1: (8, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    3: (8, 16, 24, 32, 40, 48, 56, 64, 96),
}  # total widths by kernel
SIDE, BATCH = 32, 8


def measure(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for group in (C2, C4, D4):
        for kernel, widths in WIDTHS.items():
            for width in widths:
                features = width // group.order
                x = torch.randn(BATCH, width, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
                layers: dict[str, nn.Module] = {"plain": nn.Conv2d(width, width, kernel, padding=kernel // 2)}
                how = {"padding": kernel // 2, "rotate": "filters"}
                for via in ("fourier", "conv"):
                    layers[via] = qt.RollConv(group, features, features, kernel, **how, via=via)  # type: ignore[arg-type]
                auto = qt.RollConv(group, features, features, kernel, **how)  # type: ignore[arg-type]
                picked = "kernel" if auto.execution(x).code == "kernel" else "filters"
                row: dict[str, object] = {"group": group.name, "kernel": f"{kernel}x{kernel}", "width": width}
                gains = True
                for what, prepare in (("forward", forward), ("forward and backward", forward_and_backward)):
                    runs = {
                        name: prepare(layer.to(memory_format=torch.channels_last), x)  # type: ignore[call-overload]
                        for name, layer in layers.items()
                    }
                    seconds = medians(runs, repeats, time.process_time)
                    row[f"{what}, times plain"] = round(seconds["plain"] / seconds["fourier"], 2)
                    gains = gains and seconds["conv"] >= 0.95 * seconds["fourier"]
                    row[f"{what}, filters times plain"] = round(seconds["plain"] / seconds["conv"], 2)
                rows.append({**row, "kernel gains": "yes" if gains else "no", "picked": picked})
    return rows


if __name__ == "__main__":
    run("rule", __doc__, measure, repeats=9)
