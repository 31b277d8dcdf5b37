"""Batch norms that are synchronised between processes: two processes give what one gives for the whole batch."""

import copy

import pytest
import torch
from processes import in_processes
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4
from quarterturn.layers.sync_batch_norm import _Synchronised

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SIZES = (5, 2)  # images of each process


class BatchNormAct2d(nn.BatchNorm2d):
    """As in timm: a dropout and an activation, and a forward that does not ask torch's."""

    def __init__(self, features: int, **options: bool) -> None:
        super().__init__(features, **options)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        statistics = (self.running_mean, self.running_var)
        if self.training:
            self.num_batches_tracked.add_(1)
        y = F.batch_norm(x, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)
        return self.act(self.drop(y))


def norms() -> dict[str, tuple[nn.Module, Tensor]]:
    """Norms in float64, with parameters of their own, and an input for each: 7 images."""
    torch.manual_seed(0)
    images = 3 * torch.randn(7, 4, 5, 6, dtype=torch.float64) + 100  # a mean that squares would not survive in float32
    last = torch.channels_last
    found = {
        "torch": (nn.BatchNorm2d(4), images),
        "torch, vectors": (nn.BatchNorm1d(4), images[:, :, 0, 0]),
        "torch, no statistics": (nn.BatchNorm2d(4, track_running_stats=False), images),
        "timm": (BatchNormAct2d(4), images),
        "torch, plain": (nn.BatchNorm2d(4, affine=False, momentum=None), images),
    }
    for group in (C4, D4):
        sliced = torch.stack([qt.act(images[..., :5], group, g) for g in range(group.order)], dim=1)
        maps = sliced.transpose(1, 2).flatten(1, 2)
        beside = qt.unstack(maps, group).unflatten(0, (7, group.order))
        found[f"{group.name} filters"] = (qt.BatchNorm(group, 4, rotate="filters"), maps)
        found[f"{group.name} filters, last"] = (
            qt.BatchNorm(group, 4, rotate="filters"),
            maps.contiguous(memory_format=last),
        )
        found[f"{group.name} maps"] = (qt.BatchNorm(group, 4), beside)
    for norm, _ in found.values():
        norm.double()
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
    return found


def step(norm: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Output, gradients and statistics after two steps on an input; of the second."""
    for _ in range(2):
        norm.zero_grad()
        given = (x.flatten(0, 1) if isinstance(norm, qt.BatchNorm) and norm.rotate == "maps" else x).detach()
        given.requires_grad_()
        y = norm(given)
        (y * torch.sin(given.detach() * 7)).sum().backward()  # a gradient that is not along the output
    grads = {name: p.grad for name, p in norm.named_parameters()}
    return {"y": y.detach(), "x": given.grad, **grads, **dict(norm.named_buffers())}


def in_one_of_two(rank: int) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, (norm, x) in norms().items():
        mine = x.split(SIZES)[rank]
        found[name] = step(qt.sync_batch_norm(norm), mine)
        off = step(qt.sync_batch_norm(copy.deepcopy(norm), False), mine)
        assert not torch.allclose(off["y"], found[name]["y"])  # switched off, each has statistics of its own
    return found


@pytest.fixture(scope="module")
def two() -> list[dict[str, dict[str, Tensor]]]:
    return in_processes(2, in_one_of_two)


@pytest.mark.parametrize("name", norms())
def test_two_processes_are_as_one(name: str, two: list[dict[str, dict[str, Tensor]]]) -> None:
    norm, x = norms()[name]
    one, parts = step(norm, x), [found[name] for found in two]
    for key in ("y", "x"):
        torch.testing.assert_close(torch.cat([part[key] for part in parts]), one[key], **CLOSE)
    for key in (key for key, _ in norm.named_parameters()):
        torch.testing.assert_close(parts[0][key] + parts[1][key], one[key], **CLOSE)
    for key, value in norm.named_buffers():
        for part in parts:
            torch.testing.assert_close(part[key], value, **CLOSE)


def test_the_network_stays_the_same_but_for_its_norms() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm1d(4)), nn.BatchNorm3d(2))
    before, parameters = net.state_dict(), list(net.parameters())
    assert qt.sync_batch_norm(net) is net
    assert qt.sync_batch_norm(net) is net
    assert [type(m).__bases__[0] for m in net.modules() if isinstance(m, _Synchronised)] == [_Synchronised] * 3
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
    assert list(net.state_dict()) == list(before)
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(net[1](x), nn.BatchNorm2d(4)(x))  # one process has nobody to wait for


def test_a_norm_with_code_of_its_own_is_refused_before_anything_changes() -> None:
    class Activated(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    net = nn.Sequential(nn.BatchNorm2d(2), Activated(2))
    with pytest.raises(qt.OptionError, match="^1 is a Activated, a batch norm with code of its own"):
        qt.sync_batch_norm(net)
    assert type(net[0]) is nn.BatchNorm2d
