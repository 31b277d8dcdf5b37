"""convert: networks in the styles of public research code, whose habits no rule was written for."""

import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_convert import EXACT, Code, after, block, check_exact, conv, leaves, made
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn.graph.lively import lively

Answer = namedtuple("Answer", "scores maps")


def attention_gate(m: Any, x: Tensor) -> Tensor:
    """Of a U-Net: the coarse maps say where the fine ones count."""
    low = F.relu(m.b(m.pool(x)))
    up = F.interpolate(m.up(low), size=x.shape[2:], mode="bilinear", align_corners=False)
    return torch.cat((m.gate(coarse=up, fine=x), up), dim=1)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(16, 8, 1), conv(16, 8, 1)
        self.psi = nn.Sequential(nn.ReLU(inplace=True), conv(8, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        return fine * self.psi(self.a(coarse) + self.b(fine))


def best_and_mean(m: Any, x: Tensor) -> Tensor:
    """Spatial attention; the maximum by its name."""
    return x * torch.sigmoid_(m.a(torch.cat([x.max(dim=1, keepdim=True).values, x.mean(1, keepdim=True)], 1)))


def selective_in_place(m: Any, x: Tensor) -> Tensor:
    """Branches that are stacked one by one, with axes that are put in in place."""
    branches = m.a(x).unsqueeze_(dim=1)
    branches = torch.cat([branches, m.b(x).unsqueeze_(dim=1)], dim=1)
    squeezed = m.c(branches.sum(1).mean(-1).mean(-1))
    weights = torch.cat([m.d(squeezed).unsqueeze_(1), m.e(squeezed).unsqueeze_(1)], dim=1).softmax(1)
    return (branches * weights.unsqueeze(-1).unsqueeze(-1)).sum(dim=1)


def shuffled_channels(m: Any, x: Tensor) -> Tensor:
    """Halves of channels in turns: with 16 channels, those of a half are as many as the orientations of D4."""
    n, c, h, w = x.data.size()
    one, other = x.chunk(2, dim=1)
    y = torch.cat((one, m.a(other)), dim=1)
    return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)


def gated_steps(m: Any, x: Tensor) -> Tensor:
    """A convolutional recurrent cell that begins with zeros."""
    state, cell = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(2):
        i, f, o, g = torch.chunk(m.a(torch.cat([x, state], 1)), 4, dim=1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = torch.where(cell > 0, o.sigmoid() * cell.tanh(), 0.1 * cell)
    return state


class Rolling(nn.Module):
    """Filters that depend on the position, written with windows."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.windows = conv(16, 18, 1), nn.Unfold(3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        filters = self.make(x).view(n, 2, 9, h, w).unsqueeze(2)
        return (filters * self.windows(x).view(n, 2, c // 2, 9, h, w)).sum(dim=3).view(n, c, h, w)


class Sampled(nn.Module):
    """Maps that are read at places which they say themselves, as deformable convolutions do."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = conv(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (torch.linspace(-1, 1, size, dtype=x.dtype) for size in x.shape[2:])
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
        return F.grid_sample(x, grid + 0.2 * self.offsets(x).tanh().permute(0, 2, 3, 1), align_corners=True)


class Clusters(nn.Module):
    """Residuals to learnt centres, summed with soft weights; it needs its tensors in order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.centres = conv(16, 4, 1), nn.Parameter(torch.rand(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        flat = F.normalize(x, dim=1).view(len(x), 16, -1)
        weights = self.a(x).view(len(x), 4, -1).softmax(1)
        residuals = flat.unsqueeze(1) - self.centres.unsqueeze(0).unsqueeze(-1)
        return (residuals * weights.unsqueeze(2)).sum(-1).view(len(x), -1)


class Reader(nn.Module):
    """A recurrent layer over the columns; its states have as many layers as the batch has examples."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(16, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x.mean(2).transpose(1, 2))[0].mean(1)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "attention gate": lambda: Code(
        lambda m, x: m.head(attention_gate(m, F.relu(m.a(x)))),
        a=conv(3, 16),
        b=conv(16, 32),
        up=nn.ConvTranspose2d(32, 16, 2, 2),
        pool=nn.MaxPool2d(2),
        gate=Gate(),
        head=conv(32, 2, 1),
    ),
    "best and mean": lambda: block(best_and_mean, a=conv(2, 1, 7)),
    "selective in place": lambda: block(
        selective_in_place,
        a=conv(16, 16),
        b=conv(16, 16, dilation=2, padding=2),
        c=nn.Linear(16, 8),
        d=nn.Linear(8, 16),
        e=nn.Linear(8, 16),
    ),
    "shuffled channels": lambda: block(
        lambda m, x: shuffled_channels(m, shuffled_channels(m, x)), a=nn.Sequential(conv(8, 8, 1), nn.BatchNorm2d(8))
    ),
    "gated steps": lambda: block(gated_steps, a=conv(32, 64)),
    "named outputs": lambda: Code(
        lambda m, x: Answer(m.a(F.relu(m.first(x)).mean((2, 3))), maps=m.b(F.relu(m.first(x)))),
        first=conv(3, 16),
        a=nn.Linear(16, 5),
        b=conv(16, 2, 1),
    ),
}
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "filters of positions": lambda: after(Rolling(), conv(16, 16)),
    "sampled": lambda: after(Sampled(), conv(16, 16)),
    "clusters": lambda: nn.Sequential(conv(3, 16), nn.ReLU(), Clusters(), nn.Linear(64, 5)),
    "recurrent": lambda: nn.Sequential(conv(3, 16), nn.ReLU(), Reader(), nn.Linear(16, 5)),
}


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
@pytest.mark.parametrize("name", [*NETWORKS, *PLAIN])
def test_networks_named_nowhere_are_exact_in_both_modes_and_out_again(name: str, group: qt.Group) -> None:
    check_exact(made({**NETWORKS, **PLAIN}[name]), group)


@pytest.mark.parametrize("sizes", [(15, 15), (12, 18)])
@pytest.mark.parametrize("name", [*NETWORKS, *PLAIN])
def test_they_take_odd_sizes_and_maps_that_are_not_square(name: str, sizes: tuple[int, int]) -> None:
    """Only parts that cannot be followed stay plain."""
    net, x = made({**NETWORKS, **PLAIN}[name]), torch.randn(2, 3, *sizes, dtype=torch.float64)
    converted = qt.convert(net, qt.D4, example=x)
    assert bool(converted.conversion.plain) == (name in PLAIN)
    assert [t.shape for t in leaves(converted(x))] == [t.shape for t in leaves(net(x))]
    assert max(qt.equivariance_error(lively(converted, [x]), qt.D4, x).relative) < EXACT


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(conv(16, 16), nn.ReLU()))


@pytest.mark.parametrize(
    "part",
    [scripted, lambda: nn.utils.weight_norm(conv(16, 16)), lambda: nn.utils.spectral_norm(conv(16, 16))],
    ids=["scripted", "weight norm", "spectral norm"],
)
def test_parts_that_torch_does_not_copy_are_plain_and_learn(part: Callable[[], nn.Module]) -> None:
    """Scripted layers, and the older norms of weights, which are hooks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that they are old
        net = after(part(), conv(16, 16)).double()
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    net(x)
    converted = qt.convert(net, qt.D4, example=x).train()
    assert [found.path for found in converted.conversion.plain] == ["2"]
    before = [p.detach().clone() for p in converted.get_submodule("2").parameters()]
    optimizer = torch.optim.SGD(converted.parameters(), 0.1)
    converted(x).square().sum().backward()
    optimizer.step()
    after_step = list(converted.get_submodule("2").parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, after_step, strict=True))
    assert max(qt.equivariance_error(converted.eval(), qt.D4, x).relative) < EXACT
