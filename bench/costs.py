"""What the networks of docs/results cost against the plain one of the same widths: a training step, and inference.

    python bench/costs.py [--batch 32] [--repeats 9] [--only baseline pool-mean ...]

The small plankton networks at 31 x 31 and the seven layers of rotated MNIST at 28 x 28: turning maps, turning filters
through torch's convolutions, through the Fourier kernel, and as ONNX files in onnxruntime. CPU seconds of one thread,
interleaved, medians, as ratios to the first network of each set. "peak" is the most memory that it took beyond what the
process had before, each in a process of its own. Wants an idle machine.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from export import session
from harness import medians, start_again_with_a_warm_allocator, write
from modes import step
from torch import Tensor, nn
from training import _memory

import quarterturn as qt
from quarterturn_lab.config import Config
from quarterturn_lab.runs import net_for
from quarterturn_lab.studies import MAIN, STUDIES

ROWS = (*MAIN, "roll-all-half", "roll-all-quarter-dihedral", "roll-all-eighth-dihedral", "baseline-wide")
SETS = {
    "plankton, 31 x 31": [STUDIES["small-set"].labels[row] for row in ROWS],
    "rotated MNIST, 28 x 28": list(STUDIES["rotated-mnist"].entries),
}
OUTPUTS = {"plankton, 31 x 31": 121, "rotated MNIST, 28 x 28": 10}
WAYS = ("maps", "filters", "kernel")


def networks(name: str, only: list[str]) -> dict[str, nn.Module]:
    """ "row, way" -> the network; ways that would be the same network run in the same way are left out."""
    found: dict[str, nn.Module] = {}
    for entry in SETS[name]:
        if only and entry.label not in only:
            continue
        config = entry.config(0)
        for way in WAYS:
            net = made(config, way, OUTPUTS[name])
            rolled = [layer for layer in net.modules() if isinstance(layer, qt.RollConv)]
            if config.factory and (way == "maps" if rolled else way != "maps"):
                continue
            if not config.factory and config.net.group is None and way != "maps":
                continue
            if way == "kernel" and not any(layer.through_kernel for layer in rolled):
                continue
            found[f"{entry.label}, {way}"] = net
    return found


def made(config: Config, way: str, outputs: int) -> nn.Module:
    rotate = "maps" if way == "maps" else "filters"
    net = net_for(config.model_copy(update={"rotate": rotate}), tuple(map(str, range(outputs))))
    for layer in net.modules():
        if isinstance(layer, qt.RollConv) and way == "filters":
            layer.through_kernel = False
    return net


def inputs(name: str, batch: int) -> Tensor:
    torch.manual_seed(0)
    config = SETS[name][0].config(0)
    return torch.randn(batch, config.net.channels, config.net.side, config.net.side)


def inference(net: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            net.eval()(x)

    return run


def in_onnxruntime(net: nn.Module, x: Tensor) -> Callable[[], object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        qt.export(net.eval(), x, path, free="nothing")
        opened = session(path)
    feed = {opened.get_inputs()[0].name: np.asarray(x)}
    return lambda: opened.run(None, feed)


def peak(name: str, label: str, kind: str, batch: int) -> int:
    command = [sys.executable, __file__, "--peak", name, label, kind, "--batch", str(batch)]
    return round(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def print_peak(name: str, label: str, kind: str, batch: int) -> None:
    net, x = networks(name, [label.rpartition(", ")[0]])[label], inputs(name, batch)
    run = step(net, x) if kind == "step" else inference(net, x)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark is now the present one
    run()
    print((_memory("VmHWM") - before) / 1024)


def costs(name: str, batch: int, repeats: int, only: list[str]) -> list[dict[str, object]]:
    nets, x = networks(name, only), inputs(name, batch)
    onnx = {label: in_onnxruntime(net, x) for label, net in nets.items()}
    training = medians({label: step(net.train(), x) for label, net in nets.items()}, repeats, time.process_time)
    answers = medians({label: inference(net, x) for label, net in nets.items()}, repeats, time.process_time)
    exported = medians(onnx, repeats, time.process_time)
    first = next(iter(nets))
    return [
        {
            "set": name,
            "network": label,
            "parameters": sum(p.numel() for p in net.parameters()),
            "batch": batch,
            "step": round(training[label] / training[first], 2),
            "inference": round(answers[label] / answers[first], 2),
            "onnxruntime": round(exported[label] / exported[first], 2),
            "step peak MiB": peak(name, label, "step", batch),
            "inference peak MiB": peak(name, label, "inference", batch),
        }
        for label, net in nets.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        name, label, kind = options.peak
        print_peak(name, label, kind, options.batch)
        return
    rows = [
        row
        for name, entries in SETS.items()
        if not options.only or any(entry.label in options.only for entry in entries)
        for row in costs(name, options.batch, options.repeats, options.only)
    ]
    write("costs", rows)


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
