"""A VGG-like network end to end: plain, and equivariant through the Fourier kernel, of the same widths.

    python bench/vgg.py [--repeats 7] [--threads 1 2]

95 x 95 x 1 images; 3x3 convolutions 32, 32 | 64, 64 | 128 x3 | 256 x3, 3x3/2 max pools; dense 512, 512, 121. Training
is forward, backward and a step of Adam. All widths doubled: batch 8, D4. `times NCHW` and `times channels_last`: how
many times as many images a second as the plain network in that memory format. One thread: CPU time; two: wall time.
"""

import time
from collections.abc import Callable

import torch
from harness import medians, run
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4, Group

STAGES = ((32, 32), (64, 64), (128, 128, 128), (256, 256, 256))


def plain(scale: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 1
    for stage in STAGES:
        for width in stage:
            layers += [nn.Conv2d(before, scale * width, 3, padding=1), nn.ReLU()]
            before = scale * width
        layers.append(nn.MaxPool2d(3, 2))
    dense = [nn.Linear(25 * before, 512 * scale), nn.ReLU(), nn.Linear(512 * scale, 512 * scale), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(512 * scale, 121))


class Equivariant(nn.Module):
    """The same widths; the dense layers keep the orientations, and are pooled at the end."""

    def __init__(self, group: Group, scale: int, via: str) -> None:
        super().__init__()
        self.group = group
        layers: list[nn.Module] = []
        before = 0
        for stage in STAGES:
            for width in stage:
                features = scale * width // group.order
                if before:
                    conv = qt.RollConv(group, before, features, 3, padding=1, rotate="filters", via=via)  # type: ignore[arg-type]
                    layers += [conv, nn.ReLU()]
                else:
                    layers += [qt.SliceConv(group, 1, features, 3, padding=1, rotate="filters"), nn.ReLU()]
                before = features
            layers.append(qt.MaxPool(group, 3, 2, rotate="filters"))
        self.maps = nn.Sequential(*layers)
        width = 512 * scale // group.order
        self.dense = nn.Sequential(
            qt.RollLinear(group, 25 * before, width, rotate="filters"),
            nn.ReLU(),
            qt.RollLinear(group, width, width, rotate="filters"),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, 121)

    def forward(self, x: Tensor) -> Tensor:
        turned = qt.unstack(self.maps(x), self.group)  # each orientation in its own frame, then flattened
        flat = qt.stack(turned.flatten(1), self.group)
        pooled = self.dense(flat).unflatten(1, (-1, self.group.order)).mean(2)
        return self.head(pooled)


def training(net: nn.Module, x: Tensor) -> Callable[[], object]:
    optimiser = torch.optim.Adam(net.parameters(), 1e-5)

    def run() -> None:
        optimiser.zero_grad()
        net(x).square().mean().backward()
        optimiser.step()

    return run


def inference(net: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            net(x)

    return run


def measure(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    threads = torch.get_num_threads()
    clock: Callable[[], float] = time.process_time if threads == 1 else time.perf_counter
    for group, scale, batch in ((C4, 1, 32), (D4, 2, 8)):
        x = torch.randn(batch, 1, 95, 95)
        last = x.contiguous(memory_format=torch.channels_last)
        nets = {
            "NCHW": (plain(scale), x),
            "channels_last": (plain(scale).to(memory_format=torch.channels_last), last),  # type: ignore[call-overload]
            "fourier": (Equivariant(group, scale, "auto").to(memory_format=torch.channels_last), last),  # type: ignore[call-overload]
        }
        if group is C4:
            fast = Equivariant(group, scale, "fourier-rounded")
            nets["fourier-rounded"] = (fast.to(memory_format=torch.channels_last), last)  # type: ignore[call-overload]
        qt.assert_equivariant(nets["fourier"][0], group, torch.randn(1, 1, 95, 95))
        for what, prepare in (("training", training), ("inference", inference)):
            seconds = medians({name: prepare(net, batch) for name, (net, batch) in nets.items()}, repeats, clock)
            for form in ("fourier", "fourier-rounded")[: len(nets) - 2]:
                rows.append(
                    {
                        "group": group.name,
                        "form": form,
                        "widths": f"{32 * scale} to {256 * scale}",
                        "batch": batch,
                        "what": what,
                        "threads": threads,
                        "times NCHW": round(seconds["NCHW"] / seconds[form], 2),
                        "times channels_last": round(seconds["channels_last"] / seconds[form], 2),
                        "channels_last times NCHW": round(seconds["NCHW"] / seconds["channels_last"], 2),
                    }
                )
    return rows


if __name__ == "__main__":
    run("vgg", __doc__, measure, repeats=7, threads=(1, 2))
