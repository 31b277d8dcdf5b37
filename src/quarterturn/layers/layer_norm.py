"""Layer norm of stacked features that are last in memory, over the features of each orientation, in one pass."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quarterturn.kernel import dispatch_modes, outside_transforms
from quarterturn.kernel.library import library
from quarterturn.kernel.watch import report
from quarterturn.layers.batch_norm import gradients

ORDERS = (1, 2, 4, 8)  # numbers of orientations that the kernel has code for


def stacked_layer_norm(
    x: Tensor, features: int, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5
) -> Tensor:
    """Normalise stacked `(..., features*G)` over features, for each orientation by itself.

    >>> y = stacked_layer_norm(torch.randn(2, 10, 12), 3, None, None)
    >>> bool(y.unflatten(-1, (3, 4)).mean(-2).abs().max() < 1e-5)
    True
    """
    code = library() if has_kernel(x, features, weight, bias) else None
    if code is None:
        return _in_torch(x, features, weight, bias, eps)
    x = x.contiguous()
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        found: Tensor = _StackedLayerNorm.apply(x, weight, bias, features, eps)
        return found
    y = torch.empty_like(x)
    report("native_layer_norm", x, y)
    code.layer_norm(x, features, x.shape[-1] // features, weight, bias, eps, (None, None), y)
    return y


def _in_torch(x: Tensor, features: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Orientations go before the features, and back."""
    split = x.unflatten(-1, (features, -1)).transpose(-1, -2)
    return F.layer_norm(split, (features,), weight, bias, eps).transpose(-1, -2).flatten(-2)


def has_kernel(x: Tensor, features: int, *parameters: Tensor | None) -> bool:
    """Whether there is compiled code that takes these tensors, here and now."""
    tensors = [t for t in (x, *parameters) if t is not None]
    if any(t.device.type != "cpu" or t.dtype is not torch.float32 for t in tensors) or library() is None:
        return False
    if x.numel() == 0 or x.shape[-1] not in [features * order for order in ORDERS]:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        return False
    return type(x) in (Tensor, torch.nn.Parameter) and not dispatch_modes() and outside_transforms(*tensors)


class _StackedLayerNorm(torch.autograd.Function):
    """The kernel's code, with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, features: int, eps: float) -> Tensor:
        code, order = library(), x.shape[-1] // features
        assert code is not None
        y = torch.empty_like(x)
        means, scales = (x.new_empty(*x.shape[:-1], order) for _ in range(2))
        code.layer_norm(x, features, order, weight, bias, eps, (means, scales), y)
        ctx.save_for_backward(x, weight, bias, means, scales)
        ctx.features, ctx.eps = features, eps
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, means, scales = ctx.saved_tensors
        code = library()
        if torch.is_grad_enabled() or code is None:  # second derivatives are needed: torch's own code has them
            y = _in_torch(x, ctx.features, weight, bias, ctx.eps)
            return *gradients(y, (x, weight, bias), grad, ctx.needs_input_grad), None, None
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        of_weight, of_bias = x.new_empty(ctx.features), x.new_empty(ctx.features)
        kept = (means, scales)
        code.layer_norm_gradient(grad.contiguous(), x, means.shape[-1], weight, kept, of_x, of_weight, of_bias)
        return of_x, None if weight is None else of_weight, None if bias is None else of_bias, None, None
