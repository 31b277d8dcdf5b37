"""How well the estimate of time foresees the time of converted networks, relative to the plain ones.

    .venv-timm/bin/python bench/estimates.py [--batch N] [--side N] [--repeats 5]

The networks of bench/models.py, inference with features last, CPU time of one thread, interleaved medians.
"""

import time

import torch
from harness import Rows, medians, parser_for, start_again_with_a_warm_allocator, write
from models import inference, networks, size_of

import quarterturn as qt
from quarterturn.cost import cost
from quarterturn.rates import estimate


def main() -> None:
    start_again_with_a_warm_allocator()
    parser = parser_for(__doc__)
    for option, default in (("--batch", None), ("--side", None), ("--repeats", 5)):
        parser.add_argument(option, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: Rows = []
    for name, make in networks().items():
        torch.manual_seed(0)
        model = make()
        batch, side = size_of(name, options.batch, options.side)
        x = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
        twins = {"plain": model, **{group.name: qt.convert(model, group) for group in (qt.C4, qt.D4)}}
        for net in twins.values():
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        foreseen = {twin: sum(estimate(net, [x]).values()) for twin, net in twins.items()}
        products = {twin: cost(net, [x]).with_kernel for twin, net in twins.items()}
        runs = {twin: inference(net, x) for twin, net in twins.items()}
        measured = medians(runs, options.repeats, time.process_time)
        for group in ("C4", "D4"):
            rows.append(
                {
                    "network": name,
                    "group": group,
                    "multiply-adds of plain": f"{products[group] / products['plain']:.2f}",
                    "estimate of plain": f"{foreseen[group] / foreseen['plain']:.2f}",
                    "measured of plain": f"{measured[group] / measured['plain']:.2f}",
                    "plain ms, estimate": f"{foreseen['plain'] * 1000:.0f}",
                    "plain ms, measured": f"{measured['plain'] * 1000:.0f}",
                }
            )
            print(*rows[-1].values(), flush=True)
    write("estimates", rows)


if __name__ == "__main__":
    main()
