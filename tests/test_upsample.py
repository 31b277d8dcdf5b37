"""Up-sampling: rotating filters gives what rotating maps gives, at every size and factor, as torch really samples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import PRISM
from torch import Tensor
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, MIRROR, OCTA, Group
from quarterturn.layers.upsample import is_symmetric

NAMES = {1: "linear", 2: "bilinear", 3: "trilinear"}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def assert_twins_agree(group: Group, sizes: tuple[int, ...], **options: object) -> None:
    """Between sliced maps it is torch's own, between stacked ones it is the same; and turning goes through."""
    maps, filters = (qt.Upsample(group, rotate=rotate, **options) for rotate in ("maps", "filters"))
    mode = options.get("mode", "nearest")
    how = {**options, "mode": NAMES[group.dim] if mode == "linear" else mode}
    x = torch.randn(group.order, 1, *sizes, dtype=torch.float64)
    assert torch.equal(maps(x), F.interpolate(x, **how))
    torch.testing.assert_close(filters(qt.stack(x, group)), qt.stack(maps(x), group), **CLOSE)


def along_axes(draw: st.DrawFn, group: Group, values: st.SearchStrategy) -> tuple:
    """One for each axis, alike along axes that the group exchanges."""
    chosen = [draw(values) for _ in range(group.dim)]
    for axes in group.exchanged:
        for axis in axes:
            chosen[axis - 1] = chosen[axes[0] - 1]
    return tuple(chosen)


FACTORS = st.one_of(
    st.sampled_from((1, 2, 3, 4, 5, 7, 41, 47, 55, 61)),
    st.sampled_from((0.4, 0.5, 0.75, 1.1, 1.5, 2.5)),
    st.floats(0.3, 5.0),
)


@given(data=st.data(), group=st.sampled_from((FLIP, C2, MIRROR, C4, D4, PRISM)))
@settings(max_examples=200, deadline=None)
def test_every_size_and_factor(data: st.DataObject, group: Group) -> None:
    draw = data.draw
    sizes = along_axes(draw, group, st.integers(1, 7 if group.dim < 3 else 3))
    mode = draw(st.sampled_from(("nearest", "linear")))
    options: dict[str, object] = {"mode": mode}
    if mode == "linear":
        options["align_corners"] = draw(st.sampled_from((None, False, True)))
    if draw(st.booleans()):
        options["size"] = along_axes(draw, group, st.integers(1, 60 if group.dim < 3 else 8))
    else:
        factors = along_axes(draw, group, FACTORS if group.dim < 3 else st.floats(0.3, 3.0))
        least = tuple(1 / n for n in sizes)  # nothing is left of less
        options["scale_factor"] = tuple(max(f, low) for f, low in zip(factors, least, strict=True))
    assert_twins_agree(group, sizes, **options)


@pytest.mark.parametrize("group", [FLIP, MIRROR, C4, D4, OCTA], ids=lambda g: g.name)
@pytest.mark.parametrize("options", [{"size": 1}, {"scale_factor": 0.4}, {"size": 2}, {"scale_factor": 1.5}], ids=str)
def test_corners_that_are_one_sample(group: Group, options: dict[str, float]) -> None:
    """torch samples the first corner there, which is another one in each orientation."""
    for size in (1, 3, 4):
        if size * options.get("scale_factor", 1) >= 1:
            assert_twins_agree(group, (size,) * group.dim, mode="linear", align_corners=True, **options)


def torch_repeats_each(factor: int, numbers: int, dtype: torch.dtype) -> bool:
    x = torch.arange(numbers, dtype=dtype)
    repeated = F.interpolate(x[None, None], scale_factor=float(factor))[0, 0]
    return torch.equal(repeated, (numbers - 1 - repeated).flip(0))


@pytest.mark.parametrize("numbers", [2, 3, 7, 64])
def test_whole_factors_that_rounding_breaks_are_known(numbers: int) -> None:
    """Against torch itself: none is taken for symmetric that is not, and in float32 none is missed."""
    for factor in range(1, 300):
        mine = is_symmetric((numbers,), None, factor, "nearest", None)
        assert mine == torch_repeats_each(factor, numbers, torch.float32)
        assert mine == is_symmetric((numbers,), numbers * factor, None, "nearest", None)
        assert not mine or torch_repeats_each(factor, numbers, torch.float64)


@pytest.mark.parametrize("factor", [3, 7, 49, 127, 1000, 1001, 4097])
def test_whole_factors_of_long_sequences(factor: int) -> None:
    longest = 2**22 // factor
    assert is_symmetric((longest,), None, factor, "nearest", None) <= torch_repeats_each(factor, longest, torch.float32)
    assert not is_symmetric((longest + 1,), None, factor, "nearest", None)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("factor", [41, 47])
def test_factors_that_rounding_breaks_on_images(factor: int, group: Group) -> None:
    x = torch.randn(group.order, 1, 3, 3)  # in double precision torch rounds otherwise
    maps, filters = (qt.Upsample(group, scale_factor=factor, rotate=rotate) for rotate in ("maps", "filters"))
    assert torch.equal(filters(qt.stack(x, group)), qt.stack(maps(x), group))


def test_a_grid_that_is_symmetric_costs_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast way is still taken wherever it is right."""
    monkeypatch.setattr(qt.layers.upsample, "in_own_frames", lambda *_: pytest.fail("maps were turned"))
    x = torch.zeros(1, 8, 3, 3)
    for options in (
        {"scale_factor": 3},
        {"scale_factor": 4.0},
        {"size": 6},
        {"size": 5, "mode": "linear"},
        {"scale_factor": 2, "mode": "linear"},
        {"scale_factor": 1.5, "mode": "linear", "align_corners": True},
        {"size": (2, 2), "mode": "linear", "align_corners": True},
    ):
        qt.Upsample(D4, rotate="filters", **options)(x)


@pytest.mark.parametrize(
    "options", [{"scale_factor": 41}, {"scale_factor": 0.4, "mode": "linear", "align_corners": True}], ids=str
)
def test_plain_networks_sample_alike(options: dict[str, object]) -> None:
    """to_plain and convert ask the same question."""
    net = torch.nn.Sequential(
        qt.SliceConv(C4, 1, 1, 3, padding=1, rotate="filters"),
        qt.Upsample(C4, rotate="filters", **options),
        qt.Pool(C4, rotate="filters"),
    ).eval()
    x = torch.randn(1, 1, 3, 3)
    for dynamic in (False, True):
        torch.testing.assert_close(qt.to_plain(net, x, dynamic=dynamic)(x), net(x))


class Resizes(torch.nn.Module):
    """A network that computes the size it wants."""

    def __init__(self, grow: int, **how: object) -> None:
        super().__init__()
        self.conv, self.grow, self.how = torch.nn.Conv2d(1, 4, 3, padding=1), grow, how

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        size = [n * self.grow if self.grow else n // n for n in y.shape[2:]]
        return F.interpolate(y, size=size, **self.how)


@pytest.mark.parametrize(("grow", "how"), [(41, {}), (0, {"mode": "bilinear", "align_corners": True})], ids=str)
def test_converted_networks_sample_alike(grow: int, how: dict[str, object]) -> None:
    net = qt.convert(Resizes(grow, **how), C4, example=torch.randn(1, 1, 3, 3))
    qt.assert_equivariant(net, C4, torch.randn(1, 1, 3, 3))


@pytest.mark.parametrize("factor", [3, 41, 1.5])
def test_it_compiles(factor: float) -> None:
    torch.compiler.reset()
    layer = qt.Upsample(C4, scale_factor=factor, rotate="filters")
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for size in (3, 4, 6):
        x = torch.randn(1, 8, size, size)
        assert torch.equal(compiled(x), layer(x))
