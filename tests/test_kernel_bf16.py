"""The Fourier kernel on maps in bf16: float32 inside, rounded once, and as exactly equivariant."""

import shutil
import subprocess

import pytest
import torch
from test_kernel import (
    FORMS,
    HALF,
    check_pairs,
    check_rounding,
    each_group,
    errors,
    layer,
    needs_kernel,
    ours,
    tensors,
    with_gradients,
)

import quarterturn as qt
from quarterturn import C2, C4, D4, Group
from quarterturn.kernel import compiler, library, operators, packed_weights


@needs_kernel
@each_group
@pytest.mark.parametrize("exact", FORMS)
def test_bf16_is_float32_rounded_once(group: Group, exact: bool) -> None:
    check_rounding(group, exact, padding=1)
    check_rounding(group, exact, padding=1, stride=2)


@needs_kernel
@each_group
def test_bf16_is_the_definition_to_its_precision(group: Group) -> None:
    """Against turned maps and conv2d, in float64, on the same bf16 values."""
    double = [t.to(HALF).double() for t in tensors(group, features=9, out=7, side=8)]
    got = ours(*(t.to(HALF) for t in double), group, padding=1, stride=2).double()
    rolled = qt.roll(qt.unstack(double[0], group), group)
    wanted = qt.stack(torch.conv2d(rolled, *double[1:], stride=2, padding=1), group)
    assert ((got - wanted).abs() <= 2**-8 * wanted.abs() + 1e-5 * wanted.abs().max()).all()


@needs_kernel
@each_group
def test_equivariance_in_bf16_is_exact_to_the_bit(group: Group) -> None:
    assert errors(group, exact=True, dtype=HALF, padding=1) == (0.0, 0.0)
    assert errors(group, exact=True, dtype=HALF, padding=2, stride=3, dilation=2) == (0.0, 0.0)


@needs_kernel
def test_rounding_is_torchs_for_every_kind_of_number() -> None:
    """Ties, numbers too large for bf16, infinities and NaN: the bias comes out, rounded."""
    torch.manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (4096,)).to(torch.int32)
    bits[:1024] &= ~0xFFFF
    bits[:512] |= 0x8000  # ties
    bits[-4:] = torch.tensor([0x7F800000, 0x7F7FFFFF, 0x7FFFFFFF, 0x7F800001]).to(torch.int32)  # the last two are NaN
    bias = bits.view(torch.float32)
    got = ours(torch.zeros(1, 2, 1, 1, dtype=HALF), torch.zeros(4096, 2, 1, 1), bias, C2)[0, ::2, 0, 0]
    torch.testing.assert_close(got, bias.to(HALF), rtol=0, atol=0, equal_nan=True)
    assert bias.isnan().any()
    assert bias.isinf().any()


@needs_kernel
def test_weights_in_float32_with_maps_in_bf16() -> None:
    """They are not rounded on the way in, nor are their gradients on the way out."""
    x, weight, bias = (t.float() for t in tensors(D4, features=8, out=8))
    y, _, of_x, of_weight, of_bias = with_gradients([x.to(HALF), weight, bias], D4, padding=1)
    assert [t.dtype for t in (y, of_x, of_weight, of_bias)] == [HALF, HALF, torch.float32, torch.float32]
    assert torch.equal(y, ours(x.to(HALF).float(), weight, bias, D4, padding=1).to(HALF))
    with pytest.raises(qt.OptionError, match="a weight in bf16 needs an input in bf16"):
        ours(x, weight.to(HALF), bias, D4)
    with pytest.raises(qt.OptionError, match=r"float32 and bf16 on the CPU, got torch\.float16"):
        ours(x.half(), weight.half(), bias.half(), D4)


@needs_kernel
def test_second_derivatives_in_bf16() -> None:
    """The sums are small whole numbers, so that bf16 holds them and float32 is the reference."""
    results = []
    for dtype in (torch.float32, HALF):
        torch.manual_seed(0)
        shapes = ((1, 4, 3, 3), (1, 4, 1, 1))
        inputs = [torch.randint(-1, 2, shape).to(dtype).requires_grad_() for shape in shapes]
        y = ours(*inputs, None, C4)
        first = torch.autograd.grad(y, inputs, torch.ones_like(y), create_graph=True)
        results.append([y, *first, *torch.autograd.grad([t.sum() for t in first], inputs)])
    for a, b in zip(*results, strict=True):
        assert b.dtype == HALF
        torch.testing.assert_close(b.float(), a, rtol=2**-7, atol=0)


@needs_kernel
def test_packed_weights_in_bf16_are_kept() -> None:
    net, x = layer(via="fourier").to(HALF).eval(), torch.randn(2, 32, 6, 6, dtype=HALF)
    with torch.no_grad():
        before = net(x)
        assert torch.equal(net(x), before)
        kept = packed_weights._kept[net.weight].packed
        assert torch.equal(net(x), before)
        assert packed_weights._kept[net.weight].packed is kept
        net.weight.data.mul_(2)
        assert not torch.equal(net(x), before)


# --- products in bf16 -------------------------------------------------------------------------------------------------


@needs_kernel
@each_group
def test_products_in_bf16_are_the_definition_with_both_factors_rounded(group: Group) -> None:
    check_pairs(group, features=8, out=8, side=5, padding=1)
    check_pairs(group, features=5, out=9, side=7, padding=1, stride=2)  # 45 columns: the last pair is half empty
    check_pairs(group, features=60, out=4, side=3)  # 540 columns: two blocks


@needs_kernel
@each_group
def test_products_in_bf16_are_equivariant_to_the_bit(group: Group) -> None:
    assert errors(group, exact=True, dtype=HALF, padding=1, pairs=True) == (0.0, 0.0)
    assert errors(group, exact=True, dtype=HALF, padding=2, stride=3, dilation=2, pairs=True) == (0.0, 0.0)


@needs_kernel
def test_gradients_with_products_in_bf16() -> None:
    """Those to weight and bias keep float32 products; that to the input is within what rounding both factors does."""
    inputs = [t.to(HALF) for t in tensors(D4, features=9, out=7, side=8)]
    _, grad, *pairs = with_gradients(inputs, D4, padding=1, pairs=True)
    _, _, *floats = with_gradients(inputs, D4, grad, padding=1)
    assert torch.equal(pairs[1], floats[1])
    assert torch.equal(pairs[2], floats[2])
    gap = (pairs[0] - floats[0]).abs().max() / floats[0].abs().max()
    assert 0 < gap < 2**-6


@needs_kernel
def test_what_is_not_finite_stays_in_its_windows_with_products_in_bf16() -> None:
    """Half of the last pair of 45 columns belongs to no number, and must not be read."""
    x, weight, bias = (t.to(HALF) for t in tensors(C4, batch=1, features=5, out=8, side=9))
    x[0, :, 4, 4] = float("nan")
    finite = ours(x, weight, bias, C4, padding=1, pairs=True).isfinite().all(1)[0]
    wanted = torch.ones(9, 9, dtype=torch.bool)
    wanted[3:6, 3:6] = False
    assert torch.equal(finite, wanted)


@needs_kernel
def test_layers_with_products_in_bf16() -> None:
    net, x = layer(D4, via="fourier-bf16", padding=1), torch.randn(2, 64, 6, 6)
    other = layer(D4, via="fourier", padding=1)
    with pytest.raises(qt.OptionError, match=r"products in bf16 are for maps in bf16, got torch\.float32"):
        net(x)
    with torch.autocast("cpu", HALF), torch.no_grad():
        y = net(x)
        assert not torch.equal(y, other(x))
        torch.testing.assert_close(y, other(x), rtol=2**-5, atol=2**-5)
        other.weight = net.weight  # the kept packed weights are of one form at a time
        assert torch.equal(net(x), y)
        assert not torch.equal(other(x), y)
        assert torch.equal(net(x), y)


@pytest.mark.skipif(
    not compiler.file_of("avx512bf16").exists(), reason="the kernel is not compiled for such processors"
)
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
def test_the_instruction_is_used_where_it_is_known() -> None:
    """It cannot be run on every machine; that the compiler was handed it can be seen."""
    for code, used in (("avx512bf16", True), ("avx512", False)):
        listing = subprocess.run(["objdump", "-d", compiler.file_of(code)], capture_output=True, text=True, check=True)
        assert ("vdpbf16ps" in listing.stdout) == used


# --- torch sees operators ---------------------------------------------------------------------------------------------


@needs_kernel
@pytest.mark.parametrize(("weights", "pairs"), [(HALF, False), (torch.float32, False), (HALF, True)])
def test_the_operators_pass_torchs_own_checks_in_bf16(weights: torch.dtype, pairs: bool) -> None:
    x, weight, b = (t.to(HALF) for t in tensors(C4, side=6, features=2, out=3))
    x, weight, b = x.requires_grad_(), weight.to(weights).requires_grad_(), b.to(weights).requires_grad_()
    how = ([a for element in C4.elements for a in element], [1, 1], [1, 1], [-1] * 8)
    grad = torch.randn(2, 12, 6, 6, dtype=HALF, requires_grad=True)
    torch.library.opcheck(operators._convolve, (x, weight, b, *how, [6, 6], True, pairs))
    torch.library.opcheck(operators._input_gradient, (grad, weight, *how, [6, 6], True, pairs))
    torch.library.opcheck(operators._weight_gradient, (x, grad, *how, [3, 3], True))


@needs_kernel
def test_compile_and_export_in_bf16() -> None:
    net, x = layer(via="fourier", padding=1).to(HALF), torch.randn(2, 32, 6, 6, dtype=HALF)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), net(x))
    exported = torch.export.export(net, (x,))
    assert torch.equal(exported.module()(x), net(x))
    (node,) = (node for node in exported.graph.nodes if "group_conv" in str(node.target))
    assert node.meta["val"].dtype == HALF
    meta = ours(*(t.to("meta", HALF) for t in tensors(C4)), C4)
    assert (meta.dtype, meta.shape) == (HALF, (2, 20, 5, 5))


# --- layers and autocast ----------------------------------------------------------------------------------------------


@needs_kernel
def test_autocast_takes_and_gives_bf16() -> None:
    net, x = layer(via="fourier", padding=1), torch.randn(2, 32, 6, 6, requires_grad=True)
    with torch.autocast("cpu", HALF):
        y = net(x)
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)(x)
    assert y.dtype == compiled.dtype == HALF
    assert torch.equal(compiled, y)
    assert torch.equal(y, net(x.detach().to(HALF).float()).to(HALF))
    gradients = torch.autograd.grad(y.float().square().sum(), [x, *net.parameters()])
    wanted = torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])
    for a, b in zip(gradients, wanted, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() < 2**-6 * b.abs().max()


@needs_kernel
def test_auto_takes_the_kernel_in_bf16_where_torch_has_no_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = qt.kernel.group_conv
    monkeypatch.setattr("quarterturn.kernel.group_conv", lambda *given, **how: calls.append(1) or run(*given, **how))
    net, x = layer(), torch.randn(2, 32, 6, 6)
    for code, used in (("avx2", True), ("avx512", False)):
        chosen = library.Kernels(code, None, "as a test says")
        monkeypatch.setattr("quarterturn.kernel.select.kernels", lambda chosen=chosen: chosen)
        calls.clear()
        assert net.to(HALF)(x.to(HALF)).dtype == HALF
        assert bool(calls) == used
        net.float()
        with torch.autocast("cpu", HALF):
            assert net(x).dtype == HALF
        assert len(calls) == 2 * used
        with torch.autocast("cpu", torch.float16):
            assert net(x).dtype == torch.float16
        assert len(calls) == 2 * used
    with pytest.raises(RuntimeError, match="should be the same"):  # torch's own words, as without the kernel
        net(x.to(HALF))
