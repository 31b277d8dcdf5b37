"""Orientations of tokens brought beside the examples, where each is treated by itself, and back.

None is turned. But each orientation may have an order of its tokens of its own: `places` `(G, T)` has for every
orientation the place that each token goes to, such as that in a window of its own frame.
"""

from typing import Any

import torch
from torch import Tensor

from quarterturn.kernel import dispatch_modes, outside_transforms
from quarterturn.kernel.library import library
from quarterturn.kernel.watch import report


def to_batch(x: Tensor, order: int, places: Tensor | None = None) -> Tensor:
    """`(N, T, C*G)` -> `(N, G, T, C)`.

    >>> to_batch(torch.zeros(2, 9, 32), 4).shape
    torch.Size([2, 4, 9, 8])
    """
    if in_kernel(x):
        return _moved(x, order, places, back=False)
    split = x.unflatten(-1, (-1, order)).movedim(-1, 1)
    return split if places is None else torch.take_along_dim(split, places.argsort(1)[None, :, :, None], 2)


def to_features(x: Tensor, places: Tensor | None = None) -> Tensor:
    """The way back: `(N, G, T, C)` -> `(N, T, C*G)`.

    >>> to_features(torch.zeros(2, 4, 9, 8)).shape
    torch.Size([2, 9, 32])
    """
    if in_kernel(x):
        return _moved(x, x.shape[1], places, back=True)
    there = x if places is None else torch.take_along_dim(x, places[None, :, :, None], 2)
    return there.movedim(1, -1).flatten(-2)


def in_kernel(x: Tensor) -> bool:
    """Whether the kernel moves these tokens: dense float32 on the CPU, and nobody but autograd looks."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        return False
    if type(x) is not Tensor or x.device.type != "cpu" or x.dtype is not torch.float32 or x.numel() == 0:
        return False
    if not x.is_contiguous() or x.is_neg():
        return False
    return not dispatch_modes() and outside_transforms(x) and library() is not None


def _moved(x: Tensor, order: int, places: Tensor | None, back: bool) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        found: Tensor = _Move.apply(x, order, places, back)
        return found
    return _move(x, order, places, back)


def _move(x: Tensor, order: int, places: Tensor | None, back: bool) -> Tensor:
    code = library()
    assert code is not None
    n, tokens, features = (len(x), x.shape[2], x.shape[3]) if back else (*x.shape[:2], x.shape[2] // order)
    y = x.new_empty(n, tokens, features * order) if back else x.new_empty(n, order, tokens, features)
    report("copy to another layout", x, y)
    code.beside(x, y, features, order, None if places is None else places.contiguous(), back)
    return y


class _Move(torch.autograd.Function):
    """Each way is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: int, places: Tensor | None, back: bool) -> Tensor:
        ctx.how = (order, places, back)
        return _move(x, order, places, back)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        order, places, back = ctx.how
        grad = grad.contiguous()
        return to_batch(grad, order, places) if back else to_features(grad, places), None, None, None
