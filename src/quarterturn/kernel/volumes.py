"""The group convolution of volumes as operators of torch: forward, gradient to the input, gradient to the weight.

As in operators.py, they are each other's gradients. Volumes are float32, features first in memory; stride 1.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from quarterturn.errors import GroupError, OptionError, ShapeError
from quarterturn.groups import Group
from quarterturn.kernel.library import VolumeLibrary, kernels, volume_library
from quarterturn.kernel.operators import operator
from quarterturn.kernel.volume_plan import VolumePlan, VolumeWindow, from_fourier, to_fourier, volume_plan
from quarterturn.kernel.watch import report

AXES = 3


def volume_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: Group,
    *,
    dilation: Sequence[int] = (1, 1, 1),
    starts: Sequence[Sequence[int]],
    output_size: Sequence[int],
) -> Tensor:
    """The filters-rotating convolution of stacked volumes: stack(conv(roll(unstack(x)), weight)), with fewer products.

    Stacked `(N, in*G, D, H, W)` and weight `(out, in*G, *k)` -> stacked `(N, out*G, *output_size)`, for windows with
    stride 1. `starts[g]` is where the first window of orientation g starts; outside the input it reads zeros.

    >>> from quarterturn import OCTA
    >>> x, weight = torch.randn(1, 24, 4, 4, 4), torch.randn(2, 24, 3, 3, 3)
    >>> from quarterturn.kernel import is_available
    >>> if is_available(OCTA):
    ...     y = volume_conv(x, weight, None, OCTA, starts=[(-1, -1, -1)] * 24, output_size=(4, 4, 4))
    ...     assert y.shape == (1, 48, 4, 4, 4)
    """
    elements = [a for element in group.elements for a in element]
    flat = [place for start in starts for place in start]
    return _convolve(x, weight, bias, elements, list(dilation), flat, list(output_size))


@lru_cache(maxsize=512)
def _read(elements: tuple[int, ...], starts: tuple[int, ...], *sizes: tuple[int, ...]) -> tuple[Group, VolumeWindow]:
    """The group and the window of what the operators are told in flat lists."""
    triples, corners = ([flat[i : i + AXES] for i in range(0, len(flat), AXES)] for flat in (elements, starts))
    group = Group("the group", tuple(triples))
    if group.dim != AXES:
        raise GroupError(f"volumes need a group of {AXES} axes, got one of {group.dim}")
    if len(corners) != group.order or len(corners[-1]) != AXES:
        raise ShapeError(f"{group.order} starts of {AXES} numbers are needed, one for each orientation, got {starts}")
    names = ("kernel_size", "dilation", "input_size", "output_size")
    for name, given in zip(names, sizes, strict=True):
        if len(given) != AXES or min(given) < 1:
            raise ShapeError(f"{name} is a positive number for each of {AXES} axes, got {given}")
    kernel, dilation, source, target = sizes
    return group, VolumeWindow(kernel, dilation, tuple(corners), source, target)


def _plan(
    x: Sequence[int], y: Sequence[int], kernel: Sequence[int], how: Sequence[Sequence[int]], adjoint: bool
) -> VolumePlan:
    """The plan for volumes of these shapes, which are checked: `(N, in*G, *S)` and `(N, out*G, *S')`."""
    elements, dilation, starts = map(tuple, how)
    group, window = _read(elements, starts, tuple(kernel), dilation, tuple(x[2:]), tuple(y[2:]))
    return volume_plan(group, window, x[0], (x[1] // group.order, y[1] // group.order), adjoint)


def _loaded() -> VolumeLibrary:
    found = volume_library()
    if found is None:
        raise OptionError(f"there is no kernel for volumes to run this: {kernels().why}")
    return found


def _check(order: int, channels: int, *tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None and (tensor.dtype is not torch.float32 or tensor.device.type not in ("cpu", "meta")):
            raise OptionError(
                f"the kernel for volumes takes float32 on the CPU, got {tensor.dtype} on {tensor.device}: use conv3d"
            )
    if order < 1 or channels < 1 or channels % order:
        raise ShapeError(f"{channels} channels do not hold the {order} orientations of at least one feature")


def _check_forward(x: Tensor, weight: Tensor, bias: Tensor | None, order: int) -> None:
    _check(order, weight.shape[1] if weight.dim() > 1 else 0, x, weight, bias)
    if x.dim() != AXES + 2 or weight.dim() != AXES + 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"stacked volumes (N, in*{order}, D, H, W) and weights (out, in*{order}, ...) are needed, "
            f"got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"the bias has one number for each of {weight.shape[0]} features, got {tuple(bias.shape)}")


def _check_input_gradient(grad: Tensor, weight: Tensor, order: int) -> None:
    _check(order, weight.shape[1] if weight.dim() > 1 else 0, grad, weight)
    if grad.dim() != AXES + 2 or weight.dim() != AXES + 2 or grad.shape[1] != weight.shape[0] * order:
        raise ShapeError(
            f"a gradient (N, out*{order}, D, H, W) and weights (out, in*{order}, ...) are needed, "
            f"got {tuple(grad.shape)} and {tuple(weight.shape)}"
        )


def _check_weight_gradient(x: Tensor, grad: Tensor, order: int) -> None:
    _check(order, x.shape[1] if x.dim() > 1 else 0, x, grad)
    if x.dim() != AXES + 2 or grad.dim() != AXES + 2 or len(x) != len(grad) or grad.shape[1] % order:
        raise ShapeError(
            f"stacked volumes (N, in*{order}, D, H, W) and a gradient (N, out*{order}, ...) are needed, "
            f"got {tuple(x.shape)} and {tuple(grad.shape)}"
        )


# --- the operators ----------------------------------------------------------------------------------------------------


@operator("quarterturn::volume_conv")
def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    elements: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    output_size: Sequence[int],
) -> Tensor:
    order = len(elements) // AXES
    _check_forward(x, weight, bias, order)
    y = x.new_empty(len(x), len(weight) * order, *output_size)
    report("convolve", x, weight, y)
    if y.numel():
        plan = _plan(x.shape, y.shape, weight.shape[2:], (elements, dilation, starts), False)
        of_bias = weight.new_zeros(len(weight)) if bias is None else bias.contiguous()
        _loaded().convolve(plan.numbers, x.contiguous(), to_fourier(plan, weight, False), of_bias, y)
    return y


@torch.library.register_fake("quarterturn::volume_conv")
def _(x, weight, bias, elements, dilation, starts, output_size):  # type: ignore[no-untyped-def]
    order = len(elements) // AXES
    _check_forward(x, weight, bias, order)
    return x.new_empty(x.shape[0], weight.shape[0] * order, *output_size)


@operator("quarterturn::volume_conv_input_gradient")
def _input_gradient(
    grad: Tensor,
    weight: Tensor,
    elements: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    input_size: Sequence[int],
) -> Tensor:
    _check_input_gradient(grad, weight, len(elements) // AXES)
    x = grad.new_empty(len(grad), weight.shape[1], *input_size)
    if not len(weight):
        return x.zero_()
    if x.numel():
        plan = _plan(x.shape, grad.shape, weight.shape[2:], (elements, dilation, starts), True)
        none = weight.new_zeros(weight.shape[1] * AXES // len(elements))
        _loaded().convolve(plan.numbers, grad.contiguous(), to_fourier(plan, weight, True), none, x)
    return x


@torch.library.register_fake("quarterturn::volume_conv_input_gradient")
def _(grad, weight, elements, dilation, starts, input_size):  # type: ignore[no-untyped-def]
    _check_input_gradient(grad, weight, len(elements) // AXES)
    return grad.new_empty(grad.shape[0], weight.shape[1], *input_size)


@operator("quarterturn::volume_conv_weight_gradient")
def _weight_gradient(
    x: Tensor,
    grad: Tensor,
    elements: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    kernel_size: Sequence[int],
) -> Tensor:
    order = len(elements) // AXES
    _check_weight_gradient(x, grad, order)
    out, count = grad.shape[1] // order, x.shape[1] // order
    if not grad.numel():
        return x.new_zeros(out, x.shape[1], *kernel_size)
    plan = _plan(x.shape, grad.shape, kernel_size, (elements, dilation, starts), False)
    found = x.new_empty(len(plan.weights) * len(plan.places) * count * out)
    _loaded().weight_gradient(plan.numbers, x.contiguous(), grad.contiguous(), found)
    return from_fourier(plan, found, out, count, kernel_size)


@torch.library.register_fake("quarterturn::volume_conv_weight_gradient")
def _(x, grad, elements, dilation, starts, kernel_size):  # type: ignore[no-untyped-def]
    order = len(elements) // AXES
    _check_weight_gradient(x, grad, order)
    return x.new_empty(grad.shape[1] // order, x.shape[1], *kernel_size)


# --- each is the others' gradient -------------------------------------------------------------------------------------


def _save_convolve(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.how, _ = inputs
    ctx.save_for_backward(x, weight)


def _differentiate_convolve(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    of_x = of_weight = of_bias = None
    if ctx.needs_input_grad[0]:
        of_x = _input_gradient(grad, weight, *ctx.how, list(x.shape[2:]))
    if ctx.needs_input_grad[1]:
        of_weight = _weight_gradient(x, grad, *ctx.how, list(weight.shape[2:]))
    if ctx.needs_input_grad[2]:
        of_bias = grad.unflatten(1, (len(weight), -1)).sum((0, 2, 3, 4, 5))
    return of_x, of_weight, of_bias, *[None] * 4


def _save_pair(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, *ctx.how, _ = inputs
    ctx.save_for_backward(first, second)


def _differentiate_input_gradient(ctx: Any, of_x: Tensor) -> tuple[Any, ...]:
    grad, weight = ctx.saved_tensors
    of_grad = _convolve(of_x, weight, None, *ctx.how, list(grad.shape[2:]))
    return of_grad, _weight_gradient(of_x, grad, *ctx.how, list(weight.shape[2:])), *[None] * 4


def _differentiate_weight_gradient(ctx: Any, of_weight: Tensor) -> tuple[Any, ...]:
    x, grad = ctx.saved_tensors
    of_x = _input_gradient(grad, of_weight, *ctx.how, list(x.shape[2:]))
    return of_x, _convolve(x, of_weight, None, *ctx.how, list(grad.shape[2:])), *[None] * 4


for _name, _differentiate, _save in (
    ("volume_conv", _differentiate_convolve, _save_convolve),
    ("volume_conv_input_gradient", _differentiate_input_gradient, _save_pair),
    ("volume_conv_weight_gradient", _differentiate_weight_gradient, _save_pair),
):
    torch.library.register_autograd(f"quarterturn::{_name}", _differentiate, setup_context=_save)
