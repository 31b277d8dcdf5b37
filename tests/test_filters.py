"""Rotating filters gives what rotating maps gives: at every size, for every group, forward and backward."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import ALL_GROUPS, PRISM
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, MIRROR, OCTA, OCTA_FULL, Group
from quarterturn.filters import roll_filters, slice_filters
from quarterturn.layers import batch_norm

TORCH_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
PLANAR = (FLIP, C2, MIRROR, C4, D4)
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def image(group: Group, *sizes: int, features: int = 2, batch: int = 2) -> Tensor:
    return torch.randn(batch, features, *(sizes or (6,) * group.dim), dtype=torch.float64)


def twins(make: Callable[[str], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """The same layer in both modes, with the same parameters, loaded strictly."""
    maps, filters = make("maps").double(), make("filters").double()
    filters.load_state_dict(maps.state_dict(), strict=True)
    return maps, filters


def turned_stack(x: Tensor, group: Group, h: int) -> Tensor:
    """What a stacked tensor becomes when the input is turned by h: T(sigma_h x)_g = h T(x)_gh."""
    orientations = x.unflatten(1, (-1, group.order))[:, :, [group.table[g][h] for g in range(group.order)]]
    return qt.act(orientations.flatten(1, 2), group, h)


def assert_twins_agree(maps: nn.Module, filters: nn.Module, x: Tensor, group: Group, sliced_input: bool = True) -> None:
    """Outputs, gradients to the input and gradients to the parameters, from the same loss."""
    x = x.requires_grad_()
    from_maps = qt.stack(maps(x), group)
    from_filters = filters(qt.stack(x, group) if sliced_input else x)
    torch.testing.assert_close(from_filters, from_maps, **CLOSE)
    weights = torch.randn_like(from_maps)
    one = torch.autograd.grad((from_maps * weights).sum(), [x, *maps.parameters()])
    two = torch.autograd.grad((from_filters * weights).sum(), [x, *filters.parameters()])
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(b, a, **CLOSE)


# --- the filters themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_turned_filters_follow_their_definition(group: Group) -> None:
    everything = range(group.order)
    weight = torch.randn(2, 3, *[3] * group.dim, dtype=torch.float64)
    bank = slice_filters(weight, group, everything).unflatten(0, (2, group.order))
    for h in everything:
        assert torch.equal(bank[:, h], qt.act(weight, group, group.inverse[h]))
    weight = torch.randn(2, 3 * group.order, *[3] * group.dim, dtype=torch.float64)
    bank = roll_filters(weight, group, everything).unflatten(0, (2, group.order)).unflatten(2, (3, group.order))
    blocks = weight.unflatten(1, (3, group.order))
    for h in everything:
        for k in everything:
            block = blocks[:, :, group.table[k][group.inverse[h]]]
            assert torch.equal(bank[:, h, :, k], qt.act(block, group, group.inverse[h]))


# --- convolutions, exact at every size --------------------------------------------------------------------------------


@st.composite
def options(draw: st.DrawFn, group: Group, largest: int = 17, kernels: int = 5) -> tuple[tuple[int, ...], dict]:
    """A size and options with which all orientations give one output shape: alike along exchanged axes."""

    def along_axes(values: st.SearchStrategy) -> tuple:
        chosen = [draw(values) for _ in range(group.dim)]
        for axes in group.exchanged:
            for axis in axes:
                chosen[axis - 1] = chosen[axes[0] - 1]
        return tuple(chosen)

    padding = st.one_of(st.integers(0, 2), st.tuples(st.integers(0, 2), st.integers(0, 2)))
    sizes = along_axes(st.integers(5, largest))
    kernel, stride, dilation = (along_axes(st.integers(1, n)) for n in (kernels, 3, 2))
    pads = tuple((p, p) if isinstance(p, int) else p for p in along_axes(padding))
    for n, k, d, (before, after) in zip(sizes, kernel, dilation, pads, strict=True):
        assume(n + before + after >= d * (k - 1) + 1)
    return sizes, {"kernel_size": kernel, "stride": stride, "dilation": dilation, "padding": pads}


@given(data=st.data(), group=st.sampled_from(PLANAR))
@settings(max_examples=100, deadline=None)
def test_convolutions_are_exact_at_every_size(data: st.DataObject, group: Group) -> None:
    sizes, chosen = data.draw(options(group))
    groups = data.draw(st.sampled_from((1, 2)))
    maps, filters = twins(lambda rotate: qt.RollConv(group, 2, 2, groups=groups, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(group, *sizes, batch=group.order), group)
    maps, filters = twins(lambda rotate: qt.SliceConv(group, 2, 4, groups=groups, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(group, *sizes), group, sliced_input=False)
    maps, filters = twins(lambda rotate: qt.PathConv(group, 2, 4, groups=groups, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(group, *sizes, batch=group.order), group)


@given(data=st.data(), group=st.sampled_from(PLANAR))
@settings(max_examples=60, deadline=None)
def test_depthwise_convolutions_are_exact_at_every_size(data: st.DataObject, group: Group) -> None:
    sizes, chosen = data.draw(options(group))
    maps, filters = twins(lambda rotate: qt.DepthwiseConv(group, 3, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(group, *sizes, features=3, batch=group.order), group)


@given(data=st.data(), group=st.sampled_from(PLANAR))
@settings(max_examples=100, deadline=None)
def test_transposed_convolutions_are_exact_at_every_size(data: st.DataObject, group: Group) -> None:
    sizes, chosen = data.draw(options(group, largest=8))
    extra = data.draw(st.integers(0, 2))
    assume(all(extra < max(s, d) for s, d in zip(chosen["stride"], chosen["dilation"], strict=True)))
    chosen["output_padding"] = extra
    maps, filters = twins(lambda rotate: qt.RollConvTranspose(group, 2, 2, groups=2, rotate=rotate, **chosen))
    spans = [d * (k - 1) + 1 for k, d in zip(chosen["kernel_size"], chosen["dilation"], strict=True)]
    ends = zip(sizes, chosen["stride"], spans, chosen["padding"], strict=True)
    assume(all((n - 1) * s + span + extra > sum(pads) for n, s, span, pads in ends))  # else nothing is left
    assert_twins_agree(maps, filters, image(group, *sizes, batch=group.order), group)


@pytest.mark.parametrize("group", [OCTA, OCTA_FULL, PRISM], ids=lambda g: g.name)
@pytest.mark.parametrize("size", [4, 5])
def test_volumes(group: Group, size: int) -> None:
    chosen = {"kernel_size": 2, "stride": 2, "padding": 1}
    maps, filters = twins(lambda rotate: qt.RollConv(group, 1, 2, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(group, size, size, size, features=1, batch=group.order), group)
    maps, filters = twins(lambda rotate: qt.SliceConv(group, 1, 2, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(group, size, size, size, features=1, batch=1), group, sliced_input=False)
    maps, filters = twins(lambda rotate: qt.RollConvTranspose(group, 1, 1, 2, 2, output_padding=1, rotate=rotate))
    assert_twins_agree(maps, filters, image(group, 2, 2, 2, features=1, batch=group.order), group)


@pytest.mark.slow
@given(data=st.data(), group=st.sampled_from((OCTA, OCTA_FULL, PRISM)))
@settings(max_examples=25, deadline=None)
def test_volumes_of_every_size(data: st.DataObject, group: Group) -> None:
    sizes, chosen = data.draw(options(group, largest=7, kernels=3))
    maps, filters = twins(lambda rotate: qt.RollConv(group, 1, 1, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(group, *sizes, features=1, batch=group.order), group)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("size", [7, 8])
def test_padding_modes(mode: str, size: int) -> None:
    for padding in (1, ((0, 2), (0, 2)), "same"):
        stride = 1 if padding == "same" else 2
        maps, filters = twins(
            lambda rotate, p=padding, s=stride: qt.RollConv(D4, 1, 2, 4, s, p, rotate=rotate, padding_mode=mode)
        )
        assert_twins_agree(maps, filters, image(D4, size, size, features=1, batch=8), D4)


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch says it once in a process: it may have said it
def test_maps_mode_is_torchs_convolution() -> None:
    for group in (FLIP, D4, PRISM):
        layer = qt.SliceConv(group, 2, 4, 3, 2, 1, 2, groups=2).double()
        plain = TORCH_CONV[group.dim](2, 4, 3, 2, 1, 2, groups=2).double()
        plain.load_state_dict(layer.state_dict(), strict=True)
        x = image(group, *[8] * group.dim)
        assert torch.equal(layer(x), plain(qt.slice(x, group)))
    layer = qt.RollConvTranspose(C4, 2, 4, 3, 2, 1, 1, groups=2).double()
    plain = nn.ConvTranspose2d(8, 4, 3, 2, 1, 1, groups=2).double()
    plain.load_state_dict(layer.state_dict(), strict=True)
    x = image(C4, batch=4)
    assert torch.equal(layer(x), plain(qt.roll(x, C4)))
    layer, plain = qt.SliceConv(C4, 2, 3, 4, padding="same").double(), nn.Conv2d(2, 3, 4, padding="same").double()
    plain.load_state_dict(layer.state_dict(), strict=True)
    x = image(C4)
    torch.testing.assert_close(layer(x), plain(qt.slice(x, C4)), **CLOSE)


def test_a_symmetric_grid_takes_one_convolution_and_another_one_four_in_wide_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    original = qt.layers.convolution.CONVOLUTIONS[2]

    def counted(*args: object) -> Tensor:
        calls.append(args)
        return original(*args)

    monkeypatch.setitem(qt.layers.convolution.CONVOLUTIONS, 2, counted)
    for features, size, expected in ((1, 9, 1), (1, 8, 1), (16, 9, 1), (16, 8, 4)):
        layer = qt.RollConv(D4, features, 1, 3, stride=2, padding=1, rotate="filters").double()
        calls.clear()
        layer(image(D4, size, size, features=8 * features))
        assert len(calls) == expected


def test_the_naive_form_would_be_wrong_on_an_asymmetric_grid() -> None:
    """One convolution with the turned filters, as others do it, is not what rotating the maps gives."""
    maps, filters = twins(lambda rotate: qt.RollConv(C4, 2, 2, 3, stride=2, padding=1, rotate=rotate))
    x = image(C4, 8, 8, batch=4)
    bank = roll_filters(filters.weight, C4, range(4))
    naive = nn.functional.conv2d(qt.stack(x, C4), bank, filters.bias.repeat_interleave(4), 2, 1)
    assert (naive - qt.stack(maps(x), C4)).abs().max() > 0.1
    torch.testing.assert_close(filters(qt.stack(x, C4)), qt.stack(maps(x), C4), **CLOSE)


# --- maps that are not square, kernels that are not square ------------------------------------------------------------


@given(data=st.data(), group=st.sampled_from((C4, D4)))
@settings(max_examples=30, deadline=None)
def test_maps_that_are_not_square_obey_the_law(data: st.DataObject, group: Group) -> None:
    """Turning the input turns the output: only filters mode takes these, so the law itself is the test."""
    _, chosen = data.draw(options(group))
    height, width = data.draw(st.integers(10, 17)), data.draw(st.integers(10, 17))
    conv = qt.SliceConv(group, 1, 2, rotate="filters", **chosen).double()
    then = nn.Sequential(
        nn.ReLU(),
        qt.MaxPool(group, 2, 2, 1, ceil_mode=data.draw(st.booleans()), rotate="filters"),
        qt.RollConv(group, 2, 2, 2, 2, 1, rotate="filters"),
        qt.RollConvTranspose(group, 2, 1, 3, 2, output_padding=1, rotate="filters"),
        qt.Upsample(group, scale_factor=1.5, rotate="filters"),
        qt.AvgPool(group, 3, 2, 1, ceil_mode=True, rotate="filters"),
    ).double()
    x = image(group, height, width, features=1)
    y = conv(x)
    z = then(y)
    for h in range(group.order):
        y_h = conv(qt.act(x, group, h))
        torch.testing.assert_close(y_h, turned_stack(y, group, h), **CLOSE)
        torch.testing.assert_close(then(y_h), turned_stack(z, group, h), **CLOSE)


@pytest.mark.parametrize("size", [8, 9])
def test_kernels_that_are_not_square(size: int) -> None:
    for kernel, padding in (((1, 7), (0, 3)), ((5, 2), ((2, 2), (0, 1))), ((3, 1), "same")):
        maps, filters = twins(lambda rotate, k=kernel, p=padding: qt.RollConv(D4, 1, 2, k, padding=p, rotate=rotate))
        assert_twins_agree(maps, filters, image(D4, size, size, features=1, batch=8), D4)
    y = qt.SliceConv(C4, 1, 1, (1, 7), padding=(0, 3), rotate="filters")(torch.randn(1, 1, 9, 12))
    assert y.shape == (1, 4, 9, 12)


def test_unequal_strides_where_all_orientations_give_one_shape() -> None:
    """A window of 4 with stride 3 and one of 2 with stride 2 both fit twice into 8 - but not into 9."""
    chosen = {"kernel_size": (3, 4), "stride": (4, 3), "padding": ((0, 0), (0, 0))}
    maps, filters = twins(lambda rotate: qt.RollConv(C4, 1, 1, rotate=rotate, **chosen))
    assert_twins_agree(maps, filters, image(C4, 8, 8, features=1, batch=4), C4)
    with pytest.raises(qt.ShapeError, match="different shapes cannot be stacked"):
        filters(torch.randn(1, 4, 10, 12, dtype=torch.float64))


# --- spatial layers ---------------------------------------------------------------------------------------------------


@given(data=st.data(), group=st.sampled_from(PLANAR))
@settings(max_examples=100, deadline=None)
def test_pooling_is_exact_at_every_size_and_torchs_own(data: st.DataObject, group: Group) -> None:
    sizes, chosen = data.draw(options(group))
    halves = [(k - 1) // 2 for k in chosen["kernel_size"]]
    chosen["padding"] = tuple(min(before, half) for (before, _), half in zip(chosen["padding"], halves, strict=True))
    spans = [d * (k - 1) + 1 for k, d in zip(chosen["kernel_size"], chosen["dilation"], strict=True)]
    assume(all(n + 2 * p >= span for n, p, span in zip(sizes, chosen["padding"], spans, strict=True)))
    chosen["ceil_mode"] = data.draw(st.booleans())
    x = image(group, *sizes, batch=group.order).requires_grad_()
    torchs_max = getattr(nn, f"MaxPool{group.dim}d")(**chosen)
    maps, filters = (qt.MaxPool(group, rotate=rotate, **chosen) for rotate in ("maps", "filters"))
    assert torch.equal(maps(x), torchs_max(x))
    assert_twins_agree(maps, filters, x, group)
    del chosen["dilation"]
    chosen["count_include_pad"] = data.draw(st.booleans())
    torchs_avg = getattr(nn, f"AvgPool{group.dim}d")(**chosen)
    maps, filters = (qt.AvgPool(group, rotate=rotate, **chosen) for rotate in ("maps", "filters"))
    torch.testing.assert_close(maps(x), torchs_avg(x), **CLOSE)
    assert_twins_agree(maps, filters, x, group)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("group", [MIRROR, C4, D4, PRISM], ids=lambda g: g.name)
@pytest.mark.parametrize("size", [4, 5, 6])
def test_max_pooling_of_whole_numbers_is_torchs_own(size: int, group: Group, dtype: torch.dtype) -> None:
    """On even sizes orientations pad by themselves, with what is never the maximum, not even of the least numbers."""
    lowest = torch.iinfo(dtype).min
    shape = (group.order, 2, *[size] * group.dim)
    for x in (torch.randint(0, 100, shape, dtype=dtype), torch.randint(lowest, lowest + 3, shape, dtype=dtype)):
        chosen = {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}
        maps, filters = (qt.MaxPool(group, rotate=rotate, **chosen) for rotate in ("maps", "filters"))
        assert torch.equal(maps(x), getattr(nn, f"MaxPool{group.dim}d")(**chosen)(x))
        assert torch.equal(filters(qt.stack(x, group)), qt.stack(maps(x), group))


@pytest.mark.parametrize("group", [FLIP, MIRROR, C4, D4], ids=lambda g: g.name)
def test_max_pooling_pools_once_and_has_derivatives_of_every_kind(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = qt.layers.pooling.MAX_POOL[group.dim]
    counted = lambda *given: calls.append(given) or original(*given)  # noqa: E731
    monkeypatch.setitem(qt.layers.pooling.MAX_POOL, group.dim, counted)
    maps, filters = (qt.MaxPool(group, 3, 2, 1, rotate=rotate) for rotate in ("maps", "filters"))
    x = image(group, *[6] * group.dim, features=group.order).requires_grad_()
    out = filters(x)
    assert len(calls) == 1
    torch.testing.assert_close(out, qt.stack(maps(qt.unstack(x, group)), group), rtol=0, atol=0)
    assert torch.autograd.gradcheck(filters, x)
    assert torch.autograd.gradgradcheck(filters, x)
    tangent = torch.randn_like(x)
    _, along = torch.func.jvp(filters, (x.detach(),), (tangent,))
    wanted = torch.autograd.functional.jvp(filters, x.detach(), tangent)[1]
    torch.testing.assert_close(along, wanted)
    each = torch.func.vmap(lambda one: filters(one.unsqueeze(0)))(x.detach())
    torch.testing.assert_close(each.squeeze(1), out.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("group", [MIRROR, C2, C4, D4], ids=lambda g: g.name)
def test_max_pooling_in_one_pass_is_torchs_own(group: Group) -> None:
    """Where orientations start at different places the kernel pools: same numbers, ties, gradients, NaN, infinity."""
    if not qt.kernel.is_available():
        pytest.skip("the kernel is not compiled")
    assert qt.layers.pooling._kernel_may_run()
    for features, size, chosen in (
        (1, 6, (3, 2, 1)), (2, 8, (3, 2, 1)), (3, 9, (2, 2, 0)), (5, 10, (3, 2, 0)), (9, 7, (4, 3, 2, 1, True)),
        (2, 12, (3, 2, 1, 2)),
    ):  # fmt: skip
        maps, filters = (qt.MaxPool(group, *chosen, rotate=rotate) for rotate in ("maps", "filters"))
        x = torch.randint(-3, 4, (2 * group.order, features, size, size)).float()  # many ties
        x[0, 0, 1, :] = torch.nan
        x[1, 0, 0, 0] = torch.inf
        stacked = qt.stack(x, group).requires_grad_()
        shift = qt.layers.pooling._shift_for(stacked, group, filters.windows)
        assert shift is not None
        out = filters(stacked)
        assert out.grad_fn.name() == "_MaxPoolBackward"
        torch.testing.assert_close(out, qt.stack(maps(x), group), rtol=0, atol=0, equal_nan=True)
        shifted = qt.layers.pooling._max_pool_of_shifted(
            stacked.contiguous(memory_format=torch.channels_last), shift, filters.windows
        )
        grad = torch.randint(-9, 10, out.shape).float()  # sums of these do not depend on their order
        ours, torchs = (torch.autograd.grad(y, stacked, grad)[0] for y in (out, shifted))
        assert torch.equal(ours, torchs)
        least = torch.full_like(stacked, -torch.inf).requires_grad_()
        assert (filters(least) == -torch.inf).all()
        (of_least,) = torch.autograd.grad(filters(least), least, grad)
        assert of_least.sum() == grad.sum()  # one of them is the largest
        with torch.no_grad():
            assert torch.equal(filters(stacked).nan_to_num(7.5), out.nan_to_num(7.5))


@pytest.mark.parametrize("threads", [1, 2])
def test_max_pooling_in_one_pass_on_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    x = torch.randn(3, 12, 10, 10, requires_grad=True)
    layer = qt.MaxPool(C4, 3, 2, 1, rotate="filters")
    wanted = torch.autograd.grad(layer(x.double()).square().sum(), x)[0]
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(torch.autograd.grad(layer(x).square().sum(), x)[0], wanted)
        torch.testing.assert_close(*second_derivatives(layer, x))
    finally:
        torch.set_num_threads(before)


def second_derivatives(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Of the layer in float32, and in float64."""
    found = []
    for y in (layer(x), layer(x.double()).float()):
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    return found


def test_max_pooling_refuses_what_torch_refuses() -> None:
    for layer, features in ((nn.MaxPool2d(3, 2, 1), 2), (qt.MaxPool(C4, 3, 2, 1, rotate="filters"), 8)):
        with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
            layer(torch.ones(4, features, 6, 6, dtype=torch.bool))


@pytest.mark.parametrize("group", [FLIP, MIRROR, C4, D4, PRISM], ids=lambda g: g.name)
@pytest.mark.parametrize(
    "make",
    [
        lambda group, rotate: qt.AdaptiveAvgPool(group, 3, rotate=rotate),
        lambda group, rotate: qt.AdaptiveMaxPool(group, 4, rotate=rotate),
        lambda group, rotate: qt.AdaptiveAvgPool(group, None, rotate=rotate),
        lambda group, rotate: qt.Upsample(group, scale_factor=2, rotate=rotate),
        lambda group, rotate: qt.Upsample(group, scale_factor=1.5, rotate=rotate),
        lambda group, rotate: qt.Upsample(group, size=10, rotate=rotate),
        lambda group, rotate: qt.Upsample(group, scale_factor=1.7, mode="linear", rotate=rotate),
        lambda group, rotate: qt.Upsample(group, size=10, mode="linear", rotate=rotate),
        lambda group, rotate: qt.Upsample(group, scale_factor=1.7, mode="linear", align_corners=True, rotate=rotate),
        lambda group, rotate: qt.EachOrientation(group, nn.Softmax(2), rotate=rotate),
    ],
    ids=["avg", "max", "none", "nearest2", "nearest1.5", "nearest-size", "linear1.7", "linear-size", "corners", "each"],
)
@pytest.mark.parametrize("size", [6, 7])
def test_other_spatial_layers(make: Callable[[Group, str], nn.Module], group: Group, size: int) -> None:
    x = image(group, *[size] * group.dim, batch=group.order)
    assert_twins_agree(make(group, "maps"), make(group, "filters"), x, group)


def test_torchs_own_dropout_and_activations_work_on_stacked_tensors() -> None:
    x = torch.ones(2, 3 * 8, 50, 50)
    whole = nn.Dropout2d(0.5)(x).unflatten(1, (3, 8))
    dropped = (whole == 0).flatten(3).all(-1)
    assert dropped.any()
    assert not dropped.all()
    assert (whole.flatten(3).std(-1) == 0).all()  # orientations are dropped one by one, as pathways are
    stacked = qt.stack(image(D4, batch=8), D4)
    assert_net = nn.Sequential(nn.GELU(), nn.Dropout(0.5)).eval()
    torch.testing.assert_close(assert_net(stacked), qt.stack(assert_net(qt.unstack(stacked, D4)), D4), **CLOSE)


# --- norms ------------------------------------------------------------------------------------------------------------

NORMS: dict[str, Callable[[Group, str], nn.Module]] = {
    "batch": lambda group, rotate: qt.BatchNorm(group, 4, rotate=rotate),
    "batch, cumulative": lambda group, rotate: qt.BatchNorm(group, 4, momentum=None, rotate=rotate),
    "batch, untracked": lambda group, rotate: qt.BatchNorm(group, 4, track_running_stats=False, rotate=rotate),
    "batch, no affine": lambda group, rotate: qt.BatchNorm(group, 4, affine=False, rotate=rotate),
    "instance": lambda group, rotate: qt.InstanceNorm(group, 4, rotate=rotate),
    "group": lambda group, rotate: qt.GroupNorm(group, 2, 4, rotate=rotate),
    "layer": lambda group, rotate: qt.LayerNorm(group, 4, rotate=rotate),
}


@pytest.mark.parametrize("group", [FLIP, C4, D4, PRISM], ids=lambda g: g.name)
@pytest.mark.parametrize("name", NORMS)
def test_norms_share_parameters_and_statistics(name: str, group: Group) -> None:
    maps, filters = twins(lambda rotate: NORMS[name](group, rotate))
    with torch.no_grad():
        for maps_parameter, filters_parameter in zip(maps.parameters(), filters.parameters(), strict=True):
            maps_parameter.copy_(torch.randn_like(maps_parameter))
            filters_parameter.copy_(maps_parameter)
    for training in (True, True, False):
        maps.train(training)
        filters.train(training)
        x = 3 * image(group, features=4, batch=2 * group.order) + 1
        assert_twins_agree(maps, filters, x, group)
        for key, value in maps.state_dict().items():
            torch.testing.assert_close(filters.state_dict()[key], value, **CLOSE)


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("features", [1, 8, 9, 20, 21])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_over_few_and_many_features(group: Group, features: int, affine: bool) -> None:
    maps, filters = twins(lambda rotate: qt.LayerNorm(group, features, affine=affine, rotate=rotate))
    for parameter in maps.parameters():
        nn.init.normal_(parameter)
    filters.load_state_dict(maps.state_dict())
    x = image(group, features=features, batch=2 * group.order)
    assert_twins_agree(maps, filters, x, group)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        with torch.no_grad():
            stacked = qt.stack(x, group).contiguous(memory_format=memory_format)
            torch.testing.assert_close(filters(stacked), qt.stack(maps(x), group), **CLOSE)


@pytest.mark.parametrize("group", [C2, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize(("batch", "side"), [(2, 5), (16, 5), (2, 1)])
def test_windows_of_one_position_with_features_last(group: Group, batch: int, side: int) -> None:
    maps, filters = twins(lambda rotate: qt.RollConv(group, 3, 2, 1, rotate=rotate, via="conv"))
    x = image(group, side, side, features=3 * group.order, batch=batch).contiguous(memory_format=torch.channels_last)
    out = filters(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, qt.stack(maps(qt.unstack(x, group)), group), **CLOSE)


def test_norms_are_torchs_own_in_maps_mode() -> None:
    x = image(C4, features=4, batch=8)
    pairs = [
        (qt.BatchNorm(C4, 4), nn.BatchNorm2d(4)),
        (qt.BatchNorm(C4, 4, momentum=None), nn.BatchNorm2d(4, momentum=None)),
        (qt.InstanceNorm(C4, 4), nn.InstanceNorm2d(4, affine=True)),
        (qt.GroupNorm(C4, 2, 4), nn.GroupNorm(2, 4)),
    ]
    for ours, torchs in pairs:
        torchs.double().load_state_dict(ours.double().state_dict(), strict=True)
        for module in (ours, torchs):
            module.train()
        for _ in range(2):
            torch.testing.assert_close(ours(x), torchs(x), **CLOSE)
        for key, value in torchs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, **CLOSE)
        torch.testing.assert_close(ours.eval()(x), torchs.eval()(x), **CLOSE)


@pytest.mark.parametrize("group", [C2, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("layer", [qt.SliceConv, qt.RollConv, qt.RollConvTranspose], ids=lambda layer: layer.__name__)
def test_weights_with_features_last_answer_with_features_last(layer: type[nn.Module], group: Group) -> None:
    """A network put into channels_last stays in it, also behind an image of one channel, whose strides do not tell."""
    first = layer(group, 1, 3, 3, padding=1, rotate="filters").double()
    last = copy.deepcopy(first).to(memory_format=torch.channels_last)
    x = image(group, 6, 7, features=1 if layer is qt.SliceConv else group.order)
    y, wanted = last(x), first(x)
    assert y.stride(1) == 1
    assert wanted.is_contiguous()
    torch.testing.assert_close(y, wanted, **CLOSE)
    torch.func.vmap(last)(x[None])  # where torch cannot say what the format is


@pytest.mark.parametrize("group", [C2, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("name", [name for name in NORMS if name.startswith("batch")])
def test_batch_norm_with_features_last_in_memory(name: str, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another way through it: the same output, gradients and running statistics, and features stay last."""
    calls = []
    apply = batch_norm._StackedBatchNorm.apply
    monkeypatch.setattr(batch_norm._StackedBatchNorm, "apply", lambda *given: calls.append(1) or apply(*given))
    first, last = (NORMS[name](group, "filters").double() for _ in range(2))
    for parameter, other in zip(first.parameters(), last.parameters(), strict=True):
        parameter.data.normal_()
        other.data.copy_(parameter)
    for _ in range(2):
        x = 3 * torch.randn(3, 4 * group.order, 5, 6, dtype=torch.float64) + 1
        grad = torch.randn_like(x)
        results = []
        for net, layout in ((first, torch.contiguous_format), (last, torch.channels_last)):
            given = x.contiguous(memory_format=layout).requires_grad_()
            y = net(given)
            assert y.is_contiguous(memory_format=layout)
            results.append((y, *torch.autograd.grad(y, [given, *net.parameters()], grad)))
        assert results[1][1].is_contiguous(memory_format=torch.channels_last)
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(b, a, **CLOSE)
        for key, value in first.state_dict().items():
            torch.testing.assert_close(last.state_dict()[key], value, **CLOSE)
    assert len(calls) == 2


def test_batch_norm_with_features_last_has_derivatives_of_every_kind() -> None:
    net = qt.BatchNorm(C4, 2, rotate="filters", track_running_stats=False).double()
    net.weight.data.normal_()
    x = torch.randn(2, 8, 3, 2, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return batch_norm.stacked_batch_norm(x, 2, None, None, weight, bias, 0.1, 1e-5)

    assert torch.autograd.gradcheck(run, (x, net.weight, net.bias))
    assert torch.autograd.gradgradcheck(run, (x, net.weight, net.bias))
    tangent = torch.randn_like(x)
    _, forward = torch.func.jvp(net, (x.detach(),), (tangent,))
    step = 1e-6
    with torch.no_grad():
        numerical = (net(x + step * tangent) - net(x - step * tangent)) / (2 * step)
    torch.testing.assert_close(forward, numerical, rtol=1e-6, atol=1e-6)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x), **CLOSE)
    alone = net.requires_grad_(False)(x.detach())  # nothing to differentiate
    assert not alone.requires_grad
    torch.testing.assert_close(alone, compiled(x), **CLOSE)


# --- dense and pool ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_dense_rolling_in_both_modes(group: Group) -> None:
    maps, filters = twins(lambda rotate: qt.RollLinear(group, 3, 2, rotate=rotate))
    x = torch.randn(2 * group.order, 3, dtype=torch.float64)
    assert_twins_agree(maps, filters, x, group)
    maps, filters = twins(lambda rotate: qt.BatchNorm(group, 3, rotate=rotate))
    assert_twins_agree(maps, filters, x, group)


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_pooling_orientations_needs_no_turning(group: Group) -> None:
    x = image(group, *[3] * group.dim, features=2 * group.dim, batch=2 * group.order)
    stacked = qt.stack(x, group)
    for fn in ("mean", "max", "rms", lambda pathways: pathways.logsumexp(0)):
        expected = qt.Pool(group, fn)(x)
        torch.testing.assert_close(qt.Pool(group, fn, rotate="filters")(stacked), expected, **CLOSE)
    expected = qt.Pool(group, kind="vector")(x)
    torch.testing.assert_close(qt.Pool(group, kind="vector", rotate="filters")(stacked), expected, **CLOSE)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_features_that_do_not_divide_are_refused() -> None:
    with pytest.raises(qt.OptionError, match="out_features must be a multiple of groups, got 3 with groups=2"):
        qt.RollConv(C4, 2, 3, 3, groups=2)
    with pytest.raises(qt.OptionError, match="in_features must be a multiple"):
        qt.RollConvTranspose(C4, 3, 2, 3, groups=2)
    with pytest.raises(qt.OptionError, match="features must be a multiple of num_groups"):
        qt.GroupNorm(C4, 3, 4)


def test_orientations_of_different_shapes_are_refused() -> None:
    x = torch.randn(1, 4, 9, 9)
    with pytest.raises(
        qt.ShapeError, match=r"orientation \(1, 2\) of C4 would come out as 9 x 5 and \(2, -1\) as 5 x 9"
    ):
        qt.RollConv(C4, 1, 1, (1, 5), rotate="filters")(x)
    with pytest.raises(qt.ShapeError, match="cannot be stacked"):
        qt.MaxPool(C4, (1, 2), rotate="filters")(x)
    with pytest.raises(qt.ShapeError, match="cannot be stacked"):
        qt.EachOrientation(C4, nn.MaxPool2d((1, 2)), rotate="filters")(x)
    with pytest.raises(qt.OptionError, match="output_size must be equal along them"):
        qt.AdaptiveAvgPool(C4, (1, 2))
    with pytest.raises(qt.OptionError, match="size must be equal along them"):
        qt.Upsample(C4, size=(10, 12))


def test_the_wrong_layout_is_recognised_by_its_shape() -> None:
    sliced, stacked = torch.randn(8, 3, 9, 9), torch.randn(2, 12, 9, 9)
    with pytest.raises(qt.ShapeError, match="stacked maps with 12 features, got 3: .* looks like a sliced or plain"):
        qt.RollConv(C4, 3, 2, 3, rotate="filters")(sliced)
    with pytest.raises(qt.ShapeError, match="sliced maps with 3 features, got 12: .* looks like a stacked tensor"):
        qt.RollConv(C4, 3, 2, 3)(stacked)
    with pytest.raises(qt.ShapeError, match="looks like a stacked tensor: use a RollConv"):
        qt.SliceConv(C4, 3, 2, 3, rotate="filters")(stacked)
    with pytest.raises(qt.ShapeError, match="a batch of 6 does not hold the 4 pathways"):
        qt.RollConv(C4, 3, 2, 3)(sliced[:6])
    with pytest.raises(qt.ShapeError, match="looks like a stacked tensor"):
        qt.RollLinear(C4, 3, 2)(torch.randn(2, 12))
    with pytest.raises(qt.ShapeError, match="3 features do not hold the 4 orientations"):
        qt.MaxPool(C4, 2, rotate="filters")(sliced)
    with pytest.raises(qt.ShapeError, match="stacked maps with 12 features"):
        qt.BatchNorm(C4, 3, rotate="filters")(sliced)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qt.RollConv(C4, 1, 1, 3, rotate="filter"), "unknown rotate 'filter': did you mean 'filters'"),
        (lambda: qt.RollConv(C4, 1, 1, 3, padding="sane"), "unknown padding 'sane': did you mean 'same'"),
        (lambda: qt.RollConv(C4, 1, 1, 3, padding="same", stride=2), 'padding="same" needs stride 1'),
        (lambda: qt.RollConv(C4, 1, 1, 3, padding_mode="mirror"), "unknown padding mode 'mirror'"),
        (lambda: qt.RollConv(C4, 1, 1, (3, 3, 3)), "kernel_size must be a whole number .* or 2 of them"),
        (lambda: qt.RollConv(C4, 1, 1, 0), "kernel_size must be a whole number of at least 1"),
        (lambda: qt.RollConv(C4, 1, 1, 3, padding=((1, 1),)), "padding needs"),
        (lambda: qt.RollConvTranspose(C4, 1, 1, 3, padding="same"), "needs padding as numbers"),
        (lambda: qt.RollConvTranspose(C4, 1, 1, 3, output_padding=1), "output_padding must be smaller"),
        (lambda: qt.MaxPool(C4, 2, padding=2), "at most half the window"),
        (lambda: qt.Upsample(C4), "either size or scale_factor"),
        (lambda: qt.Upsample(C4, scale_factor=2, mode="bicubic"), "unknown mode 'bicubic'"),
        (lambda: qt.Upsample(C4, scale_factor=2, align_corners=True), 'align_corners.* needs mode="linear"'),
        (lambda: qt.AdaptiveAvgPool(C4, 0), "output_size must be a whole number of at least 1"),
        (lambda: qt.Pool(C4, rotate="map"), "unknown rotate 'map': did you mean 'maps'"),
    ],
)
def test_bad_options_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(qt.OptionError, match=message):
        make()


def test_windows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(qt.ShapeError, match="a window over 5 positions does not fit into 4"):
        qt.SliceConv(C4, 1, 1, 5)(torch.randn(1, 1, 4, 4))
    with pytest.raises(qt.ShapeError, match="leaves nothing"):
        qt.RollConvTranspose(C4, 1, 1, 1, padding=2)(torch.randn(4, 1, 2, 2))
    with pytest.raises(qt.ShapeError, match="expected maps with 4 axes"):
        qt.SliceConv(C4, 1, 1, 5)(torch.randn(1, 1, 4))


def test_representations_show_what_differs_from_the_defaults() -> None:
    assert repr(qt.RollConv(C4, 2, 4, 3, 2, 1, groups=2, bias=False, rotate="filters")) == (
        "RollConv(C4, 2, 4, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2, bias=False, rotate='filters')"
    )
    assert "padding=((0, 1), (0, 1))" in repr(qt.DepthwiseConv(C4, 2, 2, padding="same"))
    assert "ceil_mode=True" in repr(qt.MaxPool(C4, 3, 2, ceil_mode=True))
