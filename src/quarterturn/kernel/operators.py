"""The group convolution as operators of torch: forward, gradient to the input, gradient to weight and bias.

Maps are float32 or bf16, in and out alike. Inside all sums are float32, and what comes out is rounded once; weights
may be float32 with maps in bf16, as under autocast, and their gradient leaves the operator in float32. What is
multiplied is float32, or with `pairs` rounded to bf16 as well, for processors that multiply pairs of such numbers.

The three are linear in each of their tensors and are each other's gradients, so that derivatives of any order are
there. Compilers and exporters see three operators; shapes are right on the meta device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quarterturn.errors import OptionError, ShapeError
from quarterturn.groups import Group
from quarterturn.kernel.checks import (
    check_convolution,
    check_finish,
    check_input_gradient,
    check_lengths,
    check_precisions,
    check_weight_gradient,
    read_window,
)
from quarterturn.kernel.finish import IN_PLACE, Finish
from quarterturn.kernel.library import Library, kernels, library
from quarterturn.kernel.packed_weights import packed
from quarterturn.kernel.plan import forward_plan, input_gradient_plan
from quarterturn.kernel.watch import report

EXACT = True  # the form of C4 that is taken unless one is named; docs/decisions/0031


def group_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: Group,
    *,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    starts: Sequence[Sequence[int]],
    output_size: Sequence[int],
    exact: bool | None = None,
    pairs: bool = False,
    finish: Finish | None = None,
) -> Tensor:
    """The filters-rotating convolution of stacked maps: stack(conv(roll(unstack(x)), weight)), with fewer products.

    Stacked `(N, in*G, *S)` and weight `(out, in*G, *k)` -> stacked `(N, out*G, *output_size)`, images channels last.
    `starts[g]` is where the first window of orientation g starts on the input's axes; outside the input it reads
    zeros. With `exact` a turned input gives the turned output bit by bit, else C4 takes one product in six less.
    Under bf16 autocast the maps are taken and given in bf16. With `pairs` maps in bf16 and weights are rounded to bf16
    again in the Fourier basis, for products of pairs; gradients to weights keep float32 products. What `finish` says is
    done while the output is in the cache: no gradients pass it, and its bias is added instead of the layer's.

    >>> from quarterturn import C4
    >>> x, weight = torch.randn(2, 8, 5, 5), torch.randn(3, 8, 3, 3)
    >>> from quarterturn.kernel import is_available
    >>> if is_available(C4):
    ...     assert group_conv(x, weight, None, C4, starts=[(-1, -1)] * 4, output_size=(5, 5)).shape == (2, 12, 5, 5)
    """
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16:
        x = x.bfloat16()
    axes = 2 + group.dim
    if x.dim() != axes or weight.dim() != axes:
        raise ShapeError(
            f"stacked maps (N, in*{group.order}, ...) and weights (out, in*{group.order}, ...) with {axes} axes are "
            f"needed, got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if x.device.type not in ("cpu", "meta"):  # elsewhere torch finds no operator and says so in its own words
        check_precisions("input", x)
    if len(starts) != group.order or any(len(start) != group.dim for start in starts):
        raise ShapeError(
            f"{group.name} needs {group.order} starts, one for each orientation, of {group.dim} numbers each, "
            f"got {starts}"
        )
    step, spread = (list(given or [1] * group.dim) for given in (stride, dilation))
    flat, size = [place for start in starts for place in start], list(output_size)
    if group.dim == 1:  # sequences are images of one row
        x, weight, step, spread, size = x.unsqueeze(2), weight.unsqueeze(2), [1, *step], [1, *spread], [1, *size]
        flat = [place for start in flat for place in (0, start)]
        if finish is not None and finish.other is not None:
            finish = finish._replace(other=finish.other.unsqueeze(2))
    how = (_elements(group), step, spread, flat, size, EXACT if exact is None else exact, pairs)
    y = _convolve(x, weight, bias, *how) if finish is None else _finished(x, weight, finish, *how)
    return y.squeeze(2) if group.dim == 1 else y


def finish_in_place(x: Tensor, other: Tensor | None, activation: str) -> Tensor:
    """activation(x + other) in the place of x, which nobody else may read; without gradients.

    >>> finish_in_place(torch.tensor([-1.0, 1.0]), torch.ones(2), "relu")
    tensor([0., 2.])
    """
    kernel = library()
    if other is not None and (other.shape != x.shape or other.dtype is not x.dtype):
        x, other = x + other, None
    if kernel is None or x.dtype is not torch.float32 or x.device.type != "cpu" or not _is_dense(x):
        return IN_PLACE[activation](x if other is None else x.add_(other))
    if other is not None and other.stride() != x.stride():
        x, other = x.add_(other), None
    if x.numel() and (other is not None or activation != "none"):
        report(activation, x, other, x)
        kernel.finish(x, other, activation)
    return x


def _is_dense(x: Tensor) -> bool:
    return x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))


def _elements(group: Group) -> list[int]:
    """The elements as a list of numbers; a flip of sequences is one of images with one row."""
    if group.dim == 1:
        return [number for (a,) in group.elements for number in (1, 2 * a)]
    return [a for element in group.elements for a in element]


def _tuples(*lists: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, lists))


def _kernel() -> Library:
    found = library()
    if found is None:
        raise OptionError(f"there is no kernel to run this: {kernels().why}")
    return found


def _new(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


# --- the operators ----------------------------------------------------------------------------------------------------


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a function an operator on the CPU.

    As torch.library.custom_op does, whose operators load torch's compiler when first called: a second and 75 MiB.
    """

    def define(function: Callable[..., Any]) -> Any:
        torch.library.define(name, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(name, "cpu", function)
        return getattr(torch.ops.quarterturn, name.removeprefix("quarterturn::")).default

    return define


@operator("quarterturn::group_conv")
def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    elements: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    output_size: Sequence[int],
    exact: bool,
    pairs: bool,
) -> Tensor:
    return _finished(x, weight, Finish(bias), elements, stride, dilation, starts, output_size, exact, pairs)


def _finished(
    x: Tensor,
    weight: Tensor,
    finish: Finish,
    elements: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    output_size: Sequence[int],
    exact: bool,
    pairs: bool,
) -> Tensor:
    how = _tuples(elements, stride, dilation, starts, weight.shape[2:], x.shape[2:], output_size)
    group, window = read_window(*how)
    check_convolution(x, weight, finish.bias, group.order, pairs)
    shape = (len(x), len(weight) * group.order, *output_size)
    check_finish(x, len(weight), shape, finish)
    y = _new(x, *shape)
    report("convolve", x, weight, finish.other, y)
    report(f"within {finish.activation}", y, y)
    if y.numel():
        features = (x.shape[1] // group.order, len(weight))
        plan = forward_plan(group, window, len(x), features, exact)
        of_weight = packed(_kernel(), plan, pairs, weight, weight[0].numel(), weight[0].numel() // features[0])
        bias, scale = (None if t is None else t.float().contiguous() for t in (finish.bias, finish.scale))
        other = None if finish.other is None else _last(finish.other)
        _kernel().convolve(plan, pairs, _last(x), of_weight, Finish(bias, scale, other, finish.activation), y)
    return y


@torch.library.register_fake("quarterturn::group_conv")
def _(x, weight, bias, elements, stride, dilation, starts, output_size, exact, pairs):  # type: ignore[no-untyped-def]
    order = check_lengths(elements, starts, stride=stride, dilation=dilation, output_size=output_size).order
    check_convolution(x, weight, bias, order, pairs)
    return _new(x, x.shape[0], weight.shape[0] * order, *output_size)


@operator("quarterturn::group_conv_input_gradient")
def _input_gradient(
    grad: Tensor,
    weight: Tensor,
    elements: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    input_size: Sequence[int],
    exact: bool,
    pairs: bool,
) -> Tensor:
    how = _tuples(elements, stride, dilation, starts, weight.shape[2:], input_size, grad.shape[2:])
    group, window = read_window(*how)
    check_input_gradient(grad, weight, group.order, pairs)
    x = _new(grad, len(grad), weight.shape[1], *input_size)
    if not len(weight):
        return x.zero_()
    if x.numel():
        features = (weight.shape[1] // group.order, len(weight))
        plan = input_gradient_plan(group, window, len(grad), features, exact)
        of_weight = packed(_kernel(), plan, pairs, weight, weight[0].numel() // features[0], weight[0].numel())
        _kernel().convolve(plan, pairs, _last(grad), of_weight, Finish(), x)
    return x


@torch.library.register_fake("quarterturn::group_conv_input_gradient")
def _(grad, weight, elements, stride, dilation, starts, input_size, exact, pairs):  # type: ignore[no-untyped-def]
    order = check_lengths(elements, starts, stride=stride, dilation=dilation, input_size=input_size).order
    check_input_gradient(grad, weight, order, pairs)
    return _new(grad, grad.shape[0], weight.shape[1], *input_size)


@operator("quarterturn::group_conv_weight_gradient")
def _weight_gradient(
    x: Tensor,
    grad: Tensor,
    elements: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    kernel_size: Sequence[int],
    exact: bool,
) -> tuple[Tensor, Tensor]:
    how = _tuples(elements, stride, dilation, starts, kernel_size, x.shape[2:], grad.shape[2:])
    group, window = read_window(*how)
    check_weight_gradient(x, grad, group.order)
    features = (x.shape[1] // group.order, grad.shape[1] // group.order)
    weight, bias = torch.zeros(features[1], x.shape[1], *kernel_size), torch.zeros(features[1])
    if grad.numel():
        plan = forward_plan(group, window, len(x), features, exact)
        strides = (weight[0].numel(), weight[0].numel() // features[0])
        _kernel().weight_gradient(plan, _last(x), _last(grad), *strides, weight, bias)
    return weight, bias


@torch.library.register_fake("quarterturn::group_conv_weight_gradient")
def _(x, grad, elements, stride, dilation, starts, kernel_size, exact):  # type: ignore[no-untyped-def]
    order = check_lengths(elements, starts, stride=stride, dilation=dilation, kernel_size=kernel_size).order
    check_weight_gradient(x, grad, order)
    out = grad.shape[1] // order
    weight = x.new_empty(out, x.shape[1], *kernel_size, dtype=torch.float32)
    return weight, weight.new_empty(out)


# --- each is the others' gradient -------------------------------------------------------------------------------------


def _save_convolve(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.how, _, ctx.exact, ctx.pairs = inputs
    ctx.bias_type = torch.float32 if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _differentiate_convolve(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    of_x = of_weight = of_bias = None
    if ctx.needs_input_grad[0]:
        of_x = _input_gradient(grad, weight, *ctx.how, list(x.shape[2:]), ctx.exact, ctx.pairs)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        of_weight, of_bias = _weight_gradient(x, grad, *ctx.how, list(weight.shape[2:]), ctx.exact)
        of_weight, of_bias = of_weight.to(weight.dtype), of_bias.to(ctx.bias_type)
    return of_x, of_weight, of_bias if ctx.needs_input_grad[2] else None, *[None] * 7


def _save_input_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, weight, *ctx.how, _, ctx.exact, ctx.pairs = inputs
    ctx.save_for_backward(grad, weight)


def _differentiate_input_gradient(ctx: Any, of_x: Tensor) -> tuple[Any, ...]:
    grad, weight = ctx.saved_tensors
    of_grad = _convolve(of_x, weight, None, *ctx.how, list(grad.shape[2:]), ctx.exact, ctx.pairs)
    of_weight, _ = _weight_gradient(of_x, grad, *ctx.how, list(weight.shape[2:]), ctx.exact)
    return of_grad, of_weight.to(weight.dtype), *[None] * 7


def _save_weight_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, grad, *ctx.how, _, ctx.exact = inputs
    ctx.save_for_backward(x, grad)


def _differentiate_weight_gradient(ctx: Any, of_weight: Tensor, of_bias: Tensor) -> tuple[Any, ...]:
    x, grad = ctx.saved_tensors
    of_x = _input_gradient(grad, of_weight, *ctx.how, list(x.shape[2:]), ctx.exact, False)
    of_grad = _convolve(x, of_weight, of_bias, *ctx.how, list(grad.shape[2:]), ctx.exact, False)
    return of_x, of_grad, *[None] * 6


for _name, _differentiate, _save in (
    ("group_conv", _differentiate_convolve, _save_convolve),
    ("group_conv_input_gradient", _differentiate_input_gradient, _save_input_gradient),
    ("group_conv_weight_gradient", _differentiate_weight_gradient, _save_weight_gradient),
):
    torch.library.register_autograd(f"quarterturn::{_name}", _differentiate, setup_context=_save)
