"""The rates by which `quarterturn.explain` and `convert` estimate times, into src/quarterturn/rates.json.

    python bench/rates.py [--repeats 15]

Measured on one thread, with features last, for the processor as it is. If it has AVX-512, it is measured again with
torch and the kernel kept to AVX2, which stands for a processor without. Rates of products are multiply-adds in a second
as the layer is defined; those of other operators are seconds by the bytes that they read and write.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from harness import medians, parser_for, start_again_with_a_warm_allocator
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn.rates import FILE

SIDES = (8, 32, 96)  # of maps of 64 features, 8 examples: 128 KiB, 2 MiB and 18 MiB
WIDTHS = (8, 16, 32, 64, 128, 256, 512)
GROUPS = {2: qt.C2, 4: qt.C4, 8: qt.D4}


def maps(features: int, side: int, batch: int = 8) -> Tensor:
    return torch.randn(batch, features, side, side).contiguous(memory_format=torch.channels_last)


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median of runs; of short ones, of several together."""
    start = time.process_time()
    run()
    times = max(1, min(200, int(0.002 / max(time.process_time() - start, 1e-6))))

    def together() -> None:
        for _ in range(times):
            run()

    return medians({"it": together}, repeats, time.process_time)["it"] / times


def products(repeats: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}

    def measured(kind: str, width: float, multiply_adds: float, run: Callable[[], object]) -> None:
        found.setdefault(kind, []).append((width, multiply_adds / seconds(run, repeats)))

    side, batch = 16, 8
    positions = batch * side**2
    for width in WIDTHS:
        x = maps(width, side)
        for kind, window in (("convolution", 3), ("1x1 convolution", 1)):
            layer = nn.Conv2d(width, width, window, padding=window // 2)
            measured(kind, width, positions * width**2 * window**2, lambda layer=layer, x=x: layer(x))  # type: ignore[misc]
        left, right = torch.randn(width, width), torch.randn(width, width)
        measured("dense", width, width**3, lambda left=left, right=right: left @ right)  # type: ignore[misc]
    for window in (3, 5, 7):
        depthwise = nn.Conv2d(64, 64, window, padding=window // 2, groups=64)
        x = maps(64, side)
        measured("depthwise", window**2, positions * 64 * window**2, lambda layer=depthwise, x=x: layer(x))  # type: ignore[misc]
    for order, group in GROUPS.items():
        for width, (kind, window) in itertools.product((16, 32, 64, 128, 256, 512), (("kernel", 3), ("kernel 1x1", 1))):
            features, options = width // order, {"padding": window // 2, "rotate": "filters", "via": "fourier"}
            roll = qt.RollConv(group, features, features, window, **options)  # type: ignore[arg-type]
            x, multiply_adds = maps(width, side), positions * width**2 * window**2
            named = f"{kind}, {order} orientations"
            measured(named, width, multiply_adds, lambda layer=roll, x=x: layer(x))  # type: ignore[misc]
    return found


def operators(repeats: int) -> dict[str, list[tuple[float, float]]]:
    norm, rows = nn.BatchNorm2d(64).eval(), nn.LayerNorm(64)
    first, others = torch.contiguous_format, {maps(64, side).shape: maps(64, side) for side in SIDES}
    runs: dict[str, tuple[Callable[[Tensor], object], float]] = {  # and how many tensors of its size it reads or writes
        "relu": (torch.relu, 2),
        "silu": (F.silu, 2),
        "gelu": (F.gelu, 2),
        "sigmoid": (torch.sigmoid, 2),
        "hardswish": (F.hardswish, 2),
        "add": (lambda x: x + others[x.shape], 3),
        "copy": (torch.clone, 2),
        "copy to another layout": (lambda x: x.contiguous(memory_format=first), 2),
        "mean": (lambda x: x.mean((2, 3)), 1),
        "max_pool2d_with_indices": (lambda x: F.max_pool2d(x, 2), 1.75),
        "batch_norm": (norm, 2),
        "native_layer_norm": (lambda x: rows(x.permute(0, 2, 3, 1)), 2),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for side in SIDES:
        x = maps(64, side)
        for name, (run, tensors) in runs.items():
            found[name].append((tensors * x.nbytes, seconds(lambda run=run, x=x: run(x), repeats)))  # type: ignore[misc]
    return found


def layers(repeats: int) -> dict[str, float]:
    """What a call costs beside its operators: on tensors that take no time."""
    x, stacked = torch.zeros(1, 4, 1, 1), torch.zeros(1, 4, 1, 1)
    relu, ours = nn.ReLU(), qt.RollConv(qt.C4, 1, 1, 1, rotate="filters").eval()
    bank = torch.zeros(4, 4, 1, 1)
    plain = seconds(lambda: torch.relu(x), repeats)
    convolution = seconds(lambda: F.conv2d(x, bank), repeats)
    return {
        "torch": max(0.0, seconds(lambda: relu(x), repeats) - plain),
        "ours": max(0.0, seconds(lambda: ours(stacked), repeats) - convolution),
    }


def with_avx2_alone(repeats: int) -> None:
    """Start this script again, with torch and the kernel as on a processor without AVX-512."""
    with tempfile.TemporaryDirectory() as folder:
        for code in ("portable", "avx2"):
            for file in Path(qt.kernels().path or "").parent.glob(f"_kernel_{code}.*"):
                shutil.copy(file, folder)
        limits = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
        environment = {**os.environ, **limits, "QUARTERTURN_KERNEL": folder}
        subprocess.run([sys.executable, __file__, "--repeats", str(repeats)], env=environment, check=True)


def main() -> None:
    start_again_with_a_warm_allocator()
    parser = parser_for(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name = torch.backends.cpu.get_cpu_capability().lower()
    print(name, qt.kernels().code, flush=True)
    with torch.no_grad():
        measured = {
            "products": products(options.repeats),
            "operators": operators(options.repeats),
            "layers": layers(options.repeats),
        }
    table = json.loads(FILE.read_text()) if FILE.exists() else {}
    table[name] = json.loads(json.dumps(measured), parse_float=lambda digits: float(f"{float(digits):.3g}"))
    FILE.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    if name == "avx512":
        with_avx2_alone(options.repeats)


if __name__ == "__main__":
    main()
