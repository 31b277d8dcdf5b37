"""Training: a step of the paper's three networks at full size, time and memory; and the speed of the lab's own loop.

    python bench/training.py [--only steps|rates] [--batch 8] [--repeats 5]
    python bench/training.py [--data DIR] [--threads 2] [--seconds 10]

Steps: plankton 95 x 95, galaxies 64 x 64 and buildings 80 x 80, the plain baseline and rows with pathways: turning
maps, turning filters through torch's convolutions, and through the Fourier kernel. CPU seconds of one thread,
interleaved, medians, as ratios. "saved" is what autograd keeps for the backward pass; "peak" the most memory that a
step took beyond what the process had before, each in a process of its own.

Rates: images per second, time spent waiting for data, how fast cached images are read, start of --help. `--data` is
plankton's folder; without it the embedded set is drawn at 95 x 95 instead. "waiting" is the share of the time in which
the training thread had no batch to work on.
"""

import subprocess
import sys
import time
from pathlib import Path

import torch
from harness import medians, parser_for, start_again_with_a_warm_allocator, write
from modes import saved_bytes
from modes import step as step_of
from torch import nn

from quarterturn import RollConv
from quarterturn.cost import work_of
from quarterturn.filters import Rotate
from quarterturn.layers.convolution import Via
from quarterturn_lab.data.dataset import Data, Dataset
from quarterturn_lab.data.prepare import fetch
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.runs.loading import load
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.experiments import settings_of
from quarterturn_lab.settings.networks import BUILDINGS, GALAXIES, PLANKTON, edited
from quarterturn_lab.training import loop
from quarterturn_lab.training.batches import Batches
from quarterturn_lab.training.order import epoch_order

ROWS = ("baseline", "pool-mean", "roll-all-quarter")
Row = dict[str, object]


# --- steps ------------------------------------------------------------------------------------------------------------

NETS = {"plankton": PLANKTON, "galaxies": GALAXIES, "buildings": BUILDINGS}
WAYS: dict[str, tuple[str, Rotate, Via]] = {
    "baseline": ("baseline", "maps", "auto"),
    "pool-mean, maps": ("pool-mean", "maps", "auto"),
    "pool-mean, filters": ("pool-mean", "filters", "conv"),
    "roll-all-quarter, maps": ("roll-all-quarter", "maps", "auto"),
    "roll-all-quarter, filters": ("roll-all-quarter", "filters", "conv"),
    "roll-all-quarter, kernel": ("roll-all-quarter", "filters", "auto"),
}


def made(name: str, way: str) -> nn.Module:
    """A network of the paper, run in one of the ways."""
    row, rotate, via = WAYS[way]
    net = build(edited(NETS[name], row), rotate)
    initialise(net, 0)
    for layer in net.modules():
        if isinstance(layer, RollConv):
            layer.via = via
    return net


def inputs(name: str, batch: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(batch, NETS[name].channels, NETS[name].side, NETS[name].side)


def peak_mib(name: str, way: str, batch: int) -> float:
    """The most memory that a step takes beyond what was there before, in a process of its own."""
    command = [sys.executable, __file__, "--peak", name, way, "--batch", str(batch)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(name: str, way: str, batch: int) -> None:
    net, x = made(name, way), inputs(name, batch)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark is now the present one
    step_of(net, x)()
    print((_memory("VmHWM") - before) / 1024)


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


def steps(name: str, batch: int, repeats: int) -> list[Row]:
    """Time and memory of a step, each way."""
    x, nets = inputs(name, batch), {way: made(name, way) for way in WAYS}
    seconds = medians({way: step_of(net, x) for way, net in nets.items()}, repeats, time.process_time)
    kept = {way: saved_bytes(net, x) for way, net in nets.items()}
    peak = {way: peak_mib(name, way, batch) for way in nets}
    return [
        {
            "network": name,
            "side": NETS[name].side,
            "row, way": way,
            "parameters": sum(p.numel() for p in net.parameters()),
            "batch": batch,
            "step of baseline": round(seconds[way] / seconds["baseline"], 2),
            "saved MiB": round(kept[way] / 2**20, 1),
            "peak MiB": round(peak[way]),
            "through the kernel": through_the_kernel(net, x),
        }
        for way, net in nets.items()
    ]


def through_the_kernel(net: nn.Module, x: torch.Tensor) -> str:
    """How many of the rolled layers the kernel runs."""
    codes = [work.execution.code for work in work_of(net, [x]) if isinstance(work.layer, RollConv)]
    return f"{codes.count('kernel')} of {len(codes)}"


# --- rates ------------------------------------------------------------------------------------------------------------


def training(config: Config, data: Data, seconds: float) -> Row:
    """Train for a while; the first steps only warm up."""
    device = torch.device("cpu")
    net = net_for(config, data.classes)
    state = loop.new_state(config, net, device)
    images, start, waited, cpu = 0, 0.0, 0.0, 0.0
    for step in loop.train(config, data, state):
        if step.step == 3:
            images, start = 0, time.perf_counter()
            waited, cpu = state.seconds["waiting"], state.seconds["cpu"]
        images += step.images
        if step.step > 3 and time.perf_counter() - start > seconds:
            break
    wall = time.perf_counter() - start
    return {
        "what": f"{config.experiment}/{config.row}, rotate={config.rotate}, batch {config.batch_images}",
        "threads": torch.get_num_threads(),
        "images/s": round(images / wall),
        "images/CPU s": round(images / (state.seconds["cpu"] - cpu)),
        "waiting for data": f"{(state.seconds['waiting'] - waited) / wall:.2%}",
    }


def reading(config: Config, data: Data) -> list[Row]:
    """An epoch in random order from the cache, before augmentation; and the augmentation alone."""
    assert isinstance(data, Dataset)
    order = epoch_order(config, data, 0)
    batches = Batches(config, data, torch.device("cpu"))

    def read() -> None:
        for start in range(0, len(order), 128):
            fetch(data, order[start : start + 128], torch.device("cpu"))

    def augment() -> None:
        for step in range(8):
            batches.make(step)

    seconds = medians({"read": read, "augment": augment}, repeats=3)
    side = data.images.shape[2]
    warped = min(8 * config.batch_images, len(order))
    return [
        _row(f"reading cached images, {side} x {side}", len(order) / seconds["read"]),
        _row(f"reading and warping, {side} x {side}", warped / seconds["augment"]),
    ]


def _row(what: str, rate: float | None = None) -> Row:
    threads = torch.get_num_threads() if rate else ""
    return {
        "what": what,
        "threads": threads,
        "images/s": round(rate) if rate else "",
        "images/CPU s": "",
        "waiting for data": "",
    }


def help_seconds() -> Row:
    """The median of five starts of `quarterturn --help`."""
    command = [str(Path(sys.executable).with_name("quarterturn")), "--help"]

    def start() -> None:
        subprocess.run(command, check=True, capture_output=True)

    found = medians({"help": start}, repeats=5)["help"]
    return _row(f"quarterturn --help: {found:.2f} s")


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=("steps", "rates"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", nargs=2, metavar=("NETWORK", "WAY"), help="used by this script itself")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print_peak(options.peak[0], options.peak[1], options.batch)
        return
    if options.only != "rates":
        write("steps", [row for name in NETS for row in steps(name, options.batch, options.repeats)])
    if options.only == "steps":
        return
    torch.set_num_threads(options.threads)
    rows: list[Row] = []
    name = "plankton" if options.data else "synthetic"
    large = checked(settings_of(name, "baseline", data=options.data, side=95))
    rows += reading(large, load(large))
    small = "plankton-small" if options.data else "synthetic"
    for row in ROWS:
        for rotate in ("maps", "filters"):
            if row == "baseline" and rotate == "filters":
                continue
            config = checked(settings_of(small, row, data=options.data, rotate=rotate))
            rows.append(training(config, load(config), options.seconds))
    rows.append(help_seconds())
    write("training", rows)


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
