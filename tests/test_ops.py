"""The four operations: their definitions, their laws, and every way in which torch runs them."""

import copy
import pickle
from collections.abc import Callable

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ALL_GROUPS
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, MIRROR, OCTA, OCTA_FULL, Group

SPATIAL = ("slice", "stack", "unstack", "roll", "pool")
each_group = pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def maps(group: Group, batch: int = 2, features: int = 2, side: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, features, *[side] * group.dim, dtype=dtype)


def sliced(group: Group, **sizes: int) -> Tensor:
    return maps(group, batch=2 * group.order, **sizes)


def input_of(operation: str, group: Group, dtype: torch.dtype = torch.float64, side: int = 3) -> Tensor:
    batch = group.order if operation in ("stack", "roll", "pool") else 1
    features = group.order if operation == "unstack" else 1
    return maps(group, 2 * batch, 2 * features, side, dtype)


def test_element_1_of_c4_is_the_papers_clockwise_quarter_turn() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(qt.act(x, C4, 1), torch.rot90(x, -1, (2, 3)))
    assert torch.equal(qt.act(x, D4, 4), x.flip(3))


def test_table_1_of_the_paper_with_rot90() -> None:
    """S, P, T and R as printed, for C4: r is rot90(-1), T puts realigned pathways into the features."""
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)

    def r(t: Tensor, times: int) -> Tensor:
        return torch.rot90(t, -times, (2, 3))

    def t_of(parts: list[Tensor]) -> Tensor:
        return torch.stack([r(part, -g) for g, part in enumerate(parts)], dim=2).flatten(1, 2)

    parts = [r(x, g) for g in range(4)]
    assert torch.equal(qt.slice(x, C4), torch.cat(parts))
    parts = list(torch.randn(4, 2, 3, 5, 5, dtype=torch.float64))
    assert torch.equal(qt.stack(torch.cat(parts), C4), t_of(parts))
    assert torch.equal(qt.roll(torch.cat(parts), C4), torch.cat([t_of(parts[h:] + parts[:h]) for h in range(4)]))
    aligned = torch.stack([r(part, -g) for g, part in enumerate(parts)])
    assert torch.equal(qt.pool(torch.cat(parts), C4, "max"), aligned.amax(0))
    torch.testing.assert_close(qt.pool(torch.cat(parts), C4, "rms"), aligned.square().mean(0).sqrt())
    torch.testing.assert_close(qt.pool(torch.cat(parts), C4), aligned.mean(0))


@each_group
def test_definitions_position_by_position(group: Group) -> None:
    x = maps(group)
    for g, element in enumerate(group.elements):
        assert torch.equal(qt.act(x, group, g), reference.turned(x, element))
    assert torch.equal(qt.slice(x, group), reference.slice(x, group))
    x = sliced(group)
    assert torch.equal(qt.stack(x, group), reference.stack(x, group))
    torch.testing.assert_close(qt.pool(x, group), reference.pool(x, group), rtol=1e-12, atol=1e-12)
    x = x[::2] if group.order > 8 else x  # one example: the reference is slow
    assert torch.equal(qt.roll(x, group), reference.roll(x, group))


@each_group
def test_definitions_for_dense_features(group: Group) -> None:
    x = torch.randn(2 * group.order, 3, dtype=torch.float64)
    assert torch.equal(qt.act(x, group, 1), x)
    assert torch.equal(qt.slice(x, group), reference.slice(x, group))
    assert torch.equal(qt.stack(x, group), reference.stack(x, group))
    assert torch.equal(qt.roll(x, group), reference.roll(x, group))
    torch.testing.assert_close(qt.pool(x, group), reference.pool(x, group), rtol=1e-12, atol=1e-12)
    assert torch.equal(qt.unstack(qt.stack(x, group), group), x)


@each_group
@each_dtype
@pytest.mark.parametrize("dense", [False, True], ids=["maps", "dense"])
def test_the_laws_for_every_element(group: Group, dtype: torch.dtype, dense: bool) -> None:
    """S(hx) = sigma_h S(x); R(sigma_h x) = sigma_h R(x); P(sigma_h x) = h P(x); T(sigma_h x)_g = h T(x)_gh."""
    close = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 1e-6}
    image = maps(group, dtype=dtype)
    x = torch.randn(2 * group.order, 3, dtype=dtype) if dense else maps(group, 2 * group.order, dtype=dtype)
    s, r, t = qt.slice(image, group), qt.roll(x, group), qt.stack(x, group)
    pooled = {fn: qt.pool(x, group, fn) for fn in ("max", "mean", "rms")}
    for h in range(group.order):
        assert torch.equal(qt.slice(qt.act(image, group, h), group), reference.permuted(s, group, h))
        x_h = reference.permuted(x, group, h)
        assert torch.equal(qt.roll(x_h, group), reference.permuted(r, group, h))
        orientations = qt.act(t, group, h).unflatten(1, (-1, group.order))
        expected = torch.stack([orientations[:, :, group.table[g][h]] for g in range(group.order)], dim=2)
        assert torch.equal(qt.stack(x_h, group), expected.flatten(1, 2))
        assert torch.equal(qt.unstack(qt.stack(x_h, group), group), x_h)
        assert torch.equal(qt.pool(x_h, group, "max"), qt.act(pooled["max"], group, h))
        for fn in ("mean", "rms"):
            torch.testing.assert_close(qt.pool(x_h, group, fn), qt.act(pooled[fn], group, h), **close)


def test_the_law_of_roll_tells_the_table_from_its_transpose() -> None:
    """Swapping the indices of the Cayley table passes for C4, which commutes, and fails for D4."""

    def swapped_roll(x: Tensor, group: Group) -> Tensor:
        n = len(x) // group.order
        parts = x.unflatten(0, (group.order, n))
        rows = [
            torch.stack([qt.act(parts[group.table[h][g]], group, group.inverse[g]) for g in range(group.order)], dim=2)
            for h in range(group.order)
        ]
        return torch.cat(rows).flatten(1, 2)

    for group, holds in ((C4, True), (D4, False)):
        x = sliced(group)
        laws = [
            torch.equal(
                swapped_roll(reference.permuted(x, group, h), group),
                reference.permuted(swapped_roll(x, group), group, h),
            )
            for h in range(group.order)
        ]
        assert all(laws) == holds


@given(data=st.data(), group=st.sampled_from((FLIP, C2, MIRROR, C4, D4, OCTA)))
@settings(max_examples=60, deadline=None)
def test_shapes_of_any_size(data: st.DataObject, group: Group) -> None:
    n, c = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    sizes = [data.draw(st.integers(1, 6)) for _ in range(group.dim)]
    for axes in group.exchanged:
        for axis in axes:
            sizes[axis - 1] = sizes[axes[0] - 1]
    x = torch.randn(n, c, *sizes)
    s = qt.slice(x, group)
    assert s.shape == (n * group.order, c, *sizes)
    assert qt.roll(s, group).shape == (n * group.order, c * group.order, *sizes)
    assert qt.stack(s, group).shape == (n, c * group.order, *sizes)
    assert torch.equal(qt.unstack(qt.stack(s, group), group), s)
    for fn in ("mean", "max", "rms"):
        torch.testing.assert_close(qt.pool(s, group, fn), x.abs() if fn == "rms" else x)
    rolled = qt.roll(torch.cat([s, 2 * s], dim=1), group)
    assert torch.equal(rolled, torch.cat([qt.roll(s, group), qt.roll(2 * s, group)], dim=1))


def test_large_batches_are_worked_through_in_parts() -> None:
    x = torch.randn(4 * 5, 70, 50, 50)  # an example of a pathway has 700 kB: two fit into the cache, three do not
    parts = x.unflatten(0, (4, 5))
    one_by_one = torch.stack([qt.roll(parts[:, n], C4) for n in range(5)], dim=1).flatten(0, 1)
    assert torch.equal(qt.roll(x, C4), one_by_one)


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [MIRROR, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("operation", SPATIAL)
def test_first_and_second_gradients(operation: str, group: Group) -> None:
    x = input_of(operation, group, side=2)[: group.order, : group.order].requires_grad_()

    def run(t: Tensor) -> Tensor:
        return getattr(qt, operation)(t, group)

    assert torch.autograd.gradcheck(run, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, x)


@pytest.mark.parametrize("operation", SPATIAL)
def test_the_gradient_is_that_of_the_plain_form(operation: str) -> None:
    x = input_of(operation, OCTA).requires_grad_()
    y = getattr(qt, operation)(x, OCTA)
    weights = torch.randn_like(y)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    # the operations are linear, so <S x, w> = <x, S^T w>, and S^T w is the gradient
    torch.testing.assert_close((y * weights).sum(), (x * gradient).sum())
    basis = torch.zeros_like(x)
    basis.view(-1)[7] = 1.0
    torch.testing.assert_close((getattr(qt, operation)(basis, OCTA) * weights).sum(), gradient.view(-1)[7])


def test_rms_has_finite_gradients_at_zero() -> None:
    for dtype in (torch.float64, torch.float32):
        x = torch.zeros(4, 2, 3, 3, dtype=dtype, requires_grad=True)
        y = qt.pool(x, C4, "rms")
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert torch.equal(first, torch.zeros_like(x))
        assert second.isfinite().all()


def test_rms_of_half_floats_does_not_overflow() -> None:
    x = torch.full((4, 1), 1000.0, dtype=torch.float16)
    assert qt.pool(x, C4, "rms").item() == 1000.0


def test_functional_transforms() -> None:
    x = torch.randn(3, 8, 2, 4, 4, dtype=torch.float64)
    batched = torch.func.vmap(lambda t: qt.roll(t, C4))(x)
    assert torch.equal(batched, torch.stack([qt.roll(t, C4) for t in x]))
    gradient = torch.func.grad(lambda t: qt.pool(t, C4).square().sum())(x[0])
    assert gradient.shape == x[0].shape


# --- pool functions and directions ------------------------------------------------------------------------------------


def test_pool_takes_any_function_of_the_pathways() -> None:
    x = sliced(C4)
    median = qt.pool(x, C4, lambda pathways: pathways.median(0).values)
    aligned = torch.stack([reference.realigned(part, C4, g) for g, part in enumerate(reference.pathways(x, C4))])
    assert torch.equal(median, aligned.median(0).values)
    with pytest.raises(qt.ShapeError, match="must reduce the leading axis"):
        qt.pool(x, C4, torch.relu)
    with pytest.raises(qt.ShapeError, match="it gave tuple"):
        qt.pool(x, C4, lambda pathways: tuple(pathways))


def gradient_of(image: Tensor) -> Tensor:
    """Central differences along each axis, on the torus: a map of directions."""
    axes = range(2, image.dim())
    return torch.cat([(image.roll(-1, axis) - image.roll(1, axis)) / 2 for axis in axes], dim=1)


@each_group
def test_directions_turn_their_components(group: Group) -> None:
    image = maps(group, features=1, side=4)
    field = gradient_of(image)
    for g in range(group.order):
        assert torch.equal(qt.act(field, group, g, kind="vector"), gradient_of(qt.act(image, group, g)))
    assert torch.equal(qt.slice(field, group, kind="vector"), gradient_of(qt.slice(image, group)))
    pooled = qt.pool(gradient_of(qt.slice(image, group)), group, kind="vector")
    torch.testing.assert_close(pooled, field, rtol=0, atol=1e-12)
    dense = field.mean(dim=tuple(range(2, field.dim()))) + field.flatten(2)[..., 0]
    for g in range(group.order):
        turned = qt.act(dense, group, g, kind="vector")
        assert torch.equal(qt.act(turned, group, group.inverse[g], kind="vector"), dense)


@pytest.mark.parametrize("fn", ["max", "rms"])
def test_max_and_rms_of_directions_are_refused(fn: str) -> None:
    with pytest.raises(qt.OptionError, match='use fn="mean"'):
        qt.pool(torch.randn(4, 2, 3, 3), C4, fn, kind="vector")
    with pytest.raises(qt.OptionError):
        qt.Pool(C4, fn, kind="vector")


# --- every way in which torch runs them -------------------------------------------------------------------------------

LAYERS: dict[str, Callable[[Group], nn.Module]] = {
    "slice": qt.Slice,
    "pool": qt.Pool,
    "stack": qt.Stack,
    "unstack": qt.Unstack,
    "roll": qt.Roll,
}
each_operation = pytest.mark.parametrize("operation", SPATIAL)


@each_operation
def test_layers_are_shells_that_copy_and_pickle(operation: str) -> None:
    x = input_of(operation, D4)
    layer = LAYERS[operation](D4)
    expected = getattr(qt, operation)(x, D4)
    for twin in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), expected)
    assert "D4" in repr(layer)
    assert not list(layer.parameters())


@each_operation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_other_dtypes_are_kept(operation: str, dtype: torch.dtype) -> None:
    x = (10 * input_of(operation, C4)).to(dtype)
    y = getattr(qt, operation)(x, C4, "max") if operation == "pool" else getattr(qt, operation)(x, C4)
    assert y.dtype == dtype
    if operation == "pool" and dtype.is_floating_point:
        assert qt.pool(x, C4, "rms").dtype == qt.pool(x, C4).dtype == dtype


@each_operation
def test_channels_last_is_kept(operation: str) -> None:
    for group, memory_format in ((C4, torch.channels_last), (OCTA, torch.channels_last_3d)):
        x = input_of(operation, group)
        x = torch.cat([x, x + 1], dim=1)
        y = getattr(qt, operation)(x.to(memory_format=memory_format), group)
        assert y.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(y, getattr(qt, operation)(x, group), rtol=0, atol=1e-14)
        assert getattr(qt, operation)(x, group).is_contiguous()


@each_operation
def test_empty_batches_and_single_examples(operation: str) -> None:
    x = input_of(operation, D4)
    for n in (0, 1):
        part = x.unflatten(0, (2, len(x) // 2))[:1].flatten(0, 1) if n else x[:0]
        y = getattr(qt, operation)(part, D4)
        assert len(y) == len(getattr(qt, operation)(x, D4)) // 2 * n


@each_operation
def test_autocast_and_meta_tensors(operation: str) -> None:
    x = input_of(operation, C4).float()
    expected = getattr(qt, operation)(x, C4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = getattr(qt, operation)(nn.Identity()(x), C4)
    assert torch.equal(y, expected)
    y = getattr(qt, operation)(x.to("meta"), C4)
    assert y.device.type == "meta"
    assert y.shape == getattr(qt, operation)(x, C4).shape


@each_operation
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_the_plain_form_for_compilers_is_the_same(operation: str, group: Group) -> None:
    """Traced by dynamo into one graph, and run by its eager backend: compiling proper takes minutes, see test-slow."""
    torch.compiler.reset()
    x = input_of(operation, group).requires_grad_()
    y = x.detach().clone().requires_grad_()
    eager = getattr(qt, operation)(x, group)
    traced = torch.compile(LAYERS[operation](group), fullgraph=True, backend="aot_eager")(y)
    weights = torch.randn_like(eager)
    (eager * weights).sum().backward()
    (traced * weights).sum().backward()
    torch.testing.assert_close(traced, eager, rtol=0, atol=1e-14 if operation == "pool" else 0)
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-12, atol=1e-12)


def small_net(group: Group) -> nn.Sequential:
    return nn.Sequential(
        qt.Slice(group),
        nn.Conv2d(1, 2, 3, padding=1, stride=2),
        nn.ReLU(),
        qt.Roll(group),
        nn.Conv2d(2 * group.order, 3, 3, padding=1),
        qt.Stack(group),
        nn.ReLU(),
        qt.Unstack(group),
        qt.Pool(group, "rms"),
    )


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_export_with_a_dynamic_batch_and_side(group: Group) -> None:
    net = small_net(group).double().eval()
    batch, side = torch.export.Dim("batch", min=1), torch.export.Dim("side", min=4)
    x = torch.randn(2, 1, 10, 10, dtype=torch.float64)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: batch, 2: side, 3: side},))
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not {name for name in operators if "rot90" in name or "copy_" in name}
    for n, s in ((2, 10), (3, 7), (1, 16)):
        x = torch.randn(n, 1, s, s, dtype=torch.float64)
        torch.testing.assert_close(program.module()(x), net(x), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_inductor_compiles_it_into_one_graph() -> None:
    torch.compiler.reset()
    net = small_net(D4)
    x = torch.randn(2, 1, 10, 10)
    torch.testing.assert_close(torch.compile(net, fullgraph=True)(x), net(x))


# --- numbers that torch negates or conjugates when they are read ------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("operation", SPATIAL)
def test_lazy_negation_is_carried_out(operation: str, layout: torch.memory_format, dtype: torch.dtype) -> None:
    for group in (C4, D4):
        run, x = getattr(qt, operation), input_of(operation, group, dtype).contiguous(memory_format=layout)
        negative = torch._neg_view(x)
        assert negative.is_neg()
        given = x.clone().requires_grad_()
        expected = run(-x, group)
        assert torch.equal(run(negative, group), expected)
        gradients = [
            torch.autograd.grad(run(given, group), given, grad)[0] for grad in (torch._neg_view(expected), -expected)
        ]
        assert torch.equal(*gradients)
        assert torch.equal(
            run(negative.flatten(1)[:, : 2 * group.order], group), run(-x.flatten(1)[:, : 2 * group.order], group)
        )


@pytest.mark.parametrize("operation", SPATIAL)
def test_the_parts_of_a_lazy_conjugate(operation: str) -> None:
    parts = torch.stack([input_of(operation, D4, torch.float32) for _ in range(2)])
    for numbers in (torch.view_as_complex(parts.movedim(0, -1).contiguous()), torch.complex(*parts)):
        conjugate = numbers.conj()
        assert conjugate.is_conj()
        assert conjugate.imag.is_neg()
        run = getattr(qt, operation)
        assert torch.equal(run(conjugate.imag, D4), run(-parts[1], D4))
        expected = torch.complex(run(parts[0], D4), run(-parts[1], D4))
        torch.testing.assert_close(run(conjugate, D4), expected, rtol=1e-6, atol=1e-6)


def test_lazy_negation_before_a_convolution() -> None:
    """Of maps, weights and gradients; the layer is one that the kernel runs, where there is one."""
    layer = qt.RollConv(D4, 8, 8, 3, padding=1, rotate="filters")
    x = torch.randn(2, 64, 6, 6)
    assert torch.equal(layer(torch._neg_view(x)), layer(-x))
    negative = {name: torch._neg_view(p.detach()) for name, p in layer.named_parameters()}
    plain = {name: -p.detach() for name, p in layer.named_parameters()}
    assert torch.equal(*(torch.func.functional_call(layer, values, (x,)) for values in (negative, plain)))
    grad = torch.randn_like(layer(x))
    gradients = [torch.autograd.grad(layer(x), layer.weight, g)[0] for g in (torch._neg_view(grad), -grad)]
    assert torch.equal(*gradients)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", SPATIAL)
def test_maps_that_are_not_square_are_refused_where_axes_are_exchanged(operation: str) -> None:
    x = torch.randn(8, 8, 4, 6)
    with pytest.raises(qt.ShapeError, match=r'exchanges the axes .* got 4 x 6: pad or crop .* rotate="filters"'):
        getattr(qt, operation)(x, C4)
    assert getattr(qt, operation)(x, C2).shape[2:] == (4, 6)


def test_act_turns_maps_that_are_not_square() -> None:
    assert qt.act(torch.randn(1, 1, 4, 6), C4, 1).shape == (1, 1, 6, 4)


@pytest.mark.parametrize("operation", ["pool", "stack", "roll"])
def test_a_batch_without_all_pathways_is_refused(operation: str) -> None:
    with pytest.raises(qt.ShapeError, match="a batch of 6 does not hold the 4 pathways of C4"):
        getattr(qt, operation)(torch.randn(6, 2, 3, 3), C4)


def test_features_without_all_orientations_are_refused() -> None:
    with pytest.raises(qt.ShapeError, match="6 features do not hold the 4 orientations"):
        qt.unstack(torch.randn(1, 6, 3, 3), C4)


@pytest.mark.parametrize("operation", SPATIAL)
def test_a_wrong_number_of_axes_is_refused(operation: str) -> None:
    with pytest.raises(qt.ShapeError, match=r"C4 has 2 spatial axes, so it takes maps with 4 axes .* got 5"):
        getattr(qt, operation)(torch.randn(8, 8, 3, 3, 3), C4)
    with pytest.raises(qt.ShapeError, match="got 1 axes"):
        getattr(qt, operation)(torch.randn(8), C4)
    with pytest.raises(qt.ShapeError, match=r"octa has 3 .* for images use"):
        getattr(qt, operation)(torch.randn(24, 24, 3, 3), OCTA)


def test_bad_names_and_kinds_are_refused() -> None:
    x = torch.randn(4, 3, 3, 3)
    with pytest.raises(qt.OptionError, match="unknown pool function 'maximum': did you mean 'max'"):
        qt.pool(x, C4, "maximum")
    with pytest.raises(qt.OptionError, match="unknown pool function 'meen'"):
        qt.Pool(C4, "meen")
    with pytest.raises(qt.OptionError, match="unknown kind 'vectors': did you mean 'vector'"):
        qt.act(x, C4, 1, kind="vectors")
    with pytest.raises(qt.ShapeError, match="needs 2 features for each direction"):
        qt.act(x, C4, 1, kind="vector")
    with pytest.raises(qt.GroupError, match=r"expected a Group such as quarterturn.C4, got 'C4'"):
        qt.slice(x, "C4")


def test_octa_full_is_the_largest_group_and_works() -> None:
    x = torch.randn(1, 1, 2, 2, 2)
    assert qt.roll(qt.slice(x, OCTA_FULL), OCTA_FULL).shape == (48, 48, 2, 2, 2)
