"""Time of a training step and saved activations: the paper's plankton network, plain and "roll all 1/4" in both modes.

    python bench/modes.py [--batch 8] [--repeats 7] [--side 95]

The plain network has the same widths between layers. Times are CPU seconds of one thread. Activations are the bytes
that autograd keeps for the backward pass, each storage once, parameters not counted.
"""

import itertools
import time
from collections.abc import Callable

import torch
from harness import medians, parser_for, start_again_with_a_warm_allocator, write
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import Group
from quarterturn.filters import Rotate

STAGES = ((32, 32), (64, 64), (128, 128, 128), (128, 128, 128))  # notes: docs/paper-map.md, Table 2


def plain() -> nn.Sequential:
    layers: list[nn.Module] = []
    widths = itertools.chain([1], *STAGES)
    before = next(widths)
    for stage in STAGES:
        for width in stage:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    dense = [nn.LazyLinear(512), nn.ReLU(), nn.LazyLinear(512), nn.ReLU(), nn.LazyLinear(121)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def rolled(group: Group, rotate: Rotate) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 0
    for stage in STAGES:
        for width in stage:
            features = width // group.order
            if before:
                layers.append(qt.RollConv(group, before, features, 3, padding=1, rotate=rotate))
            else:
                layers.append(qt.SliceConv(group, 1, features, 3, padding=1, rotate=rotate))
            layers.append(nn.ReLU())
            before = features
        layers.append(qt.MaxPool(group, 3, 2, ceil_mode=True, rotate=rotate))
    if rotate == "filters":
        layers.append(qt.Unstack(group))
    dense = [nn.LazyLinear(512 // group.order), nn.ReLU(), qt.Roll(group), nn.LazyLinear(512), qt.Pool(group)]
    return nn.Sequential(*layers, qt.Roll(group), nn.Flatten(), *dense, nn.LazyLinear(121))


def saved_bytes(net: nn.Module, x: Tensor) -> int:
    """What autograd keeps for the backward pass, each storage once, without the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = net(x).square().mean()
    size = sum(kept.values())
    del loss
    return size


def step(net: nn.Module, x: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.Adam(net.parameters(), 1e-5)

    def run() -> None:
        loss = net(x).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return run


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--side", type=int, default=95)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(options.batch, 1, options.side, options.side)
    nets = {"plain": plain(), "maps": rolled(qt.C4, "maps"), "filters": rolled(qt.C4, "filters")}
    outputs = {name: net(x) for name, net in nets.items()}
    with torch.no_grad():
        for one, two in zip(nets["maps"].parameters(), nets["filters"].parameters(), strict=True):
            two.copy_(one)
    torch.testing.assert_close(nets["maps"](x), nets["filters"](x), rtol=1e-3, atol=1e-4)
    assert all(output.shape == (options.batch, 121) for output in outputs.values())

    seconds = medians({name: step(net, x) for name, net in nets.items()}, options.repeats, time.process_time)
    kept = {name: saved_bytes(net, x) for name, net in nets.items()}
    write(
        "modes",
        [
            {
                "network": "plankton" if name == "plain" else "plankton, roll all 1/4",
                "rotate": name,
                "side": options.side,
                "batch": options.batch,
                "parameters": sum(p.numel() for p in nets[name].parameters()),
                "saved MiB": round(kept[name] / 2**20, 1),
                "saved of maps": round(kept[name] / kept["maps"], 2),
                "step of maps": round(seconds[name] / seconds["maps"], 2),
                "step of plain": round(seconds[name] / seconds["plain"], 2),
            }
            for name in nets
        ],
    )


if __name__ == "__main__":
    start_again_with_a_warm_allocator()
    main()
