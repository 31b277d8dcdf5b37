"""Which networks for volumes `convert` takes, and what becomes of them: those of MONAI, nnU-Net and torchvision.

.venv-monai/bin/python bench/convert_volumes.py [--group GROUP] [NETWORK ...]

With names, such as "monai UNet", only those are measured again, and the others stay as they are. A row is written when
it is there. The networks are those of tests/monai/volume_networks.py: few filters, all kinds of layers. Each is
converted to three groups: the mirror of the last axis, D4 about the first, and the turns of a cube (not SwinUNETR,
whose smallest cube takes too long). Errors are in float64, as if the network had learnt, on every element, relative to
the difference between the answers to two volumes. It runs in the environment of `make test-monai`.
"""

import argparse
import csv
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
from harness import Rows, record, save
from torch import Tensor, nn
from transformer_rows import relative_costs

import quarterturn as qt
from quarterturn.check import error_of_answers, largest_difference
from quarterturn.graph.lively import lively

RECORD = "volume-networks"
GROUPS = {"mirror-3": qt.mirrors(3), "D4-1": qt.about(qt.D4, 1), "octa": qt.OCTA}
CUBES = {"monai BasicUNet": 33, "monai DenseNet121": 32, "monai UNETR": 32}  # sides; 16 for the others
LEFT_OUT = {("monai SwinUNETR", "octa")}
COLUMNS = ("rolled", "parameters", "multiply-adds", "with the kernel", "error of turned volumes", "plain twin")


def size_for(name: str, group: qt.Group, usual: tuple[int, int, int]) -> tuple[int, int, int]:
    """The network's usual size; a cube where all axes are exchanged."""
    side = CUBES.get(name, 16)
    return (side, side, side) if len(group.exchanged) == 1 and len(group.exchanged[0]) == 3 else usual


def converted_row(name: str, group: qt.Group, net: nn.Module, x: Tensor) -> dict[str, object]:
    """What became of a network; raises where it is refused."""
    start = time.process_time()
    converted: Any = qt.convert(net.float(), group, example=x.float())
    seconds = time.process_time() - start
    done, learnt = converted.conversion, lively(converted.double(), [x])
    with torch.no_grad():
        can_fail = error_of_answers(lively(net.double(), [x]), group, (x,)) > 1e-2  # the old network does
        error = f"{error_of_answers(learnt, group, (x,)):.1e}" if can_fail else "cannot fail"
        gap, largest = largest_difference(learnt(x), qt.to_plain(learnt, x)(x))
    return {
        "network": name,
        "group": group.name,
        "size": " x ".join(map(str, x.shape[2:])),
        **relative_costs(done),
        "error of turned volumes": error,
        "plain twin": f"{gap / largest:.1e}",
        "plain parts, or why not": ", ".join(sorted({part.layer for part in done.plain})),
        "seconds": f"{seconds:.1f}",
    }


def measured(name: str, group: qt.Group, networks: Any) -> dict[str, object]:
    """The row of a network, also of one that is refused."""
    size = size_for(name, group, networks.NETWORKS[name].size)
    try:
        return converted_row(name, group, networks.made(name, size), networks.NETWORKS[name].volumes(size))
    except qt.QuarterturnError as error:
        lines = [line for line in str(error).splitlines() if line.startswith("- ")] or [str(error)]
        row: dict[str, object] = {"network": name, "group": group.name, "size": " x ".join(map(str, size))}
        row |= {**dict.fromkeys(COLUMNS, ""), "rolled": "refused"}
        return {**row, "plain parts, or why not": lines[0].removeprefix("- "), "seconds": ""}


def before() -> Rows:
    """The rows that this machine measured before."""
    if not record(RECORD).exists():
        return []
    with record(RECORD).open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="one of them alone; may be repeated")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "monai"))
    importlib.import_module("conftest")  # what torchvision needs beside a torch without CUDA
    networks = importlib.import_module("volume_networks")
    order = [(name, group) for name in networks.NETWORKS for group in GROUPS if (name, group) not in LEFT_OUT]
    rows = before()
    for name, group in order:
        if name in (options.names or networks.NETWORKS) and group in (options.group or GROUPS):
            print(name, group, flush=True)
            row = measured(name, GROUPS[group], networks)
            rows = [old for old in rows if (old["network"], old["group"]) != (name, group)]
            rows = sorted([*rows, row], key=lambda row: order.index((str(row["network"]), str(row["group"]))))
            save(RECORD, rows)


if __name__ == "__main__":
    main()
