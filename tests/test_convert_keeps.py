"""convert: what a network has beside its layers is kept. Frozen and tied parameters, modes, hooks."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(2, 16), nn.PReLU(16), nn.Dropout()),
        nn.ConvTranspose2d(16, 16, 2, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def images() -> Tensor:
    return torch.randn(2, 3, 12, 12)


@pytest.mark.parametrize("init", ["scratch", "pretrained"])
def test_frozen_parameters_stay_frozen(init: Any) -> None:
    net = network()
    for name in [name for name, _ in net.named_parameters()]:
        one = copy.deepcopy(net)
        one.get_parameter(name).requires_grad_(False)
        converted = qt.convert(one, qt.C4, init=init, example=images())
        assert [n for n, p in converted.named_parameters() if not p.requires_grad] == [name]


def test_filters_that_do_not_learn_are_kept() -> None:
    """Frozen filters that are turned copies of one another go in as they are, and are not drawn anew."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.Conv2d(4, 4, 1)).double()
    ramp = torch.arange(9.0).reshape(1, 1, 3, 3)
    with torch.no_grad():
        net[0].weight.copy_(torch.cat([qt.act(ramp, qt.C4, qt.C4.inverse[g]) for g in range(4)]))
    net[0].weight.requires_grad_(False)
    converted = qt.convert(net, qt.C4)
    torch.testing.assert_close(converted.get_parameter("0.weight"), ramp.double(), atol=1e-12, rtol=0)


def test_every_module_keeps_its_mode() -> None:
    net = network().train()
    net[1].eval()
    net[3].eval()
    converted = qt.convert(net, qt.C4, example=images())
    for twin in (converted, copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        modes = {path: module.training for path, module in twin.named_modules()}
        assert modes[""]
        assert modes["0"]
        assert not modes["1"]
        assert not modes["3.0"]
        assert not modes["3.3"]
        assert modes["4"]
    statistics = converted.get_submodule("1").state_dict()
    before = {name: tensor.clone() for name, tensor in statistics.items()}
    converted(images())
    assert all(torch.equal(before[name], tensor) for name, tensor in statistics.items())


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
def test_tied_parameters_stay_tied(group: qt.Group) -> None:
    class Twice(nn.Module):
        """Two blocks with the same filters and norms of their own, and other layers of a width that must follow."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 12, 3, padding=1)
            self.a, self.b = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
            self.b.weight = self.a.weight
            self.norm, self.last = nn.BatchNorm2d(12), nn.Conv2d(12, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            parts = self.a(x).split([5, 7], 1)  # cuts the features of one of the two
            return self.last(self.b(torch.cat(parts, 1)))

    converted = qt.convert(Twice(), group, example=images())
    a, b = converted.get_submodule("a"), converted.get_submodule("b")
    assert a.weight is b.weight
    assert a.bias is not b.bias
    x = images().double()
    assert max(qt.equivariance_error(converted.double(), group, x).relative) < 1e-10
    converted(x).square().sum().backward()
    assert a.weight.grad is not None


def test_tied_parameters_of_different_layers_are_refused_by_name() -> None:
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    net[1].weight = net[0].weight
    with pytest.raises(qt.ConversionError, match=r"'0.weight' and '1.weight' are one parameter"):
        qt.convert(net, qt.C4)


@pytest.mark.parametrize(
    "forward", [lambda bn, y: bn(y) * bn.weight[:, None, None], lambda bn, y: bn(bn.weight[:, None, None] * y)]
)
def test_parameters_of_layers_that_code_uses_too_stay_one(forward: Any) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(16)

        def forward(self, y: Tensor) -> Tensor:
            return forward(self.bn, y)

    net = qt.convert(nn.Sequential(nn.Conv2d(3, 16, 3), Scaled(), nn.Conv2d(16, 4, 3)), qt.C4, example=images())
    assert net.get_submodule("1.bn_weight").weight is net.get_submodule("1.bn").weight
    assert not net.conversion.plain


def test_parameters_of_layers_that_code_uses_as_a_whole_make_a_plain_part() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(16)

        def forward(self, y: Tensor) -> Tensor:
            return self.bn(y) * self.bn.weight.mean()

    net = qt.convert(nn.Sequential(nn.Conv2d(3, 16, 3), Scaled(), nn.Conv2d(16, 4, 3)), qt.C4, example=images())
    assert [part.path for part in net.conversion.plain] == ["1"]
    assert [name for name, _ in net.named_parameters() if "bn.weight" in name] == ["1.part.bn.weight"]


def test_hooks_of_layers_that_stay_are_kept_and_others_named() -> None:
    calls: list[str] = []
    net = network()
    net[2].register_forward_hook(lambda *_: calls.append("relu"))
    net[3].register_forward_hook(lambda *_: calls.append("block"))
    converted = qt.convert(net, qt.C4, example=images())
    calls.clear()
    converted(images())
    assert calls == ["relu"]
    assert "3: its hooks are left out" in converted.conversion.notes
    net[0].register_forward_hook(lambda module, args, result: 2 * result)
    net[6].register_forward_pre_hook(lambda *_: None)
    with pytest.raises(qt.ConversionError, match=r"hooks.*'0' \(Conv2d\), '6' \(Flatten\)"):
        qt.convert(net, qt.C4, example=images())


# --- what learns ------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A network whose maps are multiplied with what is made of its parameter."""

    def __init__(self, made: Callable[[Tensor], Tensor], *sizes: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, 2, 1)
        self.gamma, self.head = nn.Parameter(torch.rand(16, *sizes) + 0.5), nn.Linear(16, 5)
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x)) * self.made(self.gamma)
        return self.head(torch.tanh(self.leave(x)).mean((2, 3)))


def as_maps(vector: Tensor) -> Tensor:
    return vector.view(1, -1, 1, 1)


MADE: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "twice": (lambda p: as_maps(2 * p), ()),
    "exp": (lambda p: as_maps(p.exp()), ()),
    "abs": (lambda p: as_maps(p).abs(), ()),
    "detach": (lambda p: as_maps(p.detach()), ()),
    "detach after a view": (lambda p: as_maps(p).detach(), ()),
    "torch.detach": (lambda p: as_maps(torch.detach(p)), ()),
    "data": (lambda p: as_maps(p.data), ()),
    "detach of what is computed": (lambda p: as_maps(p.exp()).detach(), ()),
    "detach of one of two": (lambda p: as_maps(p * p.detach()), ()),
    "table": (lambda p: p[None], (9, 9)),
    "table, detach": (lambda p: p.detach()[None], (9, 9)),
    "table, torch.detach": (lambda p: torch.detach(p[None]), (9, 9)),
}


@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda group: group.name)
@pytest.mark.parametrize("name", MADE)
def test_what_multiplies_features_learns_where_it_did_and_stays_exact(name: str, group: qt.Group, rotate: Any) -> None:
    made, sizes = MADE[name]
    net, x = Scaled(made, *sizes).double(), torch.randn(4, 3, 9, 9, dtype=torch.float64)
    converted = qt.convert(net, group, rotate, example=x)
    learnt = []
    for model in (net, converted):
        before = {key: value.clone() for key, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (model(x) - 1).square().sum().backward()
            optimizer.step()
        changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
        learnt.append({key.replace("gamma.weight", "gamma") for key in changed})
    assert learnt[0] == learnt[1]
    assert ("gamma" in learnt[0]) == ("two" in name or not ("detach" in name or name == "data"))
    answers = converted.eval()(x)
    assert (answers[0] - answers[1]).abs().max() > 1e-3
    qt.assert_equivariant(converted, group, x)


@pytest.mark.parametrize(
    "forward",
    [
        lambda conv, y: conv(F.conv2d(y, conv.weight)),
        lambda conv, y: conv(F.conv2d(y, conv.weight.detach())),
        lambda conv, y: F.conv2d(conv(y), conv.weight.detach()),
        lambda conv, y: F.conv2d(F.conv2d(y, conv.weight, conv.bias), conv.weight),
    ],
)
def test_filters_that_are_used_in_several_ways_are_refused(forward: Any) -> None:
    """They would become one layer, which is right for one of the ways only."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.conv = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self.conv, self.enter(x)).mean((2, 3))

    with pytest.raises(qt.ConversionError, match="its filters are used in several ways"):
        qt.convert(Net(), qt.C4, example=images())
