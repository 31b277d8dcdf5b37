"""Group convolutions through the Fourier kernel against plain conv2d of the same total width, channels last.

    python bench/conv.py [--repeats 15] [--threads 1 2] [--sizes table narrow kernels]

`times plain` is how many times as fast as plain `conv2d` a layer is, and `filters times plain` the same for conv2d with
turned filters. One thread: CPU time; two: wall time. Forward is in eval mode, with packed weights kept; forward and
backward makes the gradients to input, weight and bias. `times escnn`, against escnn's R2Conv, is filled for the sizes
of "table" where escnn is installed, which nothing needs.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable

import torch
from harness import medians, parser_for, start_again_with_a_warm_allocator, write
from torch import nn

import quarterturn as qt
from quarterturn import C4, D4, Group

# (total width, side, batch, kernel)
SIZES = {
    "table": ((64, 48, 16, 3), (128, 24, 16, 3), (256, 12, 32, 3)),
    "narrow": ((16, 95, 8, 3), (32, 95, 8, 3), (16, 24, 16, 3), (32, 24, 16, 3)),
    "kernels": ((64, 48, 16, 1), (128, 24, 16, 1), (256, 12, 32, 1), (64, 48, 8, 5), (128, 24, 8, 5), (256, 12, 16, 5)),
}
FORMS = (("C4", C4, "fourier"), ("C4", C4, "fourier-rounded"), ("D4", D4, "fourier"))
TARGETS = {  # what we aim at for the sizes of "table": forward, and forward and backward
    ("C4", "fourier-rounded", "forward"): (2.2, 2.5, 2.6),
    ("C4", "fourier", "forward"): (1.9, 2.2, 2.2),
    ("D4", "fourier", "forward"): (3.0, 4.0, 4.3),
    ("C4", "fourier-rounded", "forward and backward"): (2.1, 2.3, 2.3),
    ("D4", "fourier", "forward and backward"): (2.7, 3.5, 3.7),
}


class Escnn(nn.Module):
    """The layer of the same width in escnn."""

    def __init__(self, group: Group, width: int, kernel: int) -> None:
        super().__init__()
        spaces, self.nn = importlib.import_module("escnn.gspaces"), importlib.import_module("escnn.nn")
        space = spaces.rot2dOnR2(4) if group is C4 else spaces.flipRot2dOnR2(4)
        self.features = self.nn.FieldType(space, width // group.order * [space.regular_repr])
        self.layer = self.nn.R2Conv(self.features, self.features, kernel, padding=kernel // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.nn.GeometricTensor(x, self.features)).tensor


def forward(layer: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    layer = layer.eval()

    def run() -> None:
        with torch.no_grad():
            layer(x)

    return run


def forward_and_backward(layer: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    inputs = [x, *layer.train().parameters()]
    grad = torch.randn_like(layer(x))
    return lambda: torch.autograd.grad(layer(x), inputs, grad)


def measure(name: str, repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    threads = torch.get_num_threads()
    clock: Callable[[], float] = time.process_time if threads == 1 else time.perf_counter
    for place, (width, side, batch, kernel) in enumerate(SIZES[name]):
        x = torch.randn(batch, width, side, side).contiguous(memory_format=torch.channels_last)
        plain = nn.Conv2d(width, width, kernel, padding=kernel // 2)
        plain.weight.data = plain.weight.data.contiguous(memory_format=torch.channels_last)
        layers: dict[str, nn.Module] = {"plain": plain}
        for group_name, group, via in (*FORMS, ("C4", C4, "conv"), ("D4", D4, "conv")):
            features = width // group.order
            layers[f"{group_name} {via}"] = qt.RollConv(
                group,
                features,
                features,
                kernel,
                padding=kernel // 2,
                rotate="filters",
                via=via,  # type: ignore[arg-type]
            )
        if name == "table" and importlib.util.find_spec("escnn"):
            layers |= {f"escnn {group.name}": Escnn(group, width, kernel) for group in (C4, D4)}
        for what, prepare in (("forward", forward), ("forward and backward", forward_and_backward)):
            seconds = medians({key: prepare(layer, x) for key, layer in layers.items()}, repeats, clock)
            for group_name, _, via in FORMS:
                mine = seconds[f"{group_name} {via}"]
                peer = seconds.get(f"escnn {group_name}")
                targets = TARGETS.get((group_name, via, what), ()) if name == "table" else ()
                rows.append(
                    {
                        "group": group_name,
                        "form": via,
                        "kernel": f"{kernel}x{kernel}",
                        "width": width,
                        "side": side,
                        "batch": batch,
                        "what": what,
                        "threads": threads,
                        "times plain": round(seconds["plain"] / mine, 2),
                        "asked for": targets[place] if targets else "",
                        "filters times plain": round(seconds["plain"] / seconds[f"{group_name} conv"], 2),
                        "times escnn": round(peer / mine, 2) if peer else "",
                    }
                )
    return rows


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    options = parser.parse_args()
    print(qt.kernels())
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.sizes:
            rows += measure(name, options.repeats)
    write("conv", rows)


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
