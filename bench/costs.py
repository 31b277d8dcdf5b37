"""What the networks of docs/results cost against the plain one of the same widths: a training step, and inference.

    python bench/costs.py [--repeats 7] [--only baseline pool-mean ...]
    python bench/costs.py --draw

The small plankton networks at 31 x 31, the seven layers of rotated MNIST at 28 x 28 and the paper's own plankton
networks at 95 x 95: turning maps, turning filters through torch's convolutions, through the Fourier kernel, and as
ONNX files in onnxruntime. CPU seconds of one thread, interleaved, medians, as ratios to the first network of each set;
"CPU s" is what a step took here. "peak" is the most memory that it took beyond what the process had before, each in a
process of its own. Wants an idle machine. `--draw` makes the picture of docs/results/costs.md from the last figures.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from export import session
from harness import medians, newest, start_again_with_a_warm_allocator, write
from matplotlib import pyplot as plt
from modes import step
from torch import Tensor, nn
from training import _memory

import quarterturn as qt
from quarterturn_lab.config import Config
from quarterturn_lab.experiments import POOLING
from quarterturn_lab.plots import COLOURS, STYLE
from quarterturn_lab.runs import net_for
from quarterturn_lab.studies import MAIN, STUDIES
from quarterturn_lab.study import entries

ROWS = (*MAIN, "roll-all-half", "roll-all-quarter-dihedral", "roll-all-eighth-dihedral", "baseline-wide")
PAPER = ("baseline", "baseline-half", *POOLING, "roll-all-quarter", "roll-dense-half")
SETS = {
    "plankton, 31 x 31": [STUDIES["small-set"].labels[row] for row in ROWS],
    "rotated MNIST, 28 x 28": list(STUDIES["rotated-mnist"].entries),
    "the paper's plankton, 95 x 95": list(entries("plankton", 1, PAPER)),
}
OUTPUTS = {"plankton, 31 x 31": 121, "rotated MNIST, 28 x 28": 10, "the paper's plankton, 95 x 95": 121}
BATCHES = {"plankton, 31 x 31": 32, "rotated MNIST, 28 x 28": 32, "the paper's plankton, 95 x 95": 8}
PICTURE = Path(__file__).parents[1] / "docs" / "results" / "costs.png"
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
            if entry.row in POOLING[1:] and way != "maps":  # other functions than the mean, for the same cost
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


def inputs(name: str) -> Tensor:
    torch.manual_seed(0)
    config = SETS[name][0].config(0)
    return torch.randn(BATCHES[name], config.net.channels, config.net.side, config.net.side)


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


def peak(name: str, label: str, kind: str) -> int:
    command = [sys.executable, __file__, "--peak", name, label, kind]
    return round(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def print_peak(name: str, label: str, kind: str) -> None:
    net, x = networks(name, [label.rpartition(", ")[0]])[label], inputs(name)
    run = step(net, x) if kind == "step" else inference(net, x)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark is now the present one
    run()
    print((_memory("VmHWM") - before) / 1024)


def costs(name: str, repeats: int, only: list[str]) -> list[dict[str, object]]:
    nets, x = networks(name, only), inputs(name)
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
            "batch": BATCHES[name],
            "CPU s": round(training[label], 3),
            "step": round(training[label] / training[first], 2),
            "inference": round(answers[label] / answers[first], 2),
            "onnxruntime": round(exported[label] / exported[first], 2),
            "step peak MiB": peak(name, label, "step"),
            "inference peak MiB": peak(name, label, "inference"),
        }
        for label, net in nets.items()
    ]


def draw() -> None:
    """Bars of steps and inference, a panel for each set."""
    with newest("costs").open() as file:
        rows = list(csv.DictReader(file))
    sets = {name: [row for row in rows if row["set"] == name] for name in SETS}
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(sets), figsize=(7.5, 0.24 * len(rows) + 1.5), height_ratios=[len(found) for found in sets.values()]
        )
        for axes, (name, found) in zip(panels, sets.items(), strict=True):
            for place, row in enumerate(found):
                for shift, what, colour in ((-0.2, "step", COLOURS[0]), (0.2, "inference", COLOURS[1])):
                    label = {"step": "a training step", "inference": "inference"}[what] if place == 0 else None
                    axes.barh(place + shift, float(row[what]), 0.38, color=colour, label=label)
            axes.axvline(1.0, color="black", linewidth=0.8)
            axes.set(yticks=range(len(found)), yticklabels=[row["network"] for row in found], title=name)
            axes.set_ylim(len(found) - 0.4, -0.6)
        panels[0].legend(frameon=False, loc="lower right")
        panels[-1].set(xlabel="CPU time, relative to the first network of each set")
        figure.tight_layout()
        figure.savefig(PICTURE, dpi=110, metadata={"Software": None}, bbox_inches="tight")
    print(f"-> {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print_peak(*options.peak)
        return
    if not options.draw:
        rows = [
            row
            for name, members in SETS.items()
            if not options.only or any(entry.label in options.only for entry in members)
            for row in costs(name, options.repeats if BATCHES[name] > 8 else 3, options.only)
        ]
        write("costs", rows)
    draw()


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
