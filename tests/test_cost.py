"""Multiply-adds by one definition, and the table that says what runs each layer."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import quarterturn as qt
from quarterturn.cost import cost, work_of


class Attention(nn.Module):
    """A product, a convolution and attention that no layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.filters = nn.Parameter(torch.randn(8, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(x)
        mixed = F.conv1d(mixed.transpose(1, 2), self.filters).transpose(1, 2)
        return F.scaled_dot_product_attention(mixed, x, x) @ x.transpose(1, 2)


def test_plain_networks_count_as_torch_counts_them() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, groups=1), nn.ConvTranspose2d(8, 4, 2, 2), nn.Flatten(), nn.Linear(3136, 5))
    x = torch.randn(2, 3, 16, 16)
    with FlopCounterMode(display=False) as counter:
        net(x)
    assert sum(work.multiply_adds for work in work_of(net, [x])) == counter.get_total_flops() / 2


def test_products_that_no_layer_makes_are_counted_where_they_are_made() -> None:
    x = torch.randn(2, 5, 8)
    found = {work.path: work.multiply_adds for work in work_of(Attention(), [x])}
    assert found == {"mix": 2 * 5 * 8 * 8, "": 2 * (5 * 8 * 8 + 2 * 5 * 5 * 8 + 5 * 5 * 8)}


@pytest.mark.parametrize("group", [qt.C4, qt.D4], ids=lambda g: g.name)
@pytest.mark.parametrize("rotate", ["maps", "filters"])
def test_layers_count_as_they_are_defined_whatever_runs_them(group: qt.Group, rotate: str) -> None:
    def network(**via) -> nn.Module:
        return nn.Sequential(
            qt.SliceConv(group, 1, 8, 3, rotate=rotate),
            qt.RollConv(group, 8, 8, 3, rotate=rotate, **via),
            qt.RollConvTranspose(group, 8, 8, 2, stride=2, rotate=rotate),
            qt.Pool(group, rotate=rotate),
        )

    x = torch.randn(1, 1, 9, 9)
    order = group.order
    by_hand = order * (49 * 8 * 9 + 25 * 8 * 8 * order * 9 + 25 * 8 * order * 8 * 4)
    for via in ({}, {"via": "conv"}):
        assert cost(network(**via), [x]).multiply_adds == by_hand
    done = cost(network(), [x]).with_kernel
    runs = rotate == "filters" and qt.kernels().path is not None
    share = {"C4": 6 / 16, "D4": 12 / 64}[group.name] if runs else 1
    assert done == round(by_hand - order * 25 * 8 * 8 * order * 9 * (1 - share))


def test_explain_has_a_row_for_each_layer_that_multiplies(capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Sequential(
        qt.SliceConv(qt.D4, 1, 2, 3, rotate="filters"),
        nn.ReLU(),
        qt.RollConv(qt.D4, 2, 64, 1, rotate="filters"),
        nn.Sequential(qt.RollConv(qt.D4, 64, 64, 3, stride=2, rotate="filters")),
        qt.Pool(qt.D4, rotate="filters"),
    )
    x = torch.randn(1, 1, 12, 12)
    found = qt.explain(net, x)
    lines = capsys.readouterr().out.splitlines()
    assert "\n".join(lines) == str(found)
    assert [line.split()[0] for line in lines] == ["layer", "0", "2", "3.0", "all"]
    for work, line in zip(found.work, lines[1:-1], strict=True):
        assert work.execution.code in line
        assert work.execution.why in line
    assert sum(found.codes.values()) == 3


def test_a_convolution_that_runs_for_each_corner_says_so() -> None:
    net = qt.RollConv(qt.C4, 32, 1, 3, stride=2, rotate="filters", via="conv")
    often = {side: net.execution(torch.zeros(1, 128, side, side)).why for side in (9, 8)}
    assert "4 times" in often[8]
    assert "times" not in often[9]


def test_a_convolution_whose_windows_grow_says_so() -> None:
    net = qt.RollConv(qt.C4, 1, 1, 3, stride=2, rotate="filters", via="conv")
    said = {side: net.execution(torch.zeros(1, 4, side, side)).why for side in (9, 8)}
    assert "grow to 4 x 4" in said[8]
    assert "grow" not in said[9]


def test_attention_is_counted() -> None:
    """Also where torch has one operator for all of it."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(3, 5, 8)
    products = 5 * 8 * 8 * 4 + 2 * 5 * 5 * 8
    assert cost(attention.eval(), [x, x, x]).multiply_adds == products
    assert cost(layer, [x]).multiply_adds == products + 2 * 5 * 8 * 16
