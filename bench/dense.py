"""Dense layers in their block-diagonal form against the whole matrix, turned filters included, as RollLinear runs them.

    python bench/dense.py [--repeats 7]

The columns say how many times as fast as `via="linear"` the layer is with `via="fourier"`. One thread, CPU time.
"""

import argparse
import time

import torch
from conv import forward, forward_and_backward
from harness import medians, start_again_with_a_warm_allocator, write

import quarterturn as qt
from quarterturn import C2, C4, D4, OCTA

SIZES = ((32, 192), (32, 528), (64, 1056), (256, 2064), (9216, 192))  # batch, total width: multiples of 24 or nearly


def measure(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for group in (C2, C4, D4, OCTA):
        for batch, width in SIZES:
            features = width // group.order
            x = torch.randn(batch, features * group.order)
            layers = {
                via: qt.RollLinear(group, features, features, rotate="filters", via=via)
                for via in ("linear", "fourier")
            }
            row: dict[str, object] = {"group": group.name, "batch": batch, "width": x.shape[1]}
            for what, prepare in (("forward", forward), ("forward and backward", forward_and_backward)):
                runs = {via: prepare(layer, x) for via, layer in layers.items()}
                seconds = medians(runs, repeats, time.process_time)
                row[what] = round(seconds["linear"] / seconds["fourier"], 2)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    write("dense", measure(options.repeats))


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
