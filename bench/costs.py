"""What a training step and inference cost for the networks of docs/results, relative to ordinary ones as wide.

    python bench/costs.py [--repeats 7] [--only baseline pool-mean ...]
    python bench/costs.py --draw

The small plankton networks at 31 x 31, those of rotated MNIST at 28 x 28, and the paper's own plankton networks at
95 x 95. Each runs with maps turned, with filters turned through torch's convolutions, through the Fourier kernel, and
as an ONNX file in onnxruntime. Figures are CPU seconds of one thread, interleaved, medians, as ratios to the network
"against": the ordinary one with as many features between layers, or, for ordinary ones, the first of the set. "CPU s"
is the time of a step here. "peak" is the memory that it took beyond what the process had before, measured in a process
of its own. Needs an idle machine. `--draw` only makes the picture of docs/results/costs.md from the last figures.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from costs_summary import cheapest
from export import session
from harness import medians, parser_for, start_again_with_a_warm_allocator, write
from matplotlib import pyplot as plt
from modes import step
from torch import Tensor, nn
from training import _memory

import quarterturn as qt
from quarterturn.cost import work_of
from quarterturn_lab.models.mnist import seven_plain
from quarterturn_lab.report.svg import COLOURS, STYLE
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.settings.config import Config
from quarterturn_lab.settings.experiments import POOLING
from quarterturn_lab.studies.catalogue import STUDIES
from quarterturn_lab.studies.definition import Entry


@dataclass(frozen=True)
class Contender:
    """A network; `against` is the label of the plain one that it is measured against."""

    label: str
    config: Config
    against: str

    @property
    def is_plain(self) -> bool:
        return self.config.net.group is None and (self.config.factory or "plain").endswith("plain")


def of_row(experiment: str, row: str, widen: int | None = None) -> Contender:
    """A row of the lab. A rolled one has `order / divide` times the widths of the baseline, others have the same."""
    config = Entry(experiment, row, 1).config(0)
    net = replace(config.net, widen=widen or config.net.widen)
    times = qt.named(net.group).order // net.divide if net.group and net.roll == "all" else 1
    label = f"{row}, {widen} times the widths" if widen else row
    against = {1: "baseline", 2: "baseline-wide", 4: "baseline, 4 times the widths"}[times]
    return Contender(label, config.model_copy(update={"net": net}), against)


def of_factory(name: str, against: str) -> Contender:
    config = Entry("mnist-rot-best", "baseline", 1, {"factory": name}).config(0)
    return Contender(name.rpartition(":")[2], config, against)


def seven_40_plain(channels: int, side: int, outputs: int) -> nn.Module:
    """As wide as `seven_c4`: 10 filters in 4 orientations."""
    return seven_plain(channels, side, outputs, 40)


def seven_56_plain(channels: int, side: int, outputs: int) -> nn.Module:
    """As wide as `seven_d4`: 7 filters in 8 orientations."""
    return seven_plain(channels, side, outputs, 56)


def staged_plain(channels: int, side: int, outputs: int) -> nn.Module:
    """As wide as `staged_8_fives`: 8, 16, 32 and in the end 64 filters in 4 orientations."""
    layers: list[nn.Module] = []
    for before, width in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.MaxPool2d(2)] if layers else []
        for inputs in (before, width):
            layers += [nn.Conv2d(inputs, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [nn.Conv2d(128, 256, side // 4), nn.BatchNorm2d(256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, outputs))


SMALL, SEVEN = "plankton, 31 x 31", "rotated MNIST, 28 x 28"
CHOSEN, PAPER = "rotated MNIST, the network that was chosen", "the paper's plankton, 95 x 95"
SETS = {
    SMALL: [
        *(of_row("plankton-small", entry.row) for entry in STUDIES["small-set"].entries if not entry.options),
        of_row("plankton-small", "roll-all-half-dihedral"),
        of_row("plankton-small", "baseline", widen=4),
    ],
    SEVEN: [
        of_factory("quarterturn_lab.models.mnist:seven_plain", "seven_plain"),
        of_factory("costs:seven_40_plain", "seven_plain"),
        of_factory("quarterturn_lab.models.mnist:seven_c4", "seven_40_plain"),
        of_factory("costs:seven_56_plain", "seven_plain"),
        of_factory("quarterturn_lab.models.mnist:seven_d4", "seven_56_plain"),
    ],
    CHOSEN: [
        of_factory("costs:staged_plain", "staged_plain"),
        of_factory("quarterturn_lab.models.mnist:staged_8_fives", "staged_plain"),  # of which four angles are asked for
    ],
    PAPER: [
        of_row("plankton", row)
        for row in ("baseline", "baseline-half", *POOLING, "roll-all-quarter", "roll-dense-half")
    ],
}
OUTPUTS = {SMALL: 121, SEVEN: 10, CHOSEN: 10, PAPER: 121}
BATCHES = {SMALL: 32, SEVEN: 32, CHOSEN: 32, PAPER: 8}
PICTURE = Path(__file__).parents[1] / "docs" / "results" / "costs.png"


def networks(name: str, only: list[str]) -> dict[str, tuple[nn.Module, str]]:
    """The label of each network -> itself, and the label of what it is against."""
    wanted = {SETS[name][0].label, *only, *(each.against for each in SETS[name] if each.label in only)}
    return {
        label: (net, contender.against)
        for contender in SETS[name]
        if not only or contender.label in wanted
        for label, net in in_its_ways(contender, OUTPUTS[name]).items()
    }


def in_its_ways(contender: Contender, outputs: int) -> dict[str, nn.Module]:
    """ "label, way" -> the network; duplicates are omitted."""
    config = contender.config
    if contender.is_plain:
        return {contender.label: made(config, "maps", outputs)}
    chosen = ["maps", "filters", "kernel"]
    if config.row in POOLING[1:]:  # other functions than the mean, for the same cost
        chosen = ["maps"]
    if config.factory:  # made to turn filters
        chosen.remove("maps")
    found = {way: made(config, way, outputs) for way in chosen}
    if "kernel" in found and not any(w.execution.code == "kernel" for w in work_of(found["kernel"], [example(config)])):
        found.pop("kernel")
    return {f"{contender.label}, {way}": net for way, net in found.items()}


def made(config: Config, way: str, outputs: int) -> nn.Module:
    rotate = "maps" if way == "maps" else "filters"
    net = net_for(config.model_copy(update={"rotate": rotate}), tuple(map(str, range(outputs))))
    for layer in net.modules():
        if isinstance(layer, qt.RollConv) and way == "filters":
            layer.via = "conv"
    return net


def inputs(name: str) -> Tensor:
    torch.manual_seed(0)
    return example(SETS[name][0].config, BATCHES[name])


def example(config: Config, batch: int = 1) -> Tensor:
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


def peak(name: str, label: str, kind: str) -> int:
    command = [sys.executable, __file__, "--peak", name, label, kind]
    return round(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def print_peak(name: str, label: str, kind: str) -> None:
    own = max((each for each in SETS[name] if label.startswith(each.label)), key=lambda each: len(each.label))
    net, x = in_its_ways(own, OUTPUTS[name])[label], inputs(name)
    run = step(net, x) if kind == "step" else inference(net, x)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark is now the present one
    run()
    print((_memory("VmHWM") - before) / 1024)


def costs(name: str, repeats: int, only: list[str]) -> list[dict[str, object]]:
    found, x = networks(name, only), inputs(name)
    nets = {label: net for label, (net, _) in found.items()}
    onnx = {label: in_onnxruntime(net, x) for label, net in nets.items()}
    seconds = {
        "step": medians({label: step(net.train(), x) for label, net in nets.items()}, repeats, time.process_time),
        "inference": medians({label: inference(net, x) for label, net in nets.items()}, repeats, time.process_time),
        "onnxruntime": medians(onnx, repeats, time.process_time),
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kinds = [(label, kind) for label in nets for kind in ("step", "inference")]
        peaks = dict(zip(kinds, pool.map(lambda each: peak(name, *each), kinds), strict=True))
    return [
        {
            "set": name,
            "network": label,
            "parameters": sum(p.numel() for p in net.parameters()),
            "batch": BATCHES[name],
            "CPU s": round(seconds["step"][label], 3),
            "against": against,
            **{kind: round(times[label] / times[against], 2) for kind, times in seconds.items()},
            "step peak MiB": peaks[label, "step"],
            "inference peak MiB": peaks[label, "inference"],
        }
        for label, (net, against) in found.items()
    ]


def draw() -> None:
    """Bars of the short table: a training step and inference; the ordinary networks are the line at 1."""
    rows = cheapest()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.5, 0.42 * len(rows) + 0.9))
        for column, shift, what, colour in (
            (2, -0.2, "a training step", COLOURS[0]),
            (3, 0.2, "inference", COLOURS[1]),
        ):
            places = [place + shift for place in range(len(rows))]
            axes.barh(places, [float(row[column]) for row in rows], 0.38, color=colour, label=what)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set(yticks=range(len(rows)), yticklabels=[f"{row[0]}\n{row[1]}" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set(xlabel="CPU time, relative to an ordinary network with as many features (lower is better)")
        axes.legend(frameon=False, loc="upper right")
        figure.savefig(PICTURE, dpi=110, metadata={"Software": None}, bbox_inches="tight")
    print(f"-> {PICTURE}")


def main() -> None:
    parser = parser_for(__doc__)
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
            if not options.only or any(contender.label in options.only for contender in members)
            for row in costs(name, options.repeats if BATCHES[name] > 8 else 3, options.only)
        ]
        write("costs", rows)
    draw()


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
