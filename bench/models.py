"""Converted networks of timm and segmentation_models_pytorch against the plain ones that they came from.

    .venv-timm/bin/python bench/models.py [--only NAME ...] [--isa avx2] [--batch N] [--side N] [--repeats 5]

Inference is a forward pass in eval mode without gradients, training a forward and backward pass and a step of SGD. Each
network runs in both memory formats, and its faster one counts: "first" has features first, torch's default, "last" has
them last. Figures are times relative to the plain network; below 1 is faster. `of folded` is relative to the plain
network after torch's own folding of batch norms into the convolutions before them, which a converted network does by
itself. One thread, CPU time, interleaved, medians. Batches are 8 images of 128 x 128, for transformers 4 of 224 x 224,
the size that they are made for; options give others. It runs in the environment of `make test-timm`; with `--only`,
other rows stay as they were. With `--isa avx2` everything runs code for AVX2, also on later processors.

`--device cuda` measures wall time between synchronisations and writes its own record. It has never run: the project has
no such machine yet.
"""

import copy
import csv
import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from harness import Rows, latest, machine, medians, parser_for, start_again_with_a_warm_allocator, write
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import quarterturn as qt

TIMM = ("resnet18", "resnet50", "convnext_atto", "convnext_tiny", "efficientnet_b0", "mobilenetv3_large_100")
TRANSFORMERS = ("vit_small_patch16_224", "vit_base_patch16_224", "swin_tiny_patch4_window7_224")
FORMATS = {"first": torch.contiguous_format, "last": torch.channels_last}


def networks() -> dict[str, Callable[[], nn.Module]]:
    """How to make each network, with weights drawn at random."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "timm"))
    importlib.import_module("conftest")  # what torchvision needs beside a torch without CUDA
    smp, timm = map(importlib.import_module, ("segmentation_models_pytorch", "timm"))
    found: dict[str, Callable[[], nn.Module]] = {
        name: partial(timm.create_model, name) for name in (*TIMM, *TRANSFORMERS)
    }
    return {**found, "Unet-resnet18": partial(smp.Unet, "resnet18", encoder_weights=None)}


def size_of(name: str, batch: int | None, side: int | None) -> tuple[int, int]:
    """How many images a network gets at once, and their side: what is given, or its own."""
    own = (4, 224) if name in TRANSFORMERS else (8, 128)
    return batch or own[0], side or own[1]


def folded(net: nn.Module, x: Tensor) -> nn.Module:
    """A copy in eval mode whose batch norms are folded into the convolutions before them, by torch's own function."""
    before = copy.deepcopy(net).eval()
    after = copy.deepcopy(before)
    for parent in list(after.modules()):
        for (_, conv), (name, norm) in pairwise(list(parent.named_children())):
            if type(conv) is not nn.Conv2d or not isinstance(norm, nn.BatchNorm2d):
                continue
            fused = fuse_conv_bn_eval(conv, norm)
            conv.weight, conv.bias = fused.weight, fused.bias
            rest = [layer for layer in norm.children() if not isinstance(layer, nn.Identity)]  # timm's have activations
            setattr(parent, name, nn.Sequential(*rest))
    with torch.no_grad():
        torch.testing.assert_close(after(x), before(x), atol=1e-3, rtol=1e-3)
    return after


def inference(net: nn.Module, x: Tensor) -> Callable[[], object]:
    """A forward pass; the network stays in eval mode."""
    net.eval()

    def run() -> None:
        with torch.no_grad():
            net(x)

    return run


def training(net: nn.Module, x: Tensor) -> Callable[[], object]:
    """A whole step; the network stays in training mode."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return run


def clock_of(device: str) -> Callable[[], float]:
    if device == "cpu":
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


def best(seconds: dict[str, float], name: str) -> tuple[float, str]:
    """The time in the memory format that suits it, and which that is."""
    return min((seconds[f"{name} {layout}"], layout) for layout in FORMATS)


def measure(name: str, model: nn.Module, batch: int, side: int, device: str, repeats: int) -> Rows:
    """A row for each group, with all networks of one kind side by side."""
    twins = {"plain": model, **{group.name: qt.convert(model, group) for group in (qt.C4, qt.D4)}}
    rows: Rows = [{"network": name, "group": group, "batch": batch, "side": side} for group in ("C4", "D4")]
    for what, step in (("inference", inference), ("training", training)):
        runs: dict[str, Callable[[], object]] = {}
        for twin, net in twins.items():
            for layout, memory_format in FORMATS.items():
                mine = copy.deepcopy(net).to(device).to(memory_format=memory_format)  # type: ignore[call-overload]
                x = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=memory_format)
                runs[f"{twin} {layout}"] = step(mine, x)
                if (twin, what) == ("plain", "inference"):
                    runs[f"folded {layout}"] = step(folded(mine, x), x)
        seconds = medians(runs, repeats, clock_of(device))
        plain, layout = best(seconds, "plain")
        for row in rows:
            mine_seconds, mine_layout = best(seconds, str(row["group"]))
            row |= {
                f"{what} of plain": f"{mine_seconds / plain:.2f}",
                **({"of folded": f"{mine_seconds / best(seconds, 'folded')[0]:.2f}"} if what == "inference" else {}),
                f"plain ms, {what}": f"{plain * 1000:.0f}",
                f"features, {what}": f"{mine_layout}, plain {layout}",
            }
    return rows


def measured_before(name: str) -> Rows:
    """The rows of this machine's record, if there is one."""
    try:
        path = latest(name)
    except LookupError:
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    start_again_with_a_warm_allocator()
    parser = parser_for(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    for option, default in (("--batch", None), ("--side", None), ("--repeats", 5)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = networks()
    unknown = set(options.only or ()) - set(made)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}: {', '.join(made)}")
    record = "models" if options.device == "cpu" else "models-cuda"
    chosen = options.only or list(made)
    rows = [row for row in measured_before(f"{record}-{machine()}") if row["network"] not in chosen]
    for name in chosen:
        torch.manual_seed(0)
        batch, side = size_of(name, options.batch, options.side)
        found = measure(name, made[name](), batch, side, options.device, options.repeats)
        for row in found:
            print(*row.values(), flush=True)
        rows += found
    write(record, sorted(rows, key=lambda row: list(made).index(str(row["network"]))))


if __name__ == "__main__":
    main()
