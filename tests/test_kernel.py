"""The Fourier kernel: equal to its definition, exactly equivariant, the same on any number of threads."""

import copy
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, MIRROR, OCTA, OCTA_FULL, Group, generate
from quarterturn.fourier.irreps import transform
from quarterturn.kernel import compiler, group_conv, is_available, library, moves, operators, packed_weights, plan
from quarterturn.kernel.structures import structure

FLIPS = generate("two flips", (-1, 2), (1, -2))
OTHER_D4 = generate("D4, the flip first", (+1, -2), (-2, +1))
GROUPS = (C2, MIRROR, FLIPS, C4, D4, OTHER_D4)
each_group = pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
needs_kernel = pytest.mark.skipif(not is_available(), reason="the kernel is not compiled")
needs_compiler = pytest.mark.skipif(compiler.compiler() is None, reason="no C++ compiler")
FORMS = (True, False)
HALF = torch.bfloat16


def starts(group: Group, side: int, kernel: int, stride: int, dilation: int, padding: int, out: int) -> list:
    """On a reversed axis the windows are counted from the other end."""
    rest = side + 2 * padding - dilation * (kernel - 1) - 1 - stride * (out - 1)
    places = []
    for element in group.elements:
        place = [0, 0]
        for a in element:
            place[abs(a) - 1] = -padding if a > 0 else rest - padding
        places.append(tuple(place))
    return places


def defined(x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, stride=1, dilation=1, padding=0) -> Tensor:
    rolled = qt.roll(qt.unstack(x, group), group)
    return qt.stack(torch.conv2d(rolled, weight, bias, stride, padding, dilation), group)


def ours(x, weight, bias, group: Group, stride=1, dilation=1, padding=0, exact=None, pairs=False) -> Tensor:
    side, kernel = x.shape[2], weight.shape[2]
    out = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return group_conv(
        x,
        weight,
        bias,
        group,
        stride=(stride, stride),
        dilation=(dilation, dilation),
        starts=starts(group, side, kernel, stride, dilation, padding, out),
        output_size=(out, out),
        exact=exact,
        pairs=pairs,
    )


def tensors(group: Group, batch=2, features=3, out=5, side=7, kernel=3) -> list[Tensor]:
    shapes = ((batch, features * group.order, side, side), (out, features * group.order, kernel, kernel), (out,))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def compare(group: Group, double: list[Tensor], **how) -> None:
    """Output and all gradients against the definition in float64, 1e-5 of the largest value.

    Gradients to weights and biases are sums over all positions, which may be nearly zero though their terms are not.
    They are held against the norm of the output's gradient if that is larger.
    """
    exact = how.pop("exact", None)
    double = [t.clone().requires_grad_() for t in double]
    single = [t.detach().float().requires_grad_() for t in double]
    wanted = defined(*double, group, **how)
    got = ours(*single, group, **how, exact=exact)
    assert got.shape == wanted.shape
    grad = torch.randn_like(wanted)
    least = (0.0, 0.0, grad.norm(), grad.norm())
    for a, b, c in zip(
        (got, *torch.autograd.grad(got, single, grad.float())),
        (wanted, *torch.autograd.grad(wanted, double, grad)),
        least[: 1 + len(double)],
        strict=True,
    ):
        assert (a - b).abs().max() <= 1e-5 * max(b.abs().max(), c)


def with_gradients(inputs: list[Tensor], group: Group, grad: Tensor | None = None, **how) -> list[Tensor]:
    """The output, and the gradients to input, weight and bias for that gradient to the output, or one of our own."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = ours(*inputs, group, **how)
    torch.manual_seed(1)
    grad = torch.randn(y.shape).to(y.dtype) if grad is None else grad
    return [y, grad, *torch.autograd.grad(y, inputs, grad)]


def check_rounding(group: Group, exact: bool, **how) -> None:
    """What comes out in bf16 is what comes out in float32 from the same values, rounded once: every bit."""
    for features, out, side in ((8, 8, 9), (5, 9, 8), (18, 24, 6)):
        inputs = [t.to(HALF) for t in tensors(group, features=features, out=out, side=side)]
        half, grad, *of_half = with_gradients(inputs, group, exact=exact, **how)
        single, _, *of_single = with_gradients([t.float() for t in inputs], group, grad.float(), exact=exact, **how)
        for a, b in zip((half, *of_half), (single, *of_single), strict=True):
            assert a.dtype == HALF
            assert b.dtype == torch.float32
            assert torch.equal(a, b.to(HALF))


def windows(x: Tensor, group: Group, kernel: int, **how: int) -> Tensor:
    """`(N, features, kernel**2, G, S', S')`: what each orientation sees at each offset of its window."""
    features = x.shape[1] // group.order
    each = torch.zeros(features * kernel**2, features, group.order, kernel**2, dtype=x.dtype)
    for number in range(len(each)):
        each[number, number // kernel**2, 0, number % kernel**2] = 1.0  # orientation 0 is the identity
    seen = defined(x, each.reshape(len(each), x.shape[1], kernel, kernel), None, group, **how)
    return seen.reshape(len(x), features, kernel**2, group.order, *seen.shape[2:])


def rounded(x: Tensor, group: Group, axis: int) -> Tensor:
    """Rounded to bf16 in the Fourier basis, orientations along that axis."""
    basis = torch.from_numpy(transform(group)).round()  # 0 and +-1: sums are exact in float64, ties stay ties
    changed = (x.movedim(axis, -1) @ basis.T).to(HALF).to(x)
    return (changed @ torch.linalg.inv(basis).T).movedim(-1, axis)


def multiplied_in_bf16(x: Tensor, weight: Tensor, bias: Tensor, group: Group, rounds=rounded, **how: int) -> Tensor:
    """The definition in float64, both factors rounded in the Fourier basis; windows must fill the padded input."""
    kernel = weight.shape[2]
    seen = rounds(windows(x, group, kernel, **how), group, 3)
    of_orientation = weight.unflatten(1, (-1, group.order)).unbind(2)
    turned_along = [qt.act(filters, group, s) for s, filters in enumerate(of_orientation)]
    filters = rounds(torch.stack(turned_along, 2).flatten(3), group, 2)
    shifted = torch.stack([seen[:, :, :, list(row)] for row in group.table], 3)  # [s, h]: orientation sh
    y = torch.einsum("ncushij,ocsu->nohij", shifted, filters)
    return (y + bias[:, None, None, None]).flatten(1, 2)


def check_pairs(group: Group, features: int, out: int, side: int, **how: int) -> None:
    """Products of bf16 numbers: every number that is multiplied is rounded, and nothing else before the end."""
    double = [t.to(HALF).double() for t in tensors(group, features=features, out=out, side=side)]
    torch.testing.assert_close(
        multiplied_in_bf16(*double, group, lambda x, *_: x, **how), defined(*double, group, **how)
    )
    wanted = multiplied_in_bf16(*double, group, **how)
    got = ours(*(t.to(HALF) for t in double), group, pairs=True, **how).double()
    assert ((got - wanted).abs() <= 2**-8 * wanted.abs() + 1e-5 * wanted.abs().max()).all()
    single = ours(*(t.float() for t in double), group, **how)
    assert (single - wanted).abs().max() > 1e-4 * wanted.abs().max()  # rounding can be seen at all


# --- equal to the definition ------------------------------------------------------------------------------------------


@needs_kernel
@each_group
@pytest.mark.parametrize("exact", FORMS)
def test_output_and_gradients_are_the_definition(group: Group, exact: bool) -> None:
    compare(group, tensors(group, features=8, out=8, side=9), padding=1, exact=exact)
    compare(group, tensors(group, features=17, out=9, side=6), padding=1, exact=exact)
    compare(group, tensors(group, features=4, out=4, kernel=1), exact=exact)
    compare(group, tensors(group, side=12), stride=2, dilation=2, padding=1, exact=exact)  # an asymmetric grid
    compare(group, tensors(group, side=11, kernel=2), stride=3, exact=exact)
    compare(group, tensors(group, side=7, kernel=7), padding=3, exact=exact)
    compare(group, tensors(group, features=300, out=2, side=2, kernel=1), exact=exact)  # deeper than a panel
    compare(group, tensors(group, side=5, kernel=1), stride=3, exact=exact)  # rows that no window reads


@needs_kernel
@each_group
@pytest.mark.parametrize("exact", FORMS)
def test_strides_on_even_sides_are_the_definition(group: Group, exact: bool) -> None:
    """Orientations read different pixels there: other forms, of one position and of the gradient to the input."""
    for features, out in ((3, 5), (8, 8), (18, 24)):
        for kernel, padding, stride in ((1, 0, 2), (3, 1, 2), (2, 0, 3), (5, 2, 2), (1, 1, 2), (1, 0, 4)):
            given = tensors(group, features=features, out=out, side=8, kernel=kernel)
            compare(group, given, stride=stride, padding=padding, exact=exact)


def test_which_forms_strides_take() -> None:
    def forms(group: Group, side: int, kernel: int) -> tuple[int, int]:
        out = (side - 1) // 2 + 1
        where = tuple(starts(group, side, kernel, 2, 1, kernel // 2, out))
        window = plan.Window((kernel, kernel), (2, 2), (1, 1), where, (side, side), (out, out))
        made = (make(group, window, 1, (8, 8), True) for make in (plan.forward_plan, plan.input_gradient_plan))
        return tuple(found.numbers[0] for found in made)

    for group in (C4, D4, OTHER_D4, FLIPS):
        found = structure(group)
        spread = found.exact if found.spread is None else found.spread
        assert forms(group, 8, 1) == (found.exact if found.apart is None else found.apart, spread)
        assert forms(group, 8, 3) == (found.exact, spread)
        assert forms(group, 9, 1) == forms(group, 9, 3) == (found.exact, found.exact)


@needs_kernel
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_shapes(data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(GROUPS))
    kernel, dilation = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 2))
    padding = data.draw(st.integers(0, 3))
    side = data.draw(st.integers(max(1, dilation * (kernel - 1) + 1 - 2 * padding), 14))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    sizes = {"batch": 3, "features": 20, "out": 20}
    drawn = {name: data.draw(st.integers(1, most)) for name, most in sizes.items()}
    how = {"stride": data.draw(st.integers(1, 3)), "dilation": dilation, "padding": padding}
    compare(group, tensors(group, side=side, kernel=kernel, **drawn), **how, exact=data.draw(st.booleans()))


@needs_kernel
@each_group
def test_images_need_not_be_square(group: Group) -> None:
    """Against conv2d with turned filters in float64, one orientation at a time."""
    x, weight = torch.randn(2, 2 * group.order, 9, 6), torch.randn(3, 2 * group.order, 3, 3)
    got = group_conv(x, weight, None, group, starts=[(-1, -1)] * group.order, output_size=(9, 6))
    filters, x = weight.double().unflatten(1, (2, group.order)), x.double()
    for h in range(group.order):
        back = group.inverse[h]
        turned = torch.stack(
            [qt.act(filters[:, :, group.table[k][back]], group, back) for k in range(group.order)], dim=2
        )
        expected = torch.conv2d(x, turned.flatten(1, 2), padding=1)
        torch.testing.assert_close(got[:, h :: group.order].double(), expected, rtol=1e-6, atol=1e-5)


@needs_kernel
def test_sequences_are_images_of_one_row() -> None:
    x, weight = torch.randn(2, 6, 9), torch.randn(4, 6, 3)
    got = group_conv(x, weight, None, FLIP, starts=[(-1,)] * 2, output_size=(9,))
    wanted = qt.stack(torch.conv1d(qt.roll(qt.unstack(x, FLIP), FLIP), weight, padding=1), FLIP)
    torch.testing.assert_close(got, wanted)


@needs_kernel
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_second_derivatives(group: Group) -> None:
    def second(run, inputs: list[Tensor], direction: Tensor) -> tuple[Tensor, ...]:
        inputs = [t.clone().requires_grad_() for t in inputs]
        y = run(*inputs, group, stride=2, padding=1)
        first = torch.autograd.grad((y**2 * direction).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), inputs)

    inputs = tensors(group, side=6, out=2)
    direction = torch.randn_like(defined(*inputs, group, stride=2, padding=1))
    wanted = second(defined, inputs, direction)
    got = second(ours, [t.float() for t in inputs], direction.float())
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).abs().max() < 1e-5 * b.abs().max()


@needs_kernel
def test_any_memory_format_and_empty_batches() -> None:
    x, weight, bias = (t.float() for t in tensors(C4, features=4, side=6))
    wanted = ours(x, weight, bias, C4, padding=1)
    assert wanted.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(ours(x.to(memory_format=torch.channels_last), weight, bias, C4, padding=1), wanted)
    apart = torch.stack([x, x], dim=-1)[..., 0]
    assert torch.equal(ours(apart, weight.transpose(0, 1).contiguous().transpose(0, 1), bias, C4, padding=1), wanted)
    assert ours(x[:0], weight, bias, C4, padding=1).shape == (0, 20, 6, 6)


# --- exactly equivariant, on any number of threads --------------------------------------------------------------------


def turned(x: Tensor, group: Group, h: int) -> Tensor:
    """Stacked maps of the input turned by h: h x_{gh} at orientation g."""
    orientations = x.unflatten(1, (-1, group.order))
    return qt.act(orientations[:, :, [group.table[g][h] for g in range(group.order)]].flatten(1, 2), group, h)


def errors(
    group: Group, exact: bool, dtype: torch.dtype = torch.float32, side: int = 17, kernel: int = 3, **how: int
) -> tuple[float, float]:
    """The largest difference of a turned output and input gradient from what they should be."""
    x, weight, bias = (t.to(dtype) for t in tensors(group, features=16, out=16, side=side, kernel=kernel))
    x.requires_grad_()
    y = ours(x, weight, bias, group, **how, exact=exact)
    grad = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, grad)
    worst = [0.0, 0.0]
    for h in range(group.order):
        other = turned(x, group, h).detach().requires_grad_()
        z = ours(other, weight, bias, group, **how, exact=exact)
        (of_other,) = torch.autograd.grad(z, other, turned(grad, group, h))
        gaps = (z - turned(y, group, h)).abs().max(), (of_other - turned(gradient, group, h)).abs().max()
        worst = [max(w, gap.item()) for w, gap in zip(worst, gaps, strict=True)]
    return worst[0], worst[1]


@needs_kernel
@each_group
def test_equivariance_is_exact_to_the_bit(group: Group) -> None:
    assert errors(group, exact=True, padding=1) == (0.0, 0.0)
    assert errors(group, exact=True, padding=1, stride=2) == (0.0, 0.0)
    assert errors(group, exact=True, padding=2, stride=3, dilation=2) == (0.0, 0.0)  # an asymmetric grid
    assert errors(group, exact=True, side=16, stride=2, kernel=1) == (0.0, 0.0)
    assert errors(group, exact=True, side=16, stride=2, padding=1) == (0.0, 0.0)


@needs_kernel
def test_the_fast_form_of_c4_is_exact_to_rounding_only() -> None:
    forward, gradient = errors(C4, exact=False, padding=1)
    assert 0.0 < forward < 1e-3
    assert 0.0 < gradient < 1e-3


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@needs_kernel
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("exact", FORMS)
@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_the_number_of_threads(group: Group, exact: bool) -> None:
    inputs = [t.float().requires_grad_() for t in tensors(group, batch=5, features=6, out=6, side=24)]
    grad = torch.randn(5, 6 * group.order, 12, 12)
    results = []
    for number in (1, 2, 3, 5):
        torch.set_num_threads(number)
        y = ours(*inputs, group, stride=2, padding=1, exact=exact)
        results.append((y, *torch.autograd.grad(y, inputs, grad)))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


# --- torch sees operators ---------------------------------------------------------------------------------------------


@needs_kernel
@pytest.mark.parametrize("bias", [True, False])
def test_the_operators_pass_torchs_own_checks(bias: bool) -> None:
    x, weight, b = (t.float().requires_grad_() for t in tensors(C4, side=6, features=2, out=3))
    elements = [a for element in C4.elements for a in element]
    how = (elements, [1, 1], [1, 1], [-1] * 8)
    grad = torch.randn(2, 12, 6, 6, requires_grad=True)
    torch.library.opcheck(operators._convolve, (x, weight, b if bias else None, *how, [6, 6], True, False))
    torch.library.opcheck(operators._input_gradient, (grad, weight, *how, [6, 6], True, False))
    torch.library.opcheck(operators._weight_gradient, (x, grad, *how, [3, 3], True))


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 16, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return ours(x, self.weight, None, C4, padding=1).relu()


@needs_kernel
def test_compile_and_export_see_one_operator() -> None:
    layer, x = Layer(), torch.randn(2, 16, 6, 6)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=0)
    (wanted,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    (got,) = torch.autograd.grad(compiled(x).sum(), layer.weight)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    exported = torch.export.export(layer, (x,))
    assert torch.equal(exported.module()(x), layer(x))
    assert sum("group_conv" in str(node.target) for node in exported.graph.nodes) == 1


@needs_kernel
def test_shapes_are_right_on_the_meta_device() -> None:
    x, weight, bias = (t.float().to("meta").requires_grad_() for t in tensors(D4, side=8))
    y = ours(x, weight, bias, D4, stride=2, padding=1)
    assert y.shape == (2, 40, 4, 4)
    assert [g.shape for g in torch.autograd.grad(y.sum(), (x, weight, bias))] == [x.shape, weight.shape, bias.shape]


# --- packed weights ---------------------------------------------------------------------------------------------------


@needs_kernel
def test_packed_weights_are_kept_until_the_parameter_changes() -> None:
    layer, x = Layer().eval(), torch.randn(2, 16, 6, 6)
    with torch.no_grad():
        before = layer(x)
        assert packed_weights._kept[layer.weight].checksum is None  # which a single call need not find out
        assert torch.equal(layer(x), before)
        kept = packed_weights._kept[layer.weight].packed
        assert torch.equal(layer(x), before)
        assert packed_weights._kept[layer.weight].packed is kept
        layer.weight.mul_(2)
        torch.testing.assert_close(layer(x), 2 * before)
        layer.weight.data.mul_(2)  # does not change the version, here after a first call
        torch.testing.assert_close(layer(x), 4 * before)
        layer.weight.data.mul_(2)  # and here after a second
        torch.testing.assert_close(layer(x), 8 * before)
        other = copy.deepcopy(layer)
        other.weight.zero_()
        assert other(x).abs().max() == 0
    number = len(packed_weights._kept)
    del layer, other
    assert len(packed_weights._kept) < number
    with torch.inference_mode():
        torch.testing.assert_close(ours(x, torch.ones(4, 16, 3, 3), None, C4).shape, (2, 16, 4, 4))


@needs_kernel
@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 600), data=st.data())
def test_checksums_change_with_the_values(size: int, data: st.DataObject) -> None:
    values = torch.randn(size)
    before = library.library().checksum(values)
    assert library.library().checksum(values.clone()) == before
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4, unique=True))
    for change in (lambda x: -x, lambda x: torch.nextafter(x, torch.tensor(9.0)), lambda x: 2 * x):
        other = values.clone()
        other[places] = change(other[places])
        assert library.library().checksum(other) != before
    if size > 1:
        assert library.library().checksum(values.roll(1)) != before


# --- what is refused --------------------------------------------------------------------------------------------------


def test_mistakes_are_answered() -> None:
    x, weight, bias = (t.float() for t in tensors(C4))
    with pytest.raises(qt.OptionError, match=r"takes float32 and bf16 on the CPU, got torch\.float64 on cpu as input"):
        ours(x.double(), weight, bias, C4)
    with pytest.raises(qt.ShapeError, match=r"stacked maps \(N, in\*4, \.\.\.\)"):
        ours(x[:, :7], weight[:, :7], bias, C4)
    with pytest.raises(qt.ShapeError, match="one number for each of 5 features"):
        ours(x, weight, bias[:2], C4)
    with pytest.raises(qt.ShapeError, match="needs 4 starts"):
        group_conv(x, weight, bias, C4, starts=[(0, 0)], output_size=(5, 5))


@needs_kernel
def test_windows_that_do_not_turn_into_each_other_are_refused() -> None:
    x, weight, bias = (t.float() for t in tensors(C4))
    with pytest.raises(qt.ShapeError, match="use conv2d with turned filters"):
        group_conv(x, weight, bias, C4, starts=[(0, 0), (0, 0), (1, 0), (0, 0)], output_size=(5, 5))
    with pytest.raises(qt.ShapeError, match="make them equal"):
        group_conv(x, weight, bias, C4, stride=(1, 2), starts=[(0, 0)] * 4, output_size=(5, 5))


# --- compiling and finding the kernel ---------------------------------------------------------------------------------


def test_without_a_compiler_the_kernel_is_missing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler.compiler() is None
    with pytest.raises(OSError, match=r"install g\+\+ or clang\+\+"):
        compiler.compile_kernel("portable", tmp_path)
    chosen = library.choose(tmp_path)
    assert (chosen.code, chosen.path) == ("conv2d", None)
    assert "not compiled" in chosen.why
    monkeypatch.setattr(library, "choose", lambda folder: chosen)
    monkeypatch.setattr(library, "renew", lambda: None)
    library.kernels.cache_clear()
    try:
        with caplog.at_level(logging.INFO, logger="quarterturn"):
            assert library.kernels() == library.kernels() == chosen
        assert [record.message for record in caplog.records] == [
            f"group convolutions on CPU run through conv2d: {chosen.why}"
        ]
    finally:
        library.kernels.cache_clear()


def test_a_broken_file_is_not_fatal(tmp_path: Path) -> None:
    compiler.file_of("portable", tmp_path).write_text(f"no library, but built from {compiler.fingerprint('portable')}")
    assert "does not load" in library.choose(tmp_path).why


def test_kernels_that_fit_their_sources_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def compile_kernel(code: str, folder: Path, part: str) -> Path:
        made.append(code)
        compiler.file_of(code, folder, part).write_text(f"built from {compiler.fingerprint(code, part)}")
        return compiler.file_of(code, folder, part)

    monkeypatch.setattr(compiler, "compile_kernel", compile_kernel)
    files = compiler.compile_all(tmp_path)
    assert len(made) == len(files)
    assert compiler.compile_all(tmp_path) == files
    assert len(made) == len(files)
    files[0].write_text("built from something else")
    compiler.compile_all(tmp_path)
    assert made[len(files) :] == ["portable"]


@needs_compiler
def test_a_failing_compiler_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-option"):
        compiler.compile_kernel("portable", tmp_path, "-fsyntax-only", "--no-such-option")


@needs_kernel
def test_portable_code_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ.get(library.FOLDER, compiler.HERE))
    check_code_path(compiler.file_of("portable", folder), monkeypatch)


@needs_compiler
@pytest.mark.skipif(str(library.kernels().code).startswith("avx512"), reason="wide vectors run here in all other tests")
def test_wide_vectors_are_the_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of AVX-512, compiled for any processor: slow there, but the same sums."""
    check_code_path(compiler.compile_kernel("portable", tmp_path, "-O1", "-DQUARTERTURN_WIDE"), monkeypatch)


def check_code_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = library.Library(str(path))
    monkeypatch.setattr(operators, "library", lambda: other)
    monkeypatch.setattr(moves, "library", lambda: other)
    for group, exact in itertools.product((C2, FLIPS, C4, D4), FORMS):
        compare(group, tensors(group, features=18, out=24, side=6), padding=1, exact=exact)
        compare(group, tensors(group, features=5, out=9, side=8), stride=2, padding=1, exact=exact)
        check_rounding(group, exact, padding=1)
    assert errors(D4, exact=True, padding=1) == errors(D4, exact=True, dtype=HALF, padding=1) == (0.0, 0.0)
    assert errors(C4, exact=True, padding=1, stride=2) == (0.0, 0.0)
    check_pairs(D4, features=5, out=9, side=7, padding=1, stride=2)
    check_pairs(C4, features=18, out=24, side=6, padding=1)
    assert errors(D4, exact=True, dtype=HALF, padding=1, pairs=True) == (0.0, 0.0)
    for shape, features in (((), 13), ((9, 9), 2)):
        for name, x in operands(D4, shape, features):
            assert_same_bits(name, x, D4, monkeypatch)
            if shape:
                assert_same_bits(name, x.detach().to(memory_format=torch.channels_last), D4, monkeypatch)


def test_groups_without_a_transform_are_said_to_have_none() -> None:
    assert not is_available(generate("a cycle of four axes", (2, 3, 4, 1)))
    assert is_available(D4) == is_available()


# --- the layers pick it by themselves ---------------------------------------------------------------------------------


def layer(group: Group = C4, features: int = 8, **how) -> qt.RollConv:
    torch.manual_seed(0)
    return qt.RollConv(group, features, features, how.pop("kernel", 3), rotate="filters", **how)


@needs_kernel
@pytest.mark.parametrize("group", [FLIP, *GROUPS], ids=lambda g: g.name)
def test_layers_give_the_same_through_either(group: Group) -> None:
    features = 64 // group.order
    x = torch.randn(2, 64, *[10, 8][: group.dim], requires_grad=True)
    results = []
    for via in ("conv", "fourier", "fourier-rounded", "auto"):
        net = layer(group, features, via=via, stride=2, padding=1)
        y = net(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *net.parameters()])))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
    assert torch.equal(results[1][0], results[3][0])


@needs_kernel
@each_group
def test_remainders_that_differ_are_left_to_torch(group: Group) -> None:
    """Stride 2 on 10 x 7: a group that exchanges the axes has no common middle for its windows."""
    x = torch.randn(2, 64, 10, 7)
    auto, conv2d = (layer(group, 64 // group.order, stride=2, padding=1, via=via) for via in ("auto", "conv"))
    torch.testing.assert_close(auto(x), conv2d(x), rtol=1e-4, atol=1e-5)
    forced = layer(group, 64 // group.order, stride=2, padding=1, via="fourier")
    if group.exchanged:
        with pytest.raises(qt.ShapeError, match="not where orientation 0's come to lie"):
            forced(x)
    else:
        torch.testing.assert_close(forced(x), conv2d(x), rtol=1e-4, atol=1e-5)


def code(net: qt.RollConv, side: int = 6, **how) -> str:
    return net.execution(torch.zeros(1, net.in_features * net.group.order, *[side] * net.group.dim, **how)).code


@needs_kernel
def test_auto_takes_the_kernel_where_it_can() -> None:
    assert code(layer(features=64)) == code(copy.deepcopy(layer(features=64))) == "kernel"
    for net in (
        layer(features=1),
        layer(features=64, via="conv"),
        layer(features=64, groups=2),
        layer(features=64, padding=1, padding_mode="circular"),
        layer(OCTA, features=8, stride=2),
    ):
        assert code(net) == "torch's convolution", net
    assert qt.RollConv(C4, 64, 64, 3).execution(torch.zeros(4, 64, 6, 6)).code == "torch's convolution"
    assert code(layer(features=64).double(), dtype=torch.float64) == "torch's convolution"


@needs_kernel
@pytest.mark.parametrize("via", ["auto", "conv", "fourier", "fourier-rounded"])
@pytest.mark.parametrize("features", [2, 16])
def test_what_execution_says_is_what_runs(via: str, features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = operators._convolve
    monkeypatch.setattr(operators, "_convolve", lambda *given: calls.append(1) or run(*given))
    for side, stride in ((9, 2), (8, 2), (8, 1)):
        net, x = layer(D4, features, via=via, stride=stride), torch.randn(1, features * 8, side, side)
        said, before = net.execution(x), len(calls)
        net(x)
        assert (said.code == "kernel") == (len(calls) > before)
        assert said.why
        assert said.share == (12 / 64 if said.code == "kernel" else 1)


@needs_kernel
def test_auto_leaves_to_torch_what_the_kernel_cannot() -> None:
    """Other precisions, forward derivatives, torch.func."""
    net, x = layer(), torch.randn(2, 32, 6, 6)
    torch.testing.assert_close(net.double()(x.double()).float(), net.float()(x), rtol=1e-4, atol=1e-5)
    with torch.autograd.forward_ad.dual_level():
        dual = net(torch.autograd.forward_ad.make_dual(x, x))
        y, tangent = torch.autograd.forward_ad.unpack_dual(dual)
    torch.testing.assert_close(tangent, y - net(torch.zeros_like(x)), rtol=1e-4, atol=1e-5)
    y, tangent = torch.func.jvp(net, (x,), (x,))
    torch.testing.assert_close(tangent, y - net(torch.zeros_like(x)), rtol=1e-4, atol=1e-5)
    batched = torch.func.vmap(net)(torch.stack([x, 2 * x]))
    torch.testing.assert_close(batched, torch.stack([net(x), net(2 * x)]))
    gradient = torch.func.grad(lambda x: net(x).square().sum())(x)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(net(leaf).square().sum(), leaf)[0])
    each = torch.func.vmap(torch.func.grad(lambda x: net(x).square().sum()))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(each[0], gradient)


def test_what_the_kernel_cannot_run_is_refused_where_it_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(qt.OptionError, match="unknown via 'furier': did you mean 'fourier'"):
        layer(via="furier")
    with pytest.raises(qt.OptionError, match="for RollConv only"):
        qt.SliceConv(C4, 1, 8, 3, rotate="filters", via="fourier")
    with pytest.raises(qt.OptionError, match="cannot run this layer"):
        qt.RollConv(OCTA, 8, 8, 3, rotate="filters", via="fourier-rounded")
    if is_available():
        with pytest.raises(qt.OptionError, match="groups=1"):
            layer(via="fourier", groups=2)
        with pytest.raises(qt.OptionError, match="equal strides"):
            layer(via="fourier", stride=(1, 2))
    monkeypatch.setattr("quarterturn.kernel.select.is_available", lambda group=None: False)
    assert code(layer(features=64)) == "torch's convolution"
    with pytest.raises(qt.OptionError, match=r"use via=\"auto\""):
        layer(via="fourier")


def test_a_network_in_float32_is_equivariant_to_the_bit() -> None:
    net = torch.nn.Sequential(layer(D4, padding=1), torch.nn.ReLU(), layer(D4, stride=2, via="auto"))
    x = torch.randn(2, 64, 12, 12)
    gap = max((net(turned(x, D4, h)) - turned(net(x), D4, h)).abs().max().item() for h in range(8))
    assert gap == 0.0 if is_available() else gap < 1e-4


@pytest.mark.parametrize("group", [C4, OCTA], ids=lambda g: g.name)
def test_dense_layers_give_the_same_through_either(group: Group) -> None:
    results = []
    for via in ("linear", "fourier", "auto"):
        torch.manual_seed(0)
        net = qt.RollLinear(group, 22, 22, rotate="filters", via=via, dtype=torch.float64)
        results.append(net(torch.ones(2, 22 * group.order, dtype=torch.float64).cumsum(1)))
    torch.testing.assert_close(results[1], results[0])
    assert torch.equal(results[2], results[1] if group is OCTA else results[0])  # 528 features are enough, 88 are not
    with pytest.raises(qt.OptionError, match="unknown via"):
        qt.RollLinear(group, 2, 2, via="conv")


@pytest.mark.parametrize("group", [D4, OCTA, OCTA_FULL], ids=lambda g: g.name)
def test_wide_pointwise_layers_without_the_kernel_are_dense(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarterturn.kernel.select.is_available", lambda group=None: False)
    calls = []
    run = qt.fourier.group_pointwise
    monkeypatch.setattr("quarterturn.fourier.group_pointwise", lambda *given: calls.append(1) or run(*given))
    features = -(-512 // group.order)
    x = torch.randn(2, features * group.order, *[3] * group.dim, dtype=torch.float64, requires_grad=True)
    results = []
    for via in ("conv", "auto"):
        net = layer(group, features, kernel=1, via=via, dtype=torch.float64)
        y = net(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *net.parameters()])))
    assert calls == [1]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a)
    for other in ({"stride": 2}, {"padding": 1}, {"groups": 2}, {"kernel": 2}):
        layer(group, 2 * features, **{"kernel": 1, **other}, dtype=torch.float64)(torch.cat([x, x], dim=1))
    layer(group, features - 1, kernel=1, dtype=torch.float64)(x[:, group.order :])
    assert calls == [1]


# --- maps from place to place -----------------------------------------------------------------------------------------


def operands(group: Group, shape: tuple[int, ...], features: int) -> Iterator[tuple[str, Tensor]]:
    """An input for each operation: two examples with so many features for each of its places, and a negative zero."""
    for name in ("slice", "stack", "unstack", "roll", "pool"):
        pathways = group.order if name in ("stack", "roll", "pool") else 1
        orientations = group.order if name == "unstack" else 1
        x = torch.randn(2 * pathways, features * orientations, *shape)
        x[0, 0] = -0.0
        yield name, x


def assert_same_bits(name: str, x: Tensor, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation and its gradient, through the kernel and without it."""
    x.requires_grad_()
    results = []
    for suits in (moves.suits_moves, lambda *_: False):
        monkeypatch.setattr(qt.kernel, "suits_moves", suits)
        y = getattr(qt, name)(x, group)
        grad = torch.empty_like(y).copy_(torch.arange(1.0, y.numel() + 1).view(y.shape).sin())
        results.append((y, torch.autograd.grad(y, x, grad)[0]))
    for one, other in zip(*results, strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


@needs_kernel
@pytest.mark.parametrize("group", [FLIP, *GROUPS], ids=lambda g: g.name)
@pytest.mark.parametrize("side", [3, 8, 13, 19, 46])
def test_moves_through_the_kernel_are_the_same_bits(group: Group, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, x in operands(group, (side,) * group.dim, features=3):
        assert_same_bits(name, x, group, monkeypatch)


@needs_kernel
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
@pytest.mark.parametrize("features", [1, 3, 4, 13])
def test_moves_with_features_last_are_the_same_bits(
    group: Group, features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, x in operands(group, (5, 5), features):
        x = x.to(memory_format=torch.channels_last)
        assert torch.equal(getattr(qt, name)(x, group), getattr(qt, name)(x.contiguous(), group))
        assert_same_bits(name, x, group, monkeypatch)
        monkeypatch.undo()


@needs_kernel
@pytest.mark.parametrize("group", [FLIP, *GROUPS, OCTA], ids=lambda g: g.name)
@pytest.mark.parametrize("features", [1, 3, 4, 13])
def test_moves_of_dense_features_are_the_same_bits(
    group: Group, features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, x in operands(group, (), features):
        assert_same_bits(name, x, group, monkeypatch)


@needs_kernel
def test_the_kernel_moves_what_it_can_and_nothing_else() -> None:
    x = torch.randn(8, 3, 5, 5)
    last = x.to(memory_format=torch.channels_last)
    for one, features_last in ((x, False), (x.flatten(2), False), (x.flatten(1), False), (last, True)):
        assert moves.suits_moves(one, features_last)
    for other in (x.double(), x.to("meta"), x[..., 1:], x[None], x[:0], x.flatten(1)[:, 1:]):
        assert not moves.suits_moves(other, False)
    for other in (last.double(), last[..., 1:], last[:, 1:]):
        assert not moves.suits_moves(other, True)
    inside = []
    torch.func.vmap(lambda t: inside.append(moves.suits_moves(t, False)) or t)(x[None])
    assert inside == [False]
    torch.testing.assert_close(torch.func.vmap(lambda t: qt.roll(t, C4))(x[None])[0], qt.roll(x, C4))
