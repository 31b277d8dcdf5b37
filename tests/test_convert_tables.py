"""convert: parameters and buffers with a number for each position stay exact when they learn."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt

EXACT = 1e-10
SIZE = 12


class Tables(nn.Module):
    """A network whose forward is a function of its layers and of tables, which are zeros or ones at first."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = forward
        self.conv, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 3)
        self.wide = nn.Conv2d(5, 16, 3, padding=1)
        self.mix, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.of_input = nn.Parameter(torch.zeros(1, 3, SIZE, SIZE))
        self.of_maps = nn.Parameter(torch.zeros(1, 16, SIZE, SIZE))
        self.for_all = nn.Parameter(torch.ones(1, 1, SIZE, SIZE))
        self.rows = nn.Parameter(torch.zeros(SIZE, 1))
        self.columns = nn.Parameter(torch.zeros(1, 16, 1, SIZE))
        self.of_tokens = nn.Parameter(torch.zeros(1, SIZE * SIZE, 16))
        self.gate = nn.Parameter(torch.zeros(1))
        self.register_buffer("ramp", torch.linspace(-1, 1, SIZE).expand(1, 2, SIZE, SIZE).clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def with_coordinates(m: Any, x: Tensor) -> Tensor:
    return m.wide(torch.cat([x, m.ramp.expand(x.shape[0], -1, -1, -1)], dim=1))


def with_tokens(m: Any, x: Tensor) -> Tensor:
    n, c, h, w = (y := m.conv(x)).shape
    tokens = m.mix(m.norm(y.flatten(2).transpose(1, 2) + m.of_tokens))
    return tokens.transpose(1, 2).reshape(n, c, h, w)


NETWORKS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "added to the input": lambda m, x: m.conv(x + m.of_input),
    "multiplied with the input": lambda m, x: m.conv(x * m.for_all),
    "in place": lambda m, x: m.conv(x.clone().mul_(m.for_all)),
    "a ramp behind a gate": lambda m, x: m.conv(x + m.gate * m.ramp[:, :1]),
    "rows of the input": lambda m, x: m.conv(x + m.rows),
    "coordinates as channels": with_coordinates,
    "position embeddings": lambda m, x: m.conv(x) + m.of_maps,
    "one table for all channels": lambda m, x: m.conv(x) * m.for_all,
    "columns of maps": lambda m, x: m.conv(x) + m.columns,
    "channels last": lambda m, x: (m.conv(x).permute(0, 2, 3, 1) + m.of_maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "computed": lambda m, x: m.conv(x) + (1 + m.gate) * m.of_maps,
    "used twice": lambda m, x: F.relu(m.conv(x) + m.of_maps) - m.of_maps,
    "embeddings of tokens": with_tokens,
}  # fmt: skip


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return Tables(lambda m, x: m.last(F.relu(NETWORKS[name](m, x))).mean((2, 3))).double()


def learnt(net: nn.Module) -> nn.Module:
    """The network with other numbers in all its parameters and buffers."""
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.is_floating_point():
                tensor.normal_()
    return net


def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, dtype=torch.float64)


@pytest.mark.parametrize("init", ["scratch", "pretrained"])
@pytest.mark.parametrize("name", NETWORKS)
def test_tables_that_learn_stay_exact(name: str, init: Any) -> None:
    net, x = network(name), images()
    converted = learnt(qt.convert(net, qt.D4, init=init, example=x))
    assert converted(x).shape == net(x).shape
    assert max(qt.equivariance_error(learnt(net), qt.D4, x).relative) > 1e-2  # so that there is something to show
    assert max(qt.equivariance_error(converted, qt.D4, x).relative) < EXACT
    turned = qt.convert(net, qt.D4, rotate="maps", init=init, example=x)
    turned.load_state_dict(converted.state_dict())
    size = converted(x).abs().max()
    assert (turned(x) - converted(x)).abs().max() < EXACT * size
    assert (qt.to_plain(converted, x)(x) - converted(x)).abs().max() < EXACT * size
    assert (qt.to_plain(turned, x)(x) - converted(x)).abs().max() < EXACT * size


@pytest.mark.parametrize("name", NETWORKS)
def test_tables_matter_and_train(name: str) -> None:
    """They are no constants of the converted network: it answers to them, and they get gradients."""
    x = images()
    converted = learnt(qt.convert(network(name), qt.D4, example=x))
    other = copy.deepcopy(converted)
    names = [n for n, t in converted.state_dict().items() if (t.dim() >= 2 and SIZE in t.shape) or SIZE**2 in t.shape]
    assert names
    for table in names:
        nn.init.normal_(other.state_dict()[table])
    assert (other(x) - converted(x)).abs().max() > 1e-2 * converted(x).abs().max()
    converted(x).square().sum().backward()
    for table, parameter in converted.named_parameters():
        if table in names:
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0


def test_each_pathway_sees_the_table_of_the_old_network() -> None:
    """In its own frame, that is: what goes into the first layer is turned there."""
    torch.manual_seed(0)
    net = Tables(lambda m, x: m.conv(x + m.of_input)).double()
    learnt(net)
    x = images()
    converted = qt.convert(net, qt.D4, init="pretrained", example=x)
    table = converted.state_dict()["of_input"]
    assert torch.equal(table, net.get_parameter("of_input"))
    inside: list[Tensor] = []
    converted.get_submodule("conv").register_forward_pre_hook(lambda _, args: inside.append(args[0]))
    converted(x)
    stacked = inside[0].unflatten(1, (3, 8))
    for h in range(8):
        own = qt.act(stacked[:, :, h], qt.D4, h)
        torch.testing.assert_close(own, qt.act(x, qt.D4, h) + table)


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (lambda m, x: m.last(m.conv(x[..., : SIZE - 2]) + m.of_maps[..., : SIZE - 2]), "'of_maps'.* 12 x 10"),
        (lambda m, x: m.last(m.conv(x).mean((2, 3), keepdim=True) * m.of_maps), "'of_maps'"),
        (lambda m, x: m.last(torch.stack([m.conv(x), m.of_maps.expand(2, -1, -1, -1)]).sum(0)), "'of_maps'"),
    ],
)
def test_what_cannot_be_turned_is_refused_by_name(forward: Callable[..., Any], name: str) -> None:
    with pytest.raises(qt.ConversionError, match=name):
        qt.convert(Tables(forward).double(), qt.D4, example=images())
