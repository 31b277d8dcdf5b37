"""convert: the parts that networks often have beside plain layers, each in a small network written by hand."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_convert import EXACT, Code, after, block, check_exact, conv, gap, made
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn.filters import roll_filters
from quarterturn.graph.lively import lively

# --- filters that the network computes --------------------------------------------------------------------------------


class Standardised(nn.Conv2d):
    """Weight standardisation by torch's batch norm, with a gain for each filter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)
        self.scale = self.weight[0].numel() ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        gain = (self.gain * self.scale).view(-1)
        weight = F.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(
            x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class WrittenOut(nn.Conv2d):
    """The same with means and spreads."""

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.std_mean(self.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
        weight = (self.weight - mean) / (spread + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, groups=self.groups)


class ByParts(nn.Conv2d):
    """The same, one axis after the other, as it is often copied."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        mean = weight.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True).mean(dim=3, keepdim=True)
        weight = weight - mean
        spread = weight.view(weight.size(0), -1).std(dim=1).view(-1, 1, 1, 1) + 1e-5
        return F.conv2d(x, weight / spread.expand_as(weight), self.bias, self.stride, self.padding, 1, self.groups)


class Directions(nn.Module):
    """Filters as a length and a direction, as in weight norm."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.v, self.g = nn.Parameter(torch.randn(b, a, 3, 3)), nn.Parameter(torch.rand(b) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        length = self.v.flatten(1).norm(dim=1)
        return F.conv2d(x, self.v * (self.g / length)[:, None, None, None], padding=1)


# --- attention --------------------------------------------------------------------------------------------------------


def channel_attention(m: Any, x: Tensor) -> Tensor:
    y = m.eca(x.mean((2, 3)).view(x.shape[0], 1, -1))
    return x * y.sigmoid().view(x.shape[0], -1, 1, 1).expand_as(x)


def channel_attention_of_pools(m: Any, x: Tensor) -> Tensor:
    y = F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(-1, -2)
    return x * m.b(F.relu(m.a(y))).transpose(-1, -2).unsqueeze(-1).sigmoid()


def coordinate_gates(m: Any, x: Tensor) -> Tensor:
    """A gate from the mean of each row, and one from that of each column."""
    rows, columns = x.mean(3, keepdim=True), x.mean(2, keepdim=True)
    return x * m.b(F.relu(m.norm(m.a(rows)))).sigmoid() * m.c(F.relu(m.norm(m.a(columns)))).sigmoid()


def coordinate_pools(m: Any, x: Tensor) -> Tensor:
    return x * m.a(m.rows(x)).sigmoid() + x * m.b(m.columns(x)).tanh()


def coordinate_sums(m: Any, x: Tensor) -> Tensor:
    """Without axes of one, and with dense layers."""
    rows, columns = x.mean(dim=3).transpose(1, 2), x.amax(dim=2).transpose(1, 2)
    rows, columns = m.b(F.silu(m.a(rows))).transpose(1, 2), m.c(F.silu(m.a(columns))).transpose(1, 2)
    return x * torch.sigmoid(rows.unsqueeze(3) + columns.unsqueeze(2))


def one_axis_after_the_other(m: Any, x: Tensor) -> Tensor:
    return x * m.a(x.mean(2, keepdim=True).max(3, keepdim=True)[0]) + x.std(3).norm(dim=2)[:, :, None, None]


def global_context(m: Any, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    attention = F.softmax(m.a(x).reshape(n, 1, h * w), dim=-1).unsqueeze(3)
    context = torch.matmul(x.reshape(n, c, h * w).unsqueeze(1), attention).view(n, c, 1, 1)
    return x + m.b(context)


def non_local(m: Any, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    queries, keys = m.a(x).flatten(2).transpose(1, 2), m.b(x).flatten(2)
    weights = torch.softmax(torch.bmm(queries, keys), dim=-1)
    return x + (weights @ m.c(x).flatten(2).transpose(1, 2)).transpose(1, 2).reshape(n, c, h, w)


def split_attention(m: Any, x: Tensor) -> Tensor:
    """Branches of a grouped convolution, weighed against one another."""
    n, _, h, w = x.shape
    y = F.relu(m.a(x)).reshape(n, 2, 16, h, w)
    weights = m.c(F.relu(m.b(y.sum(dim=1).mean((2, 3), keepdim=True))))
    weights = weights.view(n, 1, 2, -1).transpose(1, 2).softmax(dim=1).reshape(n, 32, 1, 1)
    return (y * weights.reshape(n, 2, 16, 1, 1)).sum(dim=1)


# --- norms ------------------------------------------------------------------------------------------------------------


def spread_of_groups(groups: int) -> Callable[[Any, Tensor], Tensor]:
    """A norm and activation by the spread of groups of features, as in EvoNorm."""

    def run(m: Any, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        parts = x.reshape(n, groups, c // groups, h, w)
        spread = parts.var((2, 3, 4), unbiased=False, keepdim=True).add(1e-5).sqrt().expand(parts.shape)
        x = x * (x * m.slope.bias.view(1, -1, 1, 1)).sigmoid() / spread.reshape(n, c, h, w)
        return x * m.slope.weight.view(1, -1, 1, 1)

    return run


def filter_response(m: Any, x: Tensor) -> Tensor:
    x = x * x.square().mean((2, 3), keepdim=True).add(1e-5).rsqrt().expand(x.shape)
    x = x * m.affine.weight.view(1, -1, 1, 1) + m.affine.bias.view(1, -1, 1, 1)
    return torch.maximum(x, m.threshold.weight.view(1, -1, 1, 1))


class Frozen(nn.Module):
    """A batch norm with fixed statistics, written out: numbers for each channel that are computed from others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        scale = weight * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + (bias - self.running_mean.reshape(1, -1, 1, 1) * scale)


def bounded(m: Any, x: Tensor) -> Tensor:
    """A parameter for each channel that is computed, brought to the shape of the maps, and compared with them."""
    least = m.norm.weight.exp().add(0.1).sqrt_().view(1, -1, 1, 1).expand_as(x)
    return x / least.max(x.square().mean((2, 3), keepdim=True).expand(x.shape))


# --- positions and features -------------------------------------------------------------------------------------------


def blocks_first(x: Tensor, side: int) -> Tensor:
    n, c, h, w = x.size()
    x = x.view(n, c, h // side, side, w // side, side).permute(0, 3, 5, 1, 2, 4).contiguous()
    return x.view(n, c * side**2, h // side, w // side)


def blocks_last(x: Tensor, side: int) -> Tensor:
    n, c, h, w = x.size()
    x = x.reshape(n, c, h // side, side, w // side, side).permute(0, 1, 3, 5, 2, 4)
    return x.reshape(n, c * side * side, h // side, w // side)


def blocks_channels_last(x: Tensor, side: int) -> Tensor:
    n, c, h, w = x.size()
    x = x.permute(0, 2, 3, 1).reshape(n, h // side, side, w // side, side, c).permute(0, 1, 3, 4, 5, 2)
    return x.reshape(n, h // side, w // side, -1).permute(0, 3, 1, 2)


def shuffled(x: Tensor, side: int) -> Tensor:
    """A pixel shuffle, as it is often written out."""
    n, c, h, w = x.shape
    x = x.view(n, c // side**2, side, side, h, w).permute(0, 1, 4, 2, 5, 3).contiguous()
    return x.view(n, c // side**2, h * side, w * side)


def shuffled_blocks_first(x: Tensor, side: int) -> Tensor:
    """The same with the axes of blocks as the slower ones of the channels, one axis after the other."""
    n, _, h, w = x.shape
    x = x.unflatten(1, (side, side, -1)).transpose(1, 3).permute(0, 1, 4, 3, 5, 2)
    return x.flatten(4).flatten(2, 3).reshape(n, -1, side * h, side * w)


def shuffled_around(x: Tensor, side: int) -> Tensor:
    """With features between the axes of blocks."""
    x = torch.reshape(x, (x.size(0), side, x.size(1) // side**2, side, x.size(2), x.size(3)))
    return torch.permute(x, (0, 2, 4, 3, 5, 1)).flatten(-2).flatten(2, 3)


def shuffled_channels_last(m: Any, x: Tensor) -> Tensor:
    """As patches are expanded behind a dense layer."""
    x = m.up(x.permute(0, 2, 3, 1))
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, 2, 2, c // 4).permute(0, 1, 3, 2, 4, 5).reshape(n, 2 * h, 2 * w, c // 4)
    return m.norm(x).movedim(-1, 1)


class Blur(nn.Module):
    """A fixed filter for every map, with reflected borders and a stride."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        row = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.register_buffer("filters", (row[:, None] * row / 64).repeat(channels, 1, 1, 1))
        self.stride, self.channels = stride, channels

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (1, 2, 1, 2), "reflect")
        return F.conv2d(x, self.filters, stride=self.stride, groups=self.channels)


class CoordinateAttention(nn.Module):
    """Means of rows and of columns in one tensor, as it is mostly written: each orientation sees its own."""

    def __init__(self, width: int = 16, between: int = 8) -> None:
        super().__init__()
        self.rows, self.columns = nn.AdaptiveAvgPool2d((None, 1)), nn.AdaptiveAvgPool2d((1, None))
        self.a, self.norm = conv(width, between, 1), nn.BatchNorm2d(between)
        self.b, self.c = conv(between, width, 1), conv(between, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, _, h, w = x.size()
        y = self.norm(self.a(torch.cat([self.rows(x), self.columns(x).permute(0, 1, 3, 2)], dim=2)))
        rows, columns = torch.split(y * F.relu6(y + 3) / 6, [h, w], dim=2)
        return x * self.b(rows).sigmoid() * self.c(columns.permute(0, 1, 3, 2)).sigmoid()


def coordinates_of_lines(m: Any, x: Tensor) -> Tensor:
    """Columns first, without axes of one; different means; the strips are taken apart by their sizes."""
    h = x.shape[2]
    y = torch.cat([x.amax(2), x.mean(3)], dim=2)
    y = m.norm(m.a(y)).relu() * m.norm.weight.view(1, -1, 1)
    columns, rows = m.b(y[:, :, : x.shape[3]]), m.c(y[..., -h:])
    return x * torch.sigmoid(rows.unsqueeze(3) + columns.unsqueeze(2))


def coordinates_channels_last(m: Any, x: Tensor) -> Tensor:
    """With dense layers and a layer norm; what is made of rows goes through a norm and windows of its own."""
    y = torch.cat([x.mean(3).transpose(1, 2), x.mean(2).transpose(1, 2)], dim=1)
    y = F.gelu(m.norm(m.a(y)) * 0.5 + 1)
    rows, columns = (m.b(part).transpose(1, 2) for part in y.split([x.size(2), x.size(3)], dim=1))
    rows = m.d(m.single(rows.unsqueeze(-1)))
    return x + x * rows.tanh() * columns.unsqueeze(-2).sigmoid()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "standardised": lambda: nn.Sequential(
        Standardised(3, 16, 3, padding=1), nn.ReLU(), Standardised(16, 24, 3, stride=2, groups=4), conv(24, 4)
    ),
    "standardised, odd widths": lambda: nn.Sequential(
        Standardised(3, 10, 3), nn.ReLU(), Standardised(10, 7, 3, padding=1, bias=False), nn.ReLU(), conv(7, 4)
    ),
    "standardised, one for each map": lambda: after(Standardised(16, 16, 5, groups=16, padding=2)),
    "standardised, two for each map": lambda: after(WrittenOut(16, 32, 3, groups=16, padding=1)),
    "standardised, written out": lambda: after(WrittenOut(16, 16, 3, stride=2), ByParts(16, 16, 3, padding=1)),
    "lengths and directions": lambda: nn.Sequential(
        Directions(3, 8), nn.ReLU(), Directions(8, 8), nn.ReLU(), conv(8, 3)
    ),
    "channel attention": lambda: block(channel_attention, eca=nn.Conv1d(1, 1, 3, padding=1, bias=False)),
    "channel attention of pools": lambda: block(
        channel_attention_of_pools, a=nn.Conv1d(1, 4, 3, padding=1), b=nn.Conv1d(4, 1, 1)
    ),
    "coordinate gates": lambda: block(
        coordinate_gates, a=conv(16, 8, 1), b=conv(8, 16, 1), c=conv(8, 16, 1), norm=nn.BatchNorm2d(8)
    ),
    "coordinate pools": lambda: block(
        coordinate_pools,
        rows=nn.AdaptiveAvgPool2d((None, 1)),
        columns=nn.AdaptiveMaxPool2d((1, None)),
        a=conv(16, 16, 1),
        b=nn.Conv2d(16, 16, (1, 3), padding=(0, 1)),
    ),
    "coordinate sums": lambda: block(coordinate_sums, a=nn.Linear(16, 8), b=nn.Linear(8, 16), c=nn.Linear(8, 16)),
    "coordinate attention": lambda: after(conv(16, 16), CoordinateAttention(), conv(16, 16)),
    "coordinates of lines": lambda: block(
        coordinates_of_lines,
        a=nn.Conv1d(16, 6, 1),
        b=nn.Conv1d(6, 16, 1),
        c=nn.Conv1d(6, 16, 1),
        norm=nn.BatchNorm1d(6),
    ),
    "coordinates, channels last": lambda: block(
        coordinates_channels_last,
        a=nn.Linear(16, 8),
        b=nn.Linear(8, 16),
        norm=nn.LayerNorm(8),
        single=nn.BatchNorm2d(16),
        d=nn.Conv2d(16, 16, (3, 1), padding=(1, 0), groups=16),
    ),
    "one axis after the other": lambda: block(one_axis_after_the_other, a=conv(16, 16, 1)),
    "global context": lambda: block(
        global_context, a=conv(16, 1, 1), b=nn.Sequential(conv(16, 6, 1), nn.ReLU(), conv(6, 16, 1))
    ),
    "non-local": lambda: block(non_local, a=conv(16, 8, 1), b=conv(16, 8, 1), c=conv(16, 16, 1)),
    "split attention": lambda: block(split_attention, a=conv(16, 32, groups=2), b=conv(16, 8, 1), c=conv(8, 32, 1)),
    **{
        f"spread of {groups} groups": lambda groups=groups: block(spread_of_groups(groups), slope=nn.BatchNorm2d(16))
        for groups in (1, 2, 4, 8)
    },
    "filter response": lambda: block(
        filter_response, affine=nn.BatchNorm2d(16), threshold=nn.BatchNorm2d(16, affine=True)
    ),
    "frozen norm": lambda: after(Frozen(16), nn.ReLU(), Frozen(16)),
    "bounded by parameters": lambda: block(bounded, norm=nn.BatchNorm2d(16)),
    "blocks of the input": lambda: Code(lambda m, x: m.a(blocks_first(x, 2)), a=conv(12, 8)),
    "blocks first": lambda: block(lambda m, x: m.a(blocks_first(x, 4)), a=conv(256, 16)),
    "blocks last": lambda: block(lambda m, x: m.a(blocks_last(x, 2)), a=conv(64, 16)),
    "blocks, channels last": lambda: block(lambda m, x: m.a(blocks_channels_last(x, 2)), a=conv(64, 16)),
    "blocks there and back": lambda: block(
        lambda m, x: m.a(shuffled(blocks_first(x, 4), 2)) + m.b(shuffled_around(blocks_last(x, 4), 2)),
        a=conv(64, 16),
        b=conv(64, 16),
    ),
    "shuffled by reshapes": lambda: block(
        lambda m, x: m.a(shuffled(x, 2)) + shuffled(m.b(x), 2), a=conv(4, 6), b=conv(16, 24)
    ),
    "shuffled blocks first": lambda: block(
        lambda m, x: m.a(shuffled_blocks_first(x, 4)) + m.b(shuffled_around(m.c(x), 4)),
        a=conv(1, 6),
        b=conv(3, 6),
        c=conv(16, 48),
    ),
    "shuffled channels last": lambda: block(shuffled_channels_last, up=nn.Linear(16, 40), norm=nn.LayerNorm(10)),
    "functional pixel shuffle": lambda: block(
        lambda m, x: m.a(F.pixel_shuffle(x, 2)) + m.b(F.pixel_shuffle(F.pixel_unshuffle(x, 4), 8)),
        a=conv(4, 16),
        b=conv(4, 16),
    ),
    "blur pool": lambda: after(Blur(16, 2), conv(16, 16), Blur(16, 1)),
    "pools of several positions": lambda: block(
        lambda m, x: m.a(F.adaptive_avg_pool2d(x, 5)) + F.adaptive_max_pool2d(x, (5, 5)), a=conv(16, 16)
    ),
}


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
@pytest.mark.parametrize("name", NETWORKS)
def test_rules_are_exact_in_both_modes_and_out_again(name: str, group: qt.Group) -> None:
    check_exact(made(NETWORKS[name]), group)


@pytest.mark.parametrize("sizes", [(20, 12), (15, 17)])
@pytest.mark.parametrize("name", [name for name in NETWORKS if "blocks" not in name and "shuffle" not in name])
def test_rules_take_maps_that_are_not_square(name: str, sizes: tuple[int, int]) -> None:
    net, x = made(NETWORKS[name]), torch.randn(2, 3, *sizes, dtype=torch.float64)
    converted = lively(qt.convert(net, qt.D4, example=x), [x])
    assert max(qt.equivariance_error(converted, qt.D4, x).relative) < EXACT


@pytest.mark.parametrize("name", [name for name in NETWORKS if "blocks" in name or "shuffle" in name])
def test_blocks_of_maps_that_are_not_square(name: str) -> None:
    net, x = made(NETWORKS[name]), torch.randn(2, 3, 16, 24, dtype=torch.float64)
    converted = qt.convert(net, qt.D4, example=x, unknown="refuse")
    assert max(qt.equivariance_error(lively(converted, [x]), qt.D4, x).relative) < EXACT


@pytest.mark.parametrize("sizes", [(9, 9), (8, 11)])
@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
def test_coordinate_attention_is_that_of_each_orientation(group: qt.Group, sizes: tuple[int, int]) -> None:
    """Where no layer mixes orientations, each has the old module's answer to its maps, in its own frame."""
    order = group.order
    x = torch.randn(2, 3, *sizes, dtype=torch.float64)
    net = nn.Sequential(conv(3, 2 * order), CoordinateAttention(2 * order, 3 * order)).double()
    converted = qt.convert(net, group, example=x, output="stacked").eval()
    assert not converted.conversion.plain
    own = CoordinateAttention(2, 3).double().eval()
    with torch.no_grad():
        for name in "abc":
            layer, mine = converted.get_submodule(f"1.{name}"), own.get_submodule(name)
            layer.weight.zero_()
            layer.weight.unflatten(1, (-1, order))[:, :, 0] = mine.weight.flatten(1)
            layer.bias.copy_(mine.bias)
        maps = converted.get_submodule("0")(x)
        answers = converted(x).unflatten(1, (-1, order))
        for g in range(order):
            mine = own(qt.act(maps.unflatten(1, (-1, order))[:, :, g], group, g))
            assert gap(qt.act(answers[:, :, g], group, g), mine) < EXACT


@pytest.mark.parametrize("init", ["scratch", "pretrained"])
@pytest.mark.parametrize(("moved", "known"), [(shuffled, F.pixel_shuffle), (blocks_last, F.pixel_unshuffle)])
def test_blocks_that_are_moved_by_reshapes_are_those_of_torch(moved: Any, known: Any, init: Any) -> None:
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    nets = [Code(lambda m, x, f=f: m.b(f(m.a(x), 2)), a=conv(3, 16), b=nn.LazyConv2d(4, 3)) for f in (moved, known)]
    nets = [net.double() for net in nets if net.double()(x) is not None]
    one, other = (qt.convert(net, qt.D4, init=init, example=x) for net in nets)
    one.load_state_dict(other.state_dict())
    assert gap(one(x), other(x)) < EXACT


# --- what the filters are ---------------------------------------------------------------------------------------------


def test_filters_are_standardised_over_all_that_they_see() -> None:
    net = made(lambda: nn.Sequential(WrittenOut(3, 8, 3), nn.ReLU(), WrittenOut(8, 8, 3)))
    layer = qt.convert(net, qt.D4, example=torch.randn(2, 3, 9, 9, dtype=torch.float64)).get_submodule("2")
    own = dict(layer.named_parameters())["weight"]

    def standardised(filters: Tensor) -> Tensor:
        spread, mean = torch.std_mean(filters, dim=(1, 2, 3), keepdim=True, unbiased=False)
        return (filters - mean) / (spread + 1e-5)

    everything = range(qt.D4.order)
    assert own.shape == layer.weight.shape == (8, 8, 3, 3)
    assert (
        gap(roll_filters(layer.weight, qt.D4, everything), standardised(roll_filters(own, qt.D4, everything))) < EXACT
    )
    assert gap(own.detach(), layer.weight.detach()) > 0.1  # it is computed


def test_computed_filters_learn_are_kept_and_keep_their_names() -> None:
    net, x = made(NETWORKS["standardised"]), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    net[2].gain.requires_grad_(False)
    converted = qt.convert(net, qt.C4, example=x)
    assert {name for name, _ in net.named_parameters()} == {name for name, _ in converted.named_parameters()}
    assert not converted.get_parameter("2.gain").requires_grad
    for twin in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(twin(x), converted(x))
    before = converted(x)
    with torch.no_grad():
        converted.get_parameter("0.gain").mul_(2)
    assert gap(converted(x).detach(), before.detach()) > 0.01
    with torch.no_grad():
        converted.get_parameter("0.gain").div_(2)
        dict(converted.named_parameters())["2.weight"].mul_(3).add_(0.1)  # standardisation takes both away again
    assert gap(converted(x).detach(), before.detach()) < 1e-4


def test_projected_filters_are_those_of_a_network_that_was_equivariant() -> None:
    net, x = made(NETWORKS["standardised"]), torch.randn(2, 3, 17, 17, dtype=torch.float64)
    converted = qt.convert(net, qt.C4, example=x).eval()
    again = qt.convert(qt.to_plain(converted, x), qt.C4, init="pretrained", example=x).eval()
    assert gap(again(x).detach(), converted(x).detach()) < EXACT


@pytest.mark.parametrize(
    "used",
    [
        lambda p, x: x * p.abs().view(1, -1, 1, 1),
        lambda p, x: x * (p * p + 1).view(-1, 1, 1),
        lambda p, x: x / p.exp().view(1, -1, 1, 1).expand_as(x),
        lambda p, x: x + p.view(1, 8, 1, 1).sigmoid().expand(*x.shape),
    ],
)
def test_what_is_computed_from_a_parameter_is_computed(used: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A filter that passes its input on leaves what the parameter does: the same numbers come out as before."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.p = nn.Conv2d(8, 8, 1, bias=False), nn.Parameter(torch.randn(2).repeat_interleave(4))

        def forward(self, x: Tensor) -> Tensor:
            return used(self.p, self.a(x))

    net, x = Net().double().eval(), torch.randn(2, 8, 16, 16, dtype=torch.float64)
    nn.init.dirac_(net.a.weight)
    converted = qt.convert(net, qt.C4, init="pretrained", output="stacked", example=x).eval()
    with torch.no_grad():
        converted.get_submodule("a").weight.fill_(1.0)
        stacked = converted(x)
        sums = x.sum(1, keepdim=True).expand(-1, 8, -1, -1)
        assert gap(stacked, used(net.p, sums)) < EXACT


def spread_twice(x: Tensor) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return mean.expand_as(x) * mean.exp().expand_as(x)


def strips(x: Tensor) -> Tensor:
    return torch.cat([x.mean(3, keepdim=True), x.mean(2, keepdim=True).transpose(2, 3)], 2)


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda m, x: m.a(x).mean(3), "reduces one axis of positions"),
        (lambda m, x: m.b(m.a(x).mean(3)), "a convolution over 1 axes"),
        (
            lambda m, x: blocks_first(m.a(x)[..., :8, :], 2).view(2, 32, -1).softmax(1)[:, :3].relu() * 1,
            "known|feature|different shapes",
        ),
        (
            lambda m, x: m.a(x).view(2, 8, 8, 2, 16).permute(0, 1, 3, 2, 4).reshape(2, 16, 8, 16),
            "cut into blocks",
        ),
        (
            lambda m, x: torch.cat([m.a(x).mean(3, keepdim=True), m.a(x).mean(2, keepdim=True).transpose(2, 3)], 1),
            "hold different things",
        ),
        (lambda m, x: strips(m.a(x)), "joins means of rows"),
        (lambda m, x: strips(m.a(x))[:, :, 3:19].sigmoid() * m.a(x), "otherwise than they were joined"),
        (lambda m, x: m.d(strips(m.a(x)))[:, :, :16] * m.a(x), "joins means of rows and of columns"),
        (lambda m, x: (strips(m.a(x)) * m.a(x).mean((2, 3), keepdim=True))[:, :, :16] * m.a(x), "joins means of rows"),
        (lambda m, x: F.group_norm(strips(m.a(x)), 2)[:, :, :16] * m.a(x), "joins means of rows"),
        (lambda m, x: strips(m.a(x)).mean((2, 3)), "reduces one axis"),
        (lambda m, x: F.linear(strips(m.a(x)).flatten(1), m.flat), "joins means of rows"),
        (lambda m, x: (strips(m.a(x)) * m.line)[:, :, :16] * m.a(x), "'line' has a number for each part"),
        (lambda m, x: F.conv2d(x, m.a.weight * m.table), "numbers than one for each filter"),
        (lambda m, x: m.one(m.a(x).mean((2, 3)).unsqueeze(1)), "must leave as many"),
        (lambda m, x: F.conv2d(x, m.a.weight) + F.conv2d(x, m.a.weight, padding=1, dilation=2), "several ways"),
        (lambda m, x: F.conv2d(x, m.a.weight.tanh()) + F.conv2d(x, m.a.weight.sin()), "several ways"),
        (lambda m, x: F.conv2d(F.conv2d(x, m.a.weight * m.g), m.c.weight * m.g), "'g' is used for several"),
        (lambda m, x: spread_twice(m.a(x)), "meet none"),
        (lambda m, x: m.a(x).flatten(2) @ m.square, "matrix of the network's own"),
    ],
)
def test_what_is_no_such_part_is_refused(forward: Callable[..., Any], why: str) -> None:
    net = Code(forward, a=conv(3, 8), c=conv(8, 8), b=nn.Conv1d(8, 8, 3), one=nn.Conv1d(1, 1, 3))
    net.add_module("d", nn.Conv2d(8, 8, (3, 1), padding=(1, 0)))
    net.register_parameter("flat", nn.Parameter(torch.randn(4, 256)))
    net.register_parameter("line", nn.Parameter(torch.randn(1, 1, 32, 1)))
    net.register_buffer("table", torch.randn(1, 3, 3, 3))
    net.register_parameter("g", nn.Parameter(torch.rand(8, 1, 1, 1)))
    net.register_parameter("square", nn.Parameter(torch.randn(256, 256)))
    with pytest.raises(qt.ConversionError, match=why):
        qt.convert(net, qt.C4, example=torch.randn(2, 3, 16, 16), unknown="refuse")
