"""The kernel for volumes: equal to the definition in float64, turned bits for turned inputs, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, MIRROR, OCTA, OCTA_FULL, Group
from quarterturn.fourier.transforms import Transform, added, transform_of
from quarterturn.kernel import is_available, volume_conv, volume_programs, volumes
from quarterturn.kernel.library import volume_library
from quarterturn.layers.convolution import corners_of

needs_kernel = pytest.mark.skipif(not is_available(OCTA), reason="no compiled kernel for volumes")
VOLUMES = (
    qt.mirrors(2), qt.mirrors(1, 3), qt.mirrors(1, 2, 3), qt.about(C2, 1), qt.about(C4, 2), qt.about(D4, 1),
    qt.about(D4, 3), qt.named("D4h-2"), OCTA, OCTA_FULL,
)  # fmt: skip
THIRDS = OCTA.subgroup((2, 3, 1))  # no order of its sums gives turned bits
OTHER_D4 = OCTA.subgroup((1, 3, -2), (-1, 2, -3))  # half turns in place of mirrors
each_group = pytest.mark.parametrize("group", VOLUMES, ids=lambda g: g.name)


# --- transforms -------------------------------------------------------------------------------------------------------


def layer_on_the_group(transform: Transform, f: np.ndarray, weight: np.ndarray) -> np.ndarray:
    parts, weights = transform.analysis.run(list(f)), (transform.weights @ weight).astype(f.dtype)
    products, part, first = [], 0, 0
    for rows, deep, columns in transform.jobs:
        for c in range(columns):
            for r in range(rows):
                products.append(sum(parts[part + p * rows + r] * weights[first + p * columns + c] for p in range(deep)))
        part, first = part + rows * deep, first + deep * columns
    return np.array(transform.synthesis.run(products))


def every_subgroup() -> list[Group]:
    return [FLIP, C2, MIRROR, C4, D4, *qt.subgroups(OCTA_FULL, up_to_conjugacy=True)]


@pytest.mark.parametrize("group", every_subgroup(), ids=lambda g: g.name)
def test_a_transform_is_a_layer_on_the_group(group: Group) -> None:
    random = np.random.default_rng(0)
    transform = transform_of(group)
    assert transform is not None
    f, weight = random.standard_normal((2, group.order))
    expected = [sum(weight[s] * f[group.table[s][h]] for s in range(group.order)) for h in range(group.order)]
    np.testing.assert_allclose(layer_on_the_group(transform, f, weight), expected, atol=1e-12)


@pytest.mark.parametrize("group", every_subgroup(), ids=lambda g: g.name)
def test_an_exact_transform_gives_turned_bits(group: Group) -> None:
    transform = transform_of(group)
    assert transform is not None
    random = np.random.default_rng(1)
    same = True
    for _ in range(8):
        f, weight = random.standard_normal((2, group.order)).astype(np.float32)
        y = layer_on_the_group(transform, f, weight)
        for g in range(group.order):
            moved = [group.table[t][g] for t in range(group.order)]
            same = same and np.array_equal(layer_on_the_group(transform, f[moved], weight), y[moved])
    assert same == transform.exact  # it fails where sums of thirds are mixed
    assert transform.exact or any(one.order == 3 for one in qt.subgroups(group))


@pytest.mark.parametrize("group", every_subgroup(), ids=lambda g: g.name)
def test_gather_is_the_adjoint_of_synthesis(group: Group) -> None:
    transform = transform_of(group)
    assert transform is not None
    products = len(transform.gather)
    back = np.stack([transform.synthesis.run(list(row)) for row in np.eye(products)])  # (products, G)
    parts = np.stack([transform.analysis.run(list(row)) for row in np.eye(group.order)], axis=1)
    np.testing.assert_allclose(back, [sign * parts[part] for part, sign in transform.gather])


def test_a_sum_of_three_depends_on_values_alone() -> None:
    a, b, c = (np.float32(value) for value in (1e8, 1.0, -1e8))
    sums = {float(added([x, y, z])) for x, y, z in [(a, b, c), (b, c, a), (c, a, b), (b, a, c)]}
    assert len(sums) == 1
    assert {-total for total in sums} == {float(added([-a, -b, -c]))}


def test_the_compiled_programs_are_those_of_the_groups() -> None:
    assert volume_programs.HEADER.read_text() == volume_programs.header()


# --- layers -----------------------------------------------------------------------------------------------------------


def convolved(layer: qt.RollConv, x: Tensor) -> Tensor:
    corners = corners_of(layer.group, layer.windows, x)
    where = {"starts": corners.starts, "output_size": corners.output_size}
    dilation = [window.dilation for window in layer.windows]
    return volume_conv(x, layer.weight, layer.bias, layer.group, dilation=dilation, **where)


def turned(x: Tensor, group: Group, g: int) -> Tensor:
    """Stacked volumes, turned: positions, and orientations too."""
    split = qt.act(x, group, g).unflatten(1, (-1, group.order))
    return split[:, :, [group.table[t][g] for t in range(group.order)]].flatten(1, 2)


def sides(group: Group, first: int) -> list[int]:
    """Sizes that differ where the group allows it."""
    found = [first, first + 1, first + 3]
    for axes in group.exchanged:
        for axis in axes:
            found[axis - 1] = found[axes[0] - 1]
    return found


def agrees(group: Group, features: tuple[int, int], size: list[int], batch: int = 2, **options: object) -> None:
    """Output and gradients are those of the definition in float64, and turned inputs give turned bits."""
    torch.manual_seed(0)
    layer = qt.RollConv(group, *features, **{"kernel_size": 3, "padding": 1, "rotate": "filters", **options})  # type: ignore[arg-type]
    layer.bias.data.normal_()
    exact = qt.RollConv(
        group, *features, **{"kernel_size": 3, "padding": 1, "rotate": "filters", "via": "conv", **options}
    )  # type: ignore[arg-type]
    exact.load_state_dict(layer.state_dict())
    exact = exact.double()
    x = torch.randn(batch, features[0] * group.order, *size, requires_grad=True)
    y, expected = convolved(layer, x), exact(double := x.detach().double().requires_grad_())
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, [x, layer.weight, layer.bias], grad)
    wanted = torch.autograd.grad(expected, [double, exact.weight, exact.bias], grad.double())
    for a, b in zip((y, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-6 * b.abs().max().item() + 1e-6)
    for g in range(group.order):
        other = turned(x.detach(), group, g).requires_grad_()
        again = convolved(layer, other)
        of_x, _ = torch.autograd.grad(again, [other, layer.weight], turned(grad, group, g))
        same = torch.equal(again, turned(y, group, g)) and torch.equal(of_x, turned(found[0], group, g))
        assert same, f"element {g} of {group.name}"


@needs_kernel
@each_group
def test_it_is_the_definition_and_exact_on_every_element(group: Group) -> None:
    few = group.order > 16
    agrees(group, (1, 2) if few else (3, 2), sides(group, 4), batch=1 if few else 2)


@needs_kernel
@pytest.mark.parametrize("group", [qt.mirrors(1, 2, 3), qt.about(D4, 1), OTHER_D4, OCTA], ids=lambda g: g.name)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 1, "padding": 0},
        {"kernel_size": 2, "padding": 0},
        {"kernel_size": 2, "padding": 1},
        {"kernel_size": 3, "padding": 0},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 4, "padding": 3},
        {"kernel_size": 3, "padding": 4},
    ],
    ids=str,
)
def test_windows_of_all_kinds(group: Group, options: dict[str, object]) -> None:
    agrees(group, (1, 1), sides(group, 5), batch=1, **options)


@needs_kernel
def test_windows_that_differ_along_the_axes() -> None:
    agrees(qt.mirrors(1, 2, 3), (2, 1), [4, 9, 20], kernel_size=(3, 1, 5), padding=(1, 0, 2))
    agrees(qt.about(D4, 3), (9, 8), [20, 20, 3], kernel_size=(3, 3, 1), padding=(1, 1, 0))
    agrees(qt.mirrors(1), (1, 1), [1, 1, 1])
    agrees(qt.mirrors(1), (40, 33), [2, 3, 70], batch=1)


@needs_kernel
def test_more_features_than_one_product_takes() -> None:
    agrees(qt.mirrors(1, 2, 3), (3, 25), [3, 5, 12], batch=1)
    agrees(qt.about(D4, 1), (13, 26), [2, 16, 16], batch=1, kernel_size=1, padding=0)
    agrees(OCTA, (3, 9), [5, 5, 5], batch=1)


@needs_kernel
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_sizes(data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(VOLUMES))
    few = group.order > 8
    size = data.draw(st.lists(st.integers(3, 8 if few else 20), min_size=3, max_size=3))
    for axes in group.exchanged:
        for axis in axes:
            size[axis - 1] = size[axes[0] - 1]
    most = 2 if group.order > 16 else 4 if few else 14
    features = data.draw(st.tuples(st.integers(1, most), st.integers(1, most)))
    agrees(
        group, features, size, batch=1, kernel_size=data.draw(st.integers(1, 3)), padding=data.draw(st.integers(0, 2))
    )


@needs_kernel
def test_groups_without_an_exact_order_agree_to_rounding() -> None:
    layer = qt.RollConv(THIRDS, 3, 2, 3, padding=1, rotate="filters")
    x = torch.randn(2, 9, 5, 5, 5)
    y = convolved(layer, x)
    gaps = [(convolved(layer, turned(x, THIRDS, g)) - turned(y, THIRDS, g)).abs().max().item() for g in range(3)]
    assert 0 < max(gaps) < 1e-5


@needs_kernel
def test_any_group_runs_without_a_compiled_program() -> None:
    """Another order of the elements is another program, whose sums are looked up one by one."""
    elements = OCTA.elements
    group = Group("octa in another order", (elements[0], *reversed(elements[1:])))
    agrees(group, (1, 1), [4, 4, 4], batch=1)


@needs_kernel
def test_threads_do_not_change_bits() -> None:
    """Of the compiled code; torch's product that brings the weights into the Fourier basis is not part of it."""
    x, threads, compiled = torch.randn(2, 48, 7, 7, 7), torch.get_num_threads(), volume_library()
    assert compiled is not None
    elements = [a for element in OCTA.elements for a in element]
    plan = volumes._plan(x.shape, x.shape, (3, 3, 3), (elements, (1, 1, 1), [-1] * 72), False)
    weight = torch.randn(len(plan.weights) * len(plan.places) * 2 * 2)
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y, of_weight = torch.empty_like(x), torch.empty_like(weight)
            compiled.convolve(plan.numbers, x, weight, torch.zeros(2), y)
            compiled.weight_gradient(plan.numbers, x, y, of_weight)
            results.append((y, of_weight))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@needs_kernel
def test_not_a_number_stays_where_it_is_read() -> None:
    layer = qt.RollConv(OCTA, 1, 1, 3, padding=1, rotate="filters")
    x = torch.randn(1, 24, 7, 7, 7)
    x[0, 5, 3, 3, 3] = float("nan")
    y = convolved(layer, x)
    assert torch.isnan(y[..., 2:5, 2:5, 2:5]).any(1).all()
    y[..., 2:5, 2:5, 2:5] = 0
    assert torch.isfinite(y).all()


@needs_kernel
def test_second_derivatives() -> None:
    group = qt.mirrors(1, 2)
    layer, exact = (qt.RollConv(group, 1, 1, 3, padding=1, rotate="filters", via=via) for via in ("fourier", "conv"))
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(1, 4, 3, 4, 5, requires_grad=True)
    results = []
    for net in (layer, exact):
        first = torch.autograd.grad(net(x).square().sum(), [x, net.weight], create_graph=True)
        results.append(torch.autograd.grad(sum(one.square().sum() for one in first), [x, net.weight]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


# --- which code runs --------------------------------------------------------------------------------------------------


def code(layer: qt.RollConv, x: Tensor) -> str:
    return layer.execution(x).code


@needs_kernel
def test_layers_take_the_kernel_where_they_can() -> None:
    x = torch.randn(1, 48, 6, 6, 6)
    how = {"rotate": "filters", "padding": 1}
    assert code(qt.RollConv(OCTA, 2, 2, 3, **how), x) == "kernel"  # type: ignore[arg-type]
    for options in ({"stride": 2}, {"groups": 2}, {"padding_mode": "circular"}, {"via": "conv"}):
        assert code(qt.RollConv(OCTA, 2, 2, 3, **{**how, **options}), x) == "torch's convolution"  # type: ignore[arg-type]
    assert code(qt.RollConv(OCTA, 2, 2, 3, **how).double(), x.double()) == "torch's convolution"  # type: ignore[arg-type]
    assert code(qt.RollConv(OCTA, 2, 2, 3, **how).bfloat16(), x.bfloat16()) == "torch's convolution"  # type: ignore[arg-type]
    assert "stride 1" in qt.RollConv(OCTA, 2, 2, 3, stride=2, **how).execution(x).why  # type: ignore[arg-type]


@needs_kernel
@pytest.mark.parametrize("via", ["fourier-rounded", "fourier-bf16"])
def test_volumes_have_one_form(via: str) -> None:
    with pytest.raises(qt.OptionError, match="one form"):
        qt.RollConv(OCTA, 2, 2, 3, rotate="filters", via=via)  # type: ignore[arg-type]


@needs_kernel
def test_a_network_runs_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = volumes._convolve
    monkeypatch.setattr(volumes, "_convolve", lambda *given: calls.append(1) or run(*given))
    net = torch.nn.Sequential(
        qt.SliceConv(OCTA, 1, 2, 3, padding=1, rotate="filters"),
        qt.RollConv(OCTA, 2, 2, 3, padding=1, rotate="filters"),
        torch.nn.ReLU(),
        qt.RollConv(OCTA, 2, 1, 3, padding=1, rotate="filters"),
        qt.Pool(OCTA, rotate="filters"),
    )
    qt.assert_equivariant(net, OCTA, torch.randn(1, 1, 6, 6, 6))
    assert calls
    assert [work.execution.code for work in qt.explain(net, torch.randn(1, 1, 6, 6, 6)).work].count("kernel") == 2


@needs_kernel
def test_what_does_not_fit_is_refused() -> None:
    weight, starts = torch.randn(1, 24, 3, 3, 3), [(-1, -1, -1)] * 24
    for x, wrong, message in [
        (torch.randn(1, 48, 4, 4, 4), weight, "stacked volumes"),
        (torch.randn(1, 24, 4, 4), weight, "stacked volumes"),
        (torch.randn(1, 25, 4, 4, 4), torch.randn(1, 25, 3, 3, 3), "do not hold"),
    ]:
        with pytest.raises(qt.ShapeError, match=message):
            volume_conv(x, wrong, None, OCTA, starts=starts, output_size=(4, 4, 4))
    x = torch.randn(1, 24, 4, 4, 4)
    with pytest.raises(qt.OptionError, match="float32"):
        volume_conv(x.double(), weight.double(), None, OCTA, starts=starts, output_size=(4, 4, 4))
    with pytest.raises(qt.ShapeError, match="the bias"):
        volume_conv(x, weight, torch.randn(2), OCTA, starts=starts, output_size=(4, 4, 4))
    with pytest.raises(qt.ShapeError, match="starts"):
        volume_conv(x, weight, None, OCTA, starts=starts[1:], output_size=(4, 4, 4))
    with pytest.raises(qt.ShapeError, match="common centre"):
        volume_conv(x, weight, None, OCTA, starts=[(0, 0, 0), *starts[1:]], output_size=(4, 4, 4))
