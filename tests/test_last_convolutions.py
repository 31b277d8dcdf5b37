"""Convolutions that make the mean over orientations: the layer, and networks that `convert` ends with one."""

from typing import Any

import pytest
import torch
from reference import ALL_GROUPS
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4, OCTA, Group
from quarterturn._convert.initial_weights import projected
from quarterturn.check import error_of_answers
from quarterturn.errors import OptionError
from quarterturn.filters import roll_filters
from quarterturn.graph.lively import lively
from quarterturn.layers.convolution import turned_inputs

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def images(group: Group, *sizes: int, features: int = 1) -> Tensor:
    return torch.randn(2, features, *(sizes or (5, 6, 7)[: group.dim]), dtype=torch.float64)


def double(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layer = layer.double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


# --- the layer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"padding": 2, "dilation": 2, "bias": False},
        {"groups": 2, "padding": 1, "padding_mode": "reflect"},
    ],
    ids=["padded", "dilated", "groups"],
)
def test_it_is_a_path_conv_and_a_pool(group: Group, rotate: Any, options: dict[str, Any]) -> None:
    one = double(qt.PoolConv(group, 2, 4, 3, rotate=rotate, **options))
    two = nn.Sequential(qt.PathConv(group, 2, 4, 3, rotate=rotate, **options), qt.Pool(group, rotate=rotate)).double()
    two[0].load_state_dict(one.state_dict())
    batch, features = (group.order, 2) if rotate == "maps" else (2, 2 * group.order)
    sizes = (5,) * group.dim if rotate == "maps" else (5, 6, 7)[: group.dim]
    x = torch.randn(batch, features, *sizes, dtype=torch.float64)
    torch.testing.assert_close(one(x), two(x), **CLOSE)


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_networks_that_end_with_it_are_exact_and_its_check_can_fail(group: Group) -> None:
    def net(filters: Tensor) -> nn.Module:
        first = qt.SliceConv(group, 1, 2, 3, padding=1, rotate="filters")
        plain = CONVOLUTIONS[group.dim](2 * group.order, 3, 3, padding=1)
        plain.weight = nn.Parameter(filters)
        return nn.Sequential(first, nn.ReLU(), plain).double()

    torch.manual_seed(1)
    last = double(qt.PoolConv(group, 2, 3, 3, padding=1, rotate="filters"))
    x = images(group)
    assert error_of_answers(net(last.bank()), group, (x,)) < 1e-10
    assert error_of_answers(net(torch.randn_like(last.bank())), group, (x,)) > 1e-3


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_the_mean_of_a_rolled_layer_is_one(group: Group) -> None:
    """So nothing is lost: a RollConv whose outputs are averaged is a PoolConv with as many numbers / |G|."""
    rolled = double(qt.RollConv(group, 2, 3, 3, padding=1, rotate="filters", via="conv"))
    bank = roll_filters(rolled.weight, group, range(group.order)).unflatten(0, (3, group.order)).mean(1)
    one = double(qt.PoolConv(group, 2, 3, 3, padding=1, rotate="filters"))
    with torch.no_grad():
        one.weight.copy_(projected(one.weight.shape, bank.detach(), lambda t: turned_inputs(t, group)) * group.order)
        one.bias.copy_(rolled.bias)
    x = images(group, features=2 * group.order)
    torch.testing.assert_close(one(x), qt.ops.pool_stacked(rolled(x), group), **CLOSE)
    assert one.weight.numel() * group.order == rolled.weight.numel()


@pytest.mark.parametrize(
    "options", [{"stride": 2, "padding": 1}, {"padding": ((0, 1), (0, 1))}, {"kernel_size": (1, 3)}]
)
def test_windows_at_several_places_are_refused_with_the_way_out(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="use PathConv, then Pool"):
        qt.PoolConv(C4, 2, 3, **{"kernel_size": 3, **options})


@pytest.mark.parametrize("rotate", ["maps", "filters"])
def test_it_becomes_one_plain_convolution(rotate: Any) -> None:
    net = nn.Sequential(
        qt.SliceConv(D4, 1, 2, 3, padding=1, rotate=rotate),
        nn.ReLU(),
        qt.PoolConv(D4, 2, 3, 5, padding=2, rotate=rotate),
    )
    net, x = double(net), images(D4, 8, 8)
    plain = qt.to_plain(net, x)
    torch.testing.assert_close(plain(x), net(x), **CLOSE)
    assert [m.weight.shape for m in plain.modules() if isinstance(m, nn.Conv2d)][-1] == (3, 16, 5, 5)


def test_its_multiply_adds_are_those_of_the_plain_convolution() -> None:
    x = images(D4, 8, 9, features=16).float()
    layer = qt.PoolConv(D4, 2, 3, 3, padding=1, rotate="filters")
    assert qt.cost.cost(layer, [x]).multiply_adds == 8 * 9 * 3 * 16 * 9


# --- convert ----------------------------------------------------------------------------------------------------------


class Tail(nn.Module):
    """A network that ends with a convolution of larger windows, and what a test puts behind it."""

    def __init__(self, dim: int, end: Any, width: int = 48) -> None:
        super().__init__()
        conv = CONVOLUTIONS[dim]
        self.first, self.narrow = conv(1, width, 3, padding=1), conv(width, 2, 3, padding=1)
        self.last, self.other = conv(2, 2, 3, padding=1), conv(2, 2, 1)
        self.end = end

    def forward(self, x: Tensor) -> Any:
        return self.end(self, torch.relu(self.narrow(torch.relu(self.first(x)))))


ENDS: dict[str, Any] = {
    "as it is": lambda net, y: net.last(y),
    "residual": lambda net, y: net.last(y) + y,
    "in place": lambda net, y: net.last(y).add_(y),
    "two layers": lambda net, y: net.last(y) - (net.other(y) + y) / 2,
    "several": lambda net, y: [net.last(y) + y, net.other(y)],
}


@pytest.mark.parametrize("group", [D4, OCTA, qt.about(D4, 1), qt.mirrors(1, 3)], ids=lambda g: g.name)
@pytest.mark.parametrize("end", list(ENDS))
def test_last_convolutions_make_the_mean(group: Group, end: str) -> None:
    torch.manual_seed(0)
    x = images(group)
    net = qt.convert(Tail(group.dim, ENDS[end]).double(), group, example=x)
    assert isinstance(net.last, qt.PoolConv)
    assert not isinstance(net.narrow, qt.PoolConv)
    learnt = lively(net, [x])
    for sizes in ((5, 6, 7), (6, 4, 5)):
        assert error_of_answers(learnt, group, (images(group, *sizes[: group.dim]),)) < 1e-10
    assert error_of_answers(lively(Tail(group.dim, ENDS[end]).double(), [x]), group, (x,)) > 1e-2
    plain = qt.to_plain(learnt, x)
    for one, two in zip(*([y] if isinstance(y, Tensor) else y for y in (plain(x), learnt(x))), strict=True):
        torch.testing.assert_close(one, two, **CLOSE)


KEPT: dict[str, tuple[Any, dict[str, Any]]] = {
    "no mean": (ENDS["as it is"], {"pool": "max"}),
    "all orientations": (ENDS["as it is"], {"output": "stacked"}),
    "not affine": (lambda net, y: torch.sigmoid(net.last(y)), {}),
    "not affine for one of them": (lambda net, y: [net.last(y), torch.sigmoid(net.last(y))], {}),
    "added to what is not": (lambda net, y: torch.sigmoid(net.last(y) + y), {}),
    "used again": (lambda net, y: net.other(torch.relu(net.last(y)) + y), {}),
}


@pytest.mark.parametrize("name", list(KEPT))
def test_where_the_mean_comes_later_they_roll(name: str) -> None:
    end, options = KEPT[name]
    torch.manual_seed(0)
    x = images(D4)
    net = qt.convert(Tail(2, end).double(), D4, example=x, **options)
    assert isinstance(net.last, qt.RollConv)
    if name != "all orientations":
        assert error_of_answers(lively(net, [x]), D4, (x,)) < 1e-10


def test_a_residual_end_costs_what_the_plain_one_does_times_the_orientations_that_it_adds() -> None:
    """The end of MONAI's UNet: both layers have 2 channels, which are there in 8 orientations before the last one."""
    net = qt.convert(Tail(2, ENDS["residual"]), D4, example=images(D4).float())
    positions = 5 * 6 * 9
    costs = {work.path: work.multiply_adds / positions / 2 for work in qt.cost.work_of(net, [images(D4).float()])}
    assert (costs["narrow"], costs["last"]) == (48 * 16, 16 * 2)


def test_pretrained_weights_come_back() -> None:
    net = double(
        nn.Sequential(
            qt.SliceConv(D4, 1, 2, 3, padding=1, rotate="filters"),
            nn.ReLU(),
            qt.PoolConv(D4, 2, 3, 3, padding=1, rotate="filters"),
        )
    )
    x = images(D4)
    again = qt.convert(qt.to_plain(net, x), D4, example=x, init="pretrained")
    assert any(isinstance(m, qt.PoolConv) for m in again.modules())
    torch.testing.assert_close(again(x), net(x), **CLOSE)


def test_drawn_outputs_are_as_strong_as_before() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 1, 24, 24)
    old = [Tail(2, ENDS["as it is"]) for _ in range(20)]
    new = [qt.convert(net, D4, example=x) for net in old]
    before, after = (torch.stack([net(x).std() for net in nets]).mean() for nets in (old, new))
    assert 0.3 < after / before < 3
