"""Training speed: images per second, time spent waiting for data, how fast cached images are read, start of --help.

    python bench/training.py [--data DIR] [--threads 2] [--seconds 10]

`--data` is plankton's folder; without it the embedded set is drawn at 95 x 95 instead. "waiting" is the share of the
time in which the training thread had no batch to work on.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from harness import medians, write

from quarterturn_lab import loop
from quarterturn_lab.config import Config, checked
from quarterturn_lab.data import load
from quarterturn_lab.data.dataset import Data, Dataset
from quarterturn_lab.experiments import settings_of
from quarterturn_lab.runs import make_net
from quarterturn_lab.sampling import fetch

ROWS = ("baseline", "pool-mean", "roll-all-quarter")
Row = dict[str, object]


def training(config: Config, data: Data, seconds: float) -> Row:
    """Train for a while; the first steps only warm up."""
    device = torch.device("cpu")
    net = make_net(config, data)
    state = loop.new_state(config, net, device)
    images, start, waited, cpu = 0, 0.0, 0.0, 0.0
    for step in loop.train(config, net, data, state, device):
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
    order = loop.epoch_order(config, data, 0)
    batches = loop.Batches(config, data, torch.device("cpu"))

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
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
    main()
