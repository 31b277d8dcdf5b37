"""Depthwise convolutions with a fast gradient to their filters; all else is torch's own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quarterturn.kernel import outside_transforms
from quarterturn.kernel.border import depthwise_numbers
from quarterturn.kernel.library import library

LARGE = 4  # windows from this size on; up to 3x3 torch's own is as fast


def gains(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether images `(N, C, *S)`, features last, meet large filters `(C, 1, *k)` in training."""
    if (
        max(weight.shape[2:]) < LARGE
        or not torch.is_grad_enabled()
        or not weight.requires_grad
        or torch.compiler.is_compiling()
    ):
        return False
    if x.dim() != 4 or x.device.type != "cpu" or weight.shape[:2] != (x.shape[1], 1) or library() is None:
        return False
    if any(t is not None and t.dtype is not torch.float32 for t in (x, weight, bias)) or torch.jit.is_tracing():
        return False
    last = x.is_contiguous(memory_format=torch.channels_last) and not torch.is_autocast_enabled("cpu")
    return last and outside_transforms(x, weight, bias)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int | None],
    dilation: Sequence[int],
) -> Tensor:
    """torch's depthwise convolution, with another way to the gradient of its filters.

    >>> x, weight = torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last), torch.randn(8, 1, 3, 3)
    >>> convolve(x, weight, None, [1, 1], [1, 1], [1, 1]).shape
    torch.Size([2, 8, 9, 9])
    """
    found: Tensor = _Depthwise.apply(x, weight, bias, list(stride), list(padding), list(dilation))
    return found


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.bias = (stride, padding, dilation), None if bias is None else [len(bias)]
        return F.conv2d(x, weight, bias, stride, padding, dilation, len(weight))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needed = list(ctx.needs_input_grad[:3])
        code = None if torch.is_grad_enabled() else library()  # torch's own has derivatives of its own
        ours = needed[1] and code is not None
        asked = [needed[0], needed[1] and not ours, needed[2]]
        how = (*ctx.how, False, [0, 0], len(weight))
        of_x, of_weight, of_bias = torch.ops.aten.convolution_backward(grad, x, weight, ctx.bias, *how, asked)
        if ours and code is not None:
            stride, padding, dilation = ctx.how
            window, channels = weight.shape[2:], len(weight)
            sizes = (len(x), channels, x.shape[2:], grad.shape[2:], window, stride, dilation, padding)
            by_offset = torch.empty(*window, channels)
            last = grad.contiguous(memory_format=torch.channels_last)
            code.depthwise_gradient(depthwise_numbers(*sizes), x, last, by_offset)
            of_weight = by_offset.movedim(-1, 0).unsqueeze(1)
        return of_x, of_weight, of_bias, None, None, None
