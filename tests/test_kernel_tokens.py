"""The kernel's code for tokens: layer norm of stacked features, and orientations beside the examples and back."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernel import FLIPS, needs_kernel
from torch import Tensor
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, OCTA, Group
from quarterturn._convert.window_layers import WindowsToBatch, WindowsToFeatures
from quarterturn.kernel import library
from quarterturn.layers import beside, layer_norm
from quarterturn.layers.beside import to_batch, to_features
from quarterturn.layers.layer_norm import stacked_layer_norm

each_group = pytest.mark.parametrize("group", [FLIP, C2, FLIPS, C4, D4, OCTA], ids=lambda g: g.name)
sizes = given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 40), st.lists(st.integers(1, 30), min_size=1, max_size=2))


def defined(x: Tensor, features: int, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5) -> Tensor:
    """Layer norm of each orientation by itself."""
    parts = x.unflatten(-1, (features, -1)).unbind(-1)
    return torch.stack([F.layer_norm(part, (features,), weight, bias, eps) for part in parts], dim=-1).flatten(-2)


def in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of the kernel that are called; the list fills."""
    called: list[str] = []
    run = library.Library._run
    monkeypatch.setattr(
        library.Library, "_run", lambda self, name, *given: called.append(name) or run(self, name, *given)
    )
    return called


# --- layer norm -------------------------------------------------------------------------------------------------------


@needs_kernel
@settings(deadline=None, max_examples=60)
@sizes
def test_layer_norm_and_its_gradients_are_as_defined(order: int, features: int, rows: list[int]) -> None:
    x = 2 * torch.randn(*rows, features * order, dtype=torch.float64) + 1
    double = [x, torch.randn(features, dtype=torch.float64), torch.randn(features, dtype=torch.float64)]
    single = [t.float().requires_grad_() for t in double]
    double = [t.requires_grad_() for t in double]
    eps = 0.1  # with few features, small variances would make large errors
    wanted, found = (of(t[0], features, *t[1:], eps) for of, t in ((defined, double), (stacked_layer_norm, single)))
    assert type(found.grad_fn).__name__ == "_StackedLayerNormBackward"
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    grad = torch.randn_like(wanted)
    for mine, of in zip(
        torch.autograd.grad(found, single, grad.float()), torch.autograd.grad(wanted, double, grad), strict=True
    ):
        torch.testing.assert_close(mine.double(), of, atol=1e-5 * max(1.0, float(grad.norm())), rtol=1e-4)


@needs_kernel
@each_group
@pytest.mark.parametrize("features", [1, 3, 12, 48])
def test_no_orientation_is_rounded_in_another_way(group: Group, features: int) -> None:
    """A turn permutes the orientations: every bit of output and gradient follows."""
    x, grad = (torch.randn(5, features * group.order) for _ in range(2))
    weight = torch.randn(features)

    def run(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        y = stacked_layer_norm(x, features, weight, None)
        return y.detach(), torch.autograd.grad(y, x, grad)[0]

    wanted = run(x, grad)
    for h in range(group.order):
        order = [group.table[g][h] for g in range(group.order)]
        permuted = [t.unflatten(-1, (features, -1))[..., order].flatten(-2) for t in (x, grad)]
        for found, of in zip(run(*permuted), wanted, strict=True):
            assert torch.equal(found, of.unflatten(-1, (features, -1))[..., order].flatten(-2))


@needs_kernel
@pytest.mark.parametrize("affine", [(True, True), (True, False), (False, False)])
def test_parameters_may_be_missing(affine: tuple[bool, bool]) -> None:
    x = torch.randn(7, 24, requires_grad=True)
    given = [torch.randn(6, requires_grad=True) if there else None for there in affine]
    found, wanted = stacked_layer_norm(x, 6, *given), defined(x, 6, *given)
    torch.testing.assert_close(found, wanted)
    inputs = [x, *(t for t in given if t is not None)]
    of_each = [torch.autograd.grad(y.square().sum(), inputs, retain_graph=True) for y in (found, wanted)]
    for mine, of in zip(*of_each, strict=True):
        torch.testing.assert_close(mine, of, atol=1e-4, rtol=1e-4)


@needs_kernel
def test_second_derivatives_of_layer_norm() -> None:
    x, weight = torch.randn(4, 12, requires_grad=True), torch.randn(3, requires_grad=True)

    def twice(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(function(x, 3, weight, None).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, weight))

    for mine, of in zip(twice(stacked_layer_norm), twice(defined), strict=True):
        torch.testing.assert_close(mine, of, atol=1e-3, rtol=1e-3)


@needs_kernel
def test_the_kernel_runs_where_it_may_and_else_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = qt.LayerNorm(D4, 6, rotate="filters")
    x = torch.randn(2, 48, 5, 5).to(memory_format=torch.channels_last)
    called = in_the_kernel(monkeypatch)

    def used(run: Callable[[], object]) -> bool:
        called.clear()
        run()
        return "layer_norm" in called

    with torch.no_grad():
        assert used(lambda: norm(x))
        assert norm(x).is_contiguous(memory_format=torch.channels_last)
        assert used(lambda: norm(x.contiguous()))
        assert torch.equal(norm(x.contiguous()), norm(x))
        assert not used(lambda: norm.double()(x.double()))
        norm.float()
        assert not used(lambda: torch.func.vmap(norm, in_dims=1)(torch.randn(1, 2, 48, 5, 5)))
        assert not used(lambda: torch.export.export(norm, (x,)))
    rows = torch.randn(2, 10, 48)
    last = qt.LayerNorm(D4, 6, rotate="filters", last=True)
    assert used(lambda: last(rows))
    assert not used(lambda: torch.func.jvp(last, (rows,), (rows,)))
    assert not used(lambda: qt.LayerNorm(OCTA, 2, rotate="filters", last=True)(rows))  # no code for 24 orientations
    torch.testing.assert_close(last(rows.transpose(0, 1)), last(rows).transpose(0, 1))


@needs_kernel
def test_what_is_no_number_stays_in_its_row_and_orientation() -> None:
    x = torch.randn(4, 24)
    x[2, 1] = torch.nan  # of orientation 1
    found = stacked_layer_norm(x, 6, None, None).isnan().unflatten(-1, (6, 4))
    assert found[2, :, 1].all()
    assert int(found.sum()) == 6


@needs_kernel
def test_layer_norm_does_not_depend_on_threads() -> None:
    x, threads = torch.randn(700, 96, requires_grad=True), torch.get_num_threads()

    def run(count: int) -> tuple[Tensor, ...]:
        torch.set_num_threads(count)
        weight = torch.ones(12, requires_grad=True)
        y = stacked_layer_norm(x, 12, weight, None)
        return y, *torch.autograd.grad(y.pow(3).sum(), (x, weight))

    try:
        for one, many in zip(run(1), run(3), strict=True):
            assert torch.equal(one, many)
    finally:
        torch.set_num_threads(threads)


# --- orientations beside the examples ---------------------------------------------------------------------------------


def places_of(order: int, tokens: int) -> Tensor:
    return torch.stack([torch.randperm(tokens) for _ in range(order)])


def split_one_by_one(x: Tensor, order: int, places: Tensor | None) -> Tensor:
    out = x.new_empty(len(x), order, x.shape[1], x.shape[2] // order)
    for t in range(order):
        at = slice(None) if places is None else places[t]
        out[:, t, at] = x[..., t::order]
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # the kernel, and torch
@pytest.mark.parametrize("placed", [False, True])
@settings(deadline=None, max_examples=40)
@given(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 21), st.integers(1, 12), st.integers(1, 3))
def test_each_orientation_comes_to_its_places_and_back(
    dtype: torch.dtype, placed: bool, order: int, features: int, tokens: int, examples: int
) -> None:
    x = torch.randn(examples, tokens, features * order, dtype=dtype, requires_grad=True)
    places = places_of(order, tokens) if placed else None
    found = to_batch(x, order, places)
    assert torch.equal(found, split_one_by_one(x, order, places))
    assert torch.equal(to_features(found, places), x)
    grad = torch.randn_like(found)
    (of_x,) = torch.autograd.grad(found, x, grad, create_graph=True)
    assert torch.equal(of_x, to_features(grad, places))
    back = to_features(found.detach().contiguous().requires_grad_(), places)
    assert torch.equal(back, x)


@needs_kernel
def test_places_that_are_no_order_are_refused() -> None:
    x = torch.randn(1, 4, 8)
    for wrong in ([[0, 1, 2, 3], [0, 1, 2, 2]], [[0, 1, 2, 3], [0, 1, 2, 4]], [[0, 1, 2, 3], [0, -1, 2, 3]]):
        with pytest.raises(qt.QuarterturnError, match="no order of the tokens"):
            to_batch(x, 2, torch.tensor(wrong))
    with pytest.raises(qt.QuarterturnError, match="the list of places"):
        to_batch(x, 2, torch.tensor([[0, 1, 2, 3]]))


@needs_kernel
def test_moving_runs_in_the_kernel_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    called = in_the_kernel(monkeypatch)
    x = torch.randn(2, 9, 32)
    wanted = split_one_by_one(x, 4, None)
    for there, tokens in ((True, x), (False, x.double()), (False, x.transpose(0, 1).contiguous().transpose(0, 1))):
        called.clear()
        assert torch.equal(to_batch(tokens, 4), wanted.to(tokens))
        assert ("beside" in called) == there
    called.clear()
    assert torch.equal(torch.func.vmap(lambda x: to_batch(x, 4))(x[None])[0], wanted)
    torch.testing.assert_close(torch.compile(to_batch, backend="eager", fullgraph=True)(x, 4), wanted)
    assert called == []


@needs_kernel
@pytest.mark.parametrize("group", [C2, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("shifts", [(0, 0), (1, 2)])
@pytest.mark.parametrize("cuts", [((4, 2), (4, 2)), ((2, 3), (4, 2)), ((6,), (3, 2)), ((2, 2, 2), (4, 2))], ids=str)
def test_windows_in_one_pass_are_the_definition(
    group: Group, shifts: tuple[int, int], cuts: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = in_the_kernel(monkeypatch)
    there, back = (kind(group, shifts, cuts, "filters") for kind in (WindowsToBatch, WindowsToFeatures))
    sides = [math.prod(parts) for parts in cuts]
    x = torch.randn(2, 3 * group.order, *sides).to(memory_format=torch.channels_last).requires_grad_()
    found, wanted = there(x), there(x.double())  # in float64 they are moved, stacked and cut one by one
    assert called == ["beside"]
    assert torch.equal(found, wanted.float())
    again = back(found)
    assert called == ["beside"] * 2
    assert torch.equal(again, x)
    assert torch.equal(back(wanted).float(), x)
    grad = torch.randn_like(found)
    of_x = [torch.autograd.grad(y, x, grad.to(y), retain_graph=True)[0] for y in (found, wanted)]
    assert torch.equal(*of_x)


@needs_kernel
def test_sizes_that_do_not_fit_are_refused_at_the_border() -> None:
    code = library.library()
    x, y, row = torch.randn(3, 8), torch.empty(3, 8), torch.empty(2)
    for wrong in (
        lambda: code.layer_norm(x, 5, 4, None, None, 1e-5, (None, None), y),
        lambda: code.layer_norm(x, 2, 4, row[:1], None, 1e-5, (None, None), y),
        lambda: code.layer_norm(x, 2, 4, None, torch.empty(3), 1e-5, (None, None), y),
        lambda: code.layer_norm(x, 2, 4, None, None, 1e-5, (torch.empty(12), torch.empty(11)), y),
        lambda: code.layer_norm(x, 2, 4, None, None, 1e-5, (None, None), y[:2]),
        lambda: code.layer_norm_gradient(x[:2], x, 4, None, (torch.empty(12), torch.empty(12)), y, row, row),
        lambda: code.layer_norm_gradient(x, x, 4, None, (torch.empty(12), torch.empty(9)), y, row, row),
        lambda: code.layer_norm_gradient(x, x, 4, None, (torch.empty(12), torch.empty(12)), y[:1], row, row),
        lambda: code.layer_norm_gradient(x, x, 4, None, (torch.empty(12), torch.empty(12)), y, torch.empty(1), row),
        lambda: code.beside(torch.empty(1, 3, 8), torch.empty(1, 3, 7), 2, 4, None, False),
        lambda: code.beside(torch.empty(1, 3, 7), torch.empty(1, 3, 8), 2, 4, None, False),
    ):
        with pytest.raises(qt.ShapeError):
            wrong()
    for wrong in (
        lambda: code.layer_norm(torch.randn(1, 9), 3, 3, None, None, 1e-5, (None, None), torch.empty(1, 9)),
        lambda: code.layer_norm(x, 2, 4, None, None, 1e-5, (torch.empty(12), None), y),
        lambda: code.beside(x, y, 0, 4, None, False),
    ):
        with pytest.raises(qt.QuarterturnError):
            wrong()


def test_without_a_kernel_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (beside, layer_norm):
        monkeypatch.setattr(module, "library", lambda: None)
    x = torch.randn(2, 9, 32, requires_grad=True)
    torch.testing.assert_close(stacked_layer_norm(x, 8, None, None), defined(x, 8, None, None))
    assert torch.equal(to_batch(x, 4), split_one_by_one(x, 4, None))
