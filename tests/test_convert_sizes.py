"""convert: images of other sizes than the example's are taken, or one of our errors says which size is."""

import copy
import pickle

import pytest
import torch
from test_convert_mixers import Mixing
from test_convert_tokens import Transformer
from test_convert_windows import Around, maps, windows
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, Group

TAKES = "takes images of 16 x 16, got {}: .*example of their size"


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("sides", [(24, 24), (8, 32), (32, 8)], ids=str)
def test_a_learnt_table_is_for_one_size(group: Group, sides: tuple[int, int]) -> None:
    """Also where there are as many tokens: these lie in another grid, and would not turn with the image."""
    net = qt.convert(Transformer(), group, example=torch.randn(2, 3, 16, 16))
    for twin in (net, copy.deepcopy(net).eval(), pickle.loads(pickle.dumps(net))):
        with pytest.raises(qt.ShapeError, match=TAKES.format(" x ".join(map(str, sides)))):
            twin(torch.randn(2, 3, *sides))
        assert twin(torch.randn(3, 3, 16, 16)).shape == (3, 5)


class Interpolated(Transformer):
    """The old network takes any size: it interpolates its table."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        _, _, h, w = x.shape
        table = self.positions.transpose(1, 2).unflatten(2, (4, 4))
        table = F.interpolate(table, size=(h, w), mode="bilinear", align_corners=False)
        x = (x + table).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def test_an_interpolated_table_is_read_for_the_example() -> None:
    old = Interpolated(free=0)
    small = qt.convert(old, C4, example=torch.randn(2, 3, 16, 16))
    large = torch.randn(2, 3, 24, 24)
    with pytest.raises(qt.ShapeError, match=TAKES.format("24 x 24")):
        small(large)
    again = qt.convert(old, C4, example=large)
    again.load_state_dict(small.state_dict())  # the same weights, for another size
    again.double().eval()
    assert max(qt.equivariance_error(again, C4, large.double()).relative) < 1e-10


def test_a_mixer_is_for_one_size() -> None:
    net = qt.convert(Around(Mixing(64, 32, "two"), tokens=True), C4, example=torch.randn(2, 3, 16, 16))
    with pytest.raises(qt.ShapeError, match=TAKES.format("8 x 32")):
        net(torch.randn(2, 3, 8, 32))


def test_maps_that_are_brought_to_one_size_take_every_image() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = nn.Conv2d(3, 16, 3, padding=1), nn.AdaptiveAvgPool2d(4)
            self.table, self.layer = nn.Parameter(torch.randn(1, 16, 4, 4)), nn.Conv2d(16, 16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.pool(self.conv(x)) + self.table).relu().mean((2, 3))

    net = qt.convert(Pooled().double(), D4, example=torch.randn(2, 3, 16, 16, dtype=torch.float64))
    for sides in ((24, 24), (12, 20)):
        x = torch.randn(2, 3, *sides, dtype=torch.float64)
        assert max(qt.equivariance_error(net, D4, x).relative) < 1e-10


class Windowed(nn.Module):
    """Attention in windows, with a bias for each pair of places in one: any number of windows will do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(32, 32), nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        _, h, w, _ = x.shape
        parts = windows(self.layer(x), 4)
        return maps((parts @ parts.transpose(1, 2) + self.bias).softmax(-1) @ parts, 4, h, w)


def test_windows_that_do_not_fit_are_named_by_the_size() -> None:
    net = qt.convert(Around(Windowed()), C4, example=torch.randn(2, 3, 16, 16))
    with pytest.raises(qt.ShapeError, match=TAKES.format("24 x 24")):
        net(torch.randn(2, 3, 24, 24))


def test_convolutional_networks_take_every_size() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)).double()
    converted = qt.convert(net, D4, example=torch.randn(2, 3, 16, 16, dtype=torch.float64))
    x = torch.randn(2, 3, 21, 14, dtype=torch.float64)
    assert max(qt.equivariance_error(converted, D4, x).relative) < 1e-10


def test_a_table_for_unequal_sides_needs_a_group_that_keeps_the_axes() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.table = nn.Conv2d(3, 16, 3, padding=1), nn.Parameter(torch.randn(1, 16, 12, 20))
            self.last = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((self.conv(x) + self.table).relu().mean((2, 3)))

    x = torch.randn(2, 3, 12, 20, dtype=torch.float64)
    with pytest.raises(qt.ConversionError, match="'table' .* 12 x 20, and D4 exchanges their axes"):
        qt.convert(Table().double(), D4, example=x)
    net = qt.convert(Table().double(), qt.C2, example=x)
    assert max(qt.equivariance_error(net, qt.C2, x).relative) < 1e-10
