"""The kernel's other code: positions side by side, batch norm, the gradient to depthwise filters."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernel import HALF, compare, each_group, needs_kernel, ours, tensors, turned
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, Group
from quarterturn.kernel import border, library
from quarterturn.layers import depthwise

# --- positions side by side -------------------------------------------------------------------------------------------


@needs_kernel
@each_group
@pytest.mark.parametrize("features", [1, 2, 5, 7, 8, 9])  # around the limits of that form, 8 and for gradients 7
@pytest.mark.parametrize(("kernel", "side"), [(1, 1), (1, 6), (3, 1), (3, 11), (2, 9)])
def test_few_features_are_the_definition(group: Group, features: int, kernel: int, side: int) -> None:
    padding = kernel // 2 if kernel % 2 else 1
    compare(group, tensors(group, features=features, out=3, side=side, kernel=kernel), padding=padding)
    compare(group, tensors(group, features=3, out=features, side=side, kernel=kernel), padding=padding)


@needs_kernel
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_shape_of_few_features(data: st.DataObject) -> None:
    group = data.draw(st.sampled_from((C4, D4)))
    features, out = (data.draw(st.integers(1, 17)) for _ in range(2))
    kernel = data.draw(st.sampled_from((1, 3)))
    side, batch = data.draw(st.integers(kernel, 21)), data.draw(st.integers(1, 3))
    stride = data.draw(st.integers(1, 2))  # gradients through strides have several phases
    double = tensors(group, batch, features, out, side, kernel)
    compare(group, double, padding=kernel // 2, stride=stride)


@needs_kernel
@each_group
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_few_features_are_exact_to_the_bit(group: Group, dtype: torch.dtype) -> None:
    x, weight, bias = (t.to(dtype) for t in tensors(group, features=3, out=4, side=19))
    y = ours(x, weight, bias, group, padding=1)
    for h in range(group.order):
        assert torch.equal(ours(turned(x, group, h), weight, bias, group, padding=1), turned(y, group, h))


@needs_kernel
def test_few_features_of_large_maps_in_many_tasks() -> None:
    compare(D4, tensors(D4, batch=2, features=2, out=2, side=70), padding=1)
    compare(C4, tensors(C4, batch=1, features=4, out=4, side=64, kernel=1))


@needs_kernel
def test_gradients_to_large_weights_are_cut_into_pieces() -> None:
    """Where they have more numbers than fit into partial sums."""
    before = torch.get_num_threads()
    double = tensors(C4, batch=2, features=300, out=280, side=3)
    compare(C4, double, padding=1)
    x, weight, bias = (t.float().requires_grad_() for t in double)
    grad = torch.randn(2, 280 * 4, 3, 3)
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(torch.autograd.grad(ours(x, weight, bias, C4, padding=1), (weight, bias), grad))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# --- batch norm -------------------------------------------------------------------------------------------------------


def normalised(x: Tensor, layer: qt.BatchNorm, grad: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = layer(x)
    parameters = list(layer.parameters())
    return [y.detach(), *torch.autograd.grad(y, [x, *parameters], grad), layer.running_mean, layer.running_var]


@needs_kernel
@pytest.mark.parametrize("group", [qt.C2, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(2, 1, 3, 3), (3, 5, 8, 7), (2, 40, 16, 16), (4, 3, 40, 40), (2, 520, 2, 2)])
def test_batch_norm_is_that_of_float64(group: Group, affine: bool, shape: tuple[int, ...]) -> None:
    batch, features, *size = shape
    x = 3 + torch.randn(batch, features * group.order, *size).to(memory_format=torch.channels_last)
    x[0, 0, 0, 0] = 1e3  # far from all others
    grad = torch.randn_like(x)
    layer = qt.BatchNorm(group, features, affine=affine, rotate="filters")
    if affine:
        nn.init.normal_(layer.weight)
    double = qt.BatchNorm(group, features, affine=affine, rotate="filters").double()
    double.load_state_dict(layer.state_dict())
    wanted = normalised(x.double().contiguous(), double, grad.double())
    found = normalised(x, layer, grad)
    for a, b in zip(found, wanted, strict=True):
        assert (a.double() - b).abs().max() <= 2e-5 * b.abs().max()
    assert found[0].is_contiguous(memory_format=torch.channels_last)


@needs_kernel
def test_sums_of_norms_are_checked() -> None:
    kernel, x, three, four = library.library(), torch.randn(24), torch.zeros(3), torch.zeros(4)

    def normalise(x=x, order=4, weight=three, bias=three, mean=three, var=three, y=x):  # type: ignore[no-untyped-def]
        kernel.normalise(x, order, weight, bias, 1e-5, mean.clone(), var.clone(), y.clone())

    def gradient(grad=x, x=x, order=4, weight=three, mean=three, var=three, of_x=x, of_weight=three, of_bias=three):  # type: ignore[no-untyped-def]
        outputs = (t.clone() for t in (of_x, of_weight, of_bias))
        kernel.normalise_gradient(grad, x, order, weight, 1e-5, (mean, var), *outputs)

    normalise()
    gradient()
    for wrong in (
        *({"x": x[:-1]}, {"order": 0}, {"weight": four}, {"bias": four}, {"mean": four}, {"var": four}, {"y": x[:12]}),
    ):
        with pytest.raises((qt.ShapeError, qt.KernelError)):
            normalise(**wrong)
    for wrong in (
        *({"grad": x[:12]}, {"x": x[:-1]}, {"order": 0}, {"weight": four}, {"mean": four}, {"var": four}),
        *({"of_x": x[:12]}, {"of_weight": four}, {"of_bias": four}),
    ):
        with pytest.raises((qt.ShapeError, qt.KernelError)):
            gradient(**wrong)


# --- max pooling ------------------------------------------------------------------------------------------------------


@needs_kernel
def test_plans_of_max_pooling_are_checked() -> None:
    kernel, plan = library.library(), border.pool_numbers(1, 3, (4, 4), (2, 2), (3, 3), (2, 2), (1, 1), [(-1, 0)] * 4)
    x, y, taken = torch.randn(4 * 4 * 12), torch.randn(2 * 2 * 12), torch.zeros(2 * 2 * 12, dtype=torch.int32)
    kernel.max_pool(plan, x, y, taken)
    kernel.max_pool_gradient(plan, y, taken, x)
    for sizes in ((x[1:], y, taken), (x, y[1:], taken), (x, y, taken[1:])):
        with pytest.raises(qt.ShapeError):
            kernel.max_pool(plan, *sizes)
        with pytest.raises(qt.ShapeError):
            kernel.max_pool_gradient(plan, sizes[1], sizes[2], sizes[0])
    for length in range(len(plan)):
        with pytest.raises(qt.KernelError):
            kernel.max_pool(border.numbers(list(plan)[:length]), x, y, taken)
    for place, value in (
        (0, -1),
        (1, 0),
        (2, 0),
        (2, 3),
        (2, 9),
        (3, -1),
        (7, 0),
        (7, 2**31 - 1),
        (9, 0),
        (11, 0),
        (13, 2**40),
    ):
        wrong = list(plan)
        wrong[place] = value
        with pytest.raises(qt.KernelError):
            kernel.max_pool(border.numbers(wrong), x, y, taken)


# --- depthwise filters ------------------------------------------------------------------------------------------------


@needs_kernel
@settings(deadline=None, max_examples=80)
@given(st.data())
def test_gradients_to_depthwise_filters(data: st.DataObject) -> None:
    kernel, stride, dilation = ([data.draw(st.integers(1, most)) for _ in range(2)] for most in (7, 3, 2))
    padding = [data.draw(st.integers(0, 4)) for _ in range(2)]
    # Two channels or more: with one, torch's own convolution in float32 is wrong or crashes where features are last and
    # the output has one column (torch 2.13 with AVX-512: 3 x 1 x 6 x 6, kernel 1 x 4, stride 1 x 3).
    channels, batch = data.draw(st.integers(2, 21)), data.draw(st.integers(1, 3))
    least = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [data.draw(st.integers(max(1, n), 14)) for n in least]
    x = torch.randn(batch, channels, *size, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(channels, 1, *kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(channels, dtype=torch.float64, requires_grad=True)
    wanted = F.conv2d(x, weight, bias, stride, padding, dilation, channels)
    grad = torch.randn_like(wanted)
    single = [t.detach().float().requires_grad_() for t in (x, weight, bias)]
    large = max(kernel) >= depthwise.LARGE
    assert depthwise.gains(*single) == large
    found = depthwise.convolve(*single, stride, padding, dilation)
    for a, b in zip(
        (found, *torch.autograd.grad(found, single, grad.float())),
        (wanted, *torch.autograd.grad(wanted, (x, weight, bias), grad)),
        strict=True,
    ):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 1e-5 * b.abs().max() + 1e-5


@needs_kernel
def test_depthwise_layers_train_as_before() -> None:
    layer = qt.DepthwiseConv(D4, 3, 3, stride=2, padding=1, rotate="filters")
    x = torch.randn(2, 24, 8, 8).to(memory_format=torch.channels_last)
    double = qt.DepthwiseConv(D4, 3, 3, stride=2, padding=1, rotate="filters").double()
    double.load_state_dict(layer.state_dict())
    found, wanted = layer(x), double(x.double())
    grad = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, list(layer.parameters()), grad),
        torch.autograd.grad(wanted, list(double.parameters()), grad.double()),
        strict=True,
    ):
        torch.testing.assert_close(a.double(), b, atol=1e-4, rtol=1e-4)
    y = layer(x.requires_grad_())  # second derivatives are torch's
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), layer.weight)[0].abs().max() > 0


@needs_kernel
def test_numbers_of_depthwise_layers_are_checked() -> None:
    kernel = library.library()
    x, grad, weight = torch.randn(1, 5, 5, 3), torch.randn(1, 5, 5, 3), torch.zeros(3, 3, 3)
    fine = list(border.depthwise_numbers(1, 3, (5, 5), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1)))

    def run(numbers: list[int], x: Tensor = x, grad: Tensor = grad, weight: Tensor = weight) -> None:
        kernel.depthwise_gradient(border.numbers(numbers), x, grad, weight)

    run(fine)
    for length in range(len(fine)):
        with pytest.raises(qt.KernelError, match="too short"):
            run(fine[:length])
    with pytest.raises(qt.KernelError, match="too long"):
        run([*fine, 1])
    for place in range(len(fine)):
        with pytest.raises((qt.KernelError, qt.ShapeError)):
            run([*fine[:place], -1, *fine[place + 1 :]])
    for wrong in ({"x": x[..., :2]}, {"grad": grad[:, 1:]}, {"weight": weight[1:]}):
        with pytest.raises(qt.ShapeError):
            run(fine, **{name: t.contiguous() for name, t in wrong.items()})
