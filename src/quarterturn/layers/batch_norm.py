"""Batch norm of stacked maps with statistics over orientations too; fast if features are last in memory."""

from math import prod
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from quarterturn.errors import OptionError
from quarterturn.filters import as_numbers
from quarterturn.kernel import outside_transforms
from quarterturn.kernel.library import Library, library


def stacked_batch_norm(
    x: Tensor,
    features: int,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    synchronised: bool = False,
) -> Tensor:
    """Normalise stacked `(N, features*G, *S)` over examples, orientations and positions; update running statistics.

    If it is synchronised, statistics run over the examples of all processes too.

    >>> x = torch.randn(8, 12, 5, 5)
    >>> y = stacked_batch_norm(x, 3, None, None, None, None, 0.1, 1e-5)
    >>> bool(y.unflatten(1, (3, 4)).mean((0, 2, 3, 4)).abs().max() < 1e-5)
    True
    """
    if synchronised:
        whole = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        y, mean, var, number = _StackedBatchNorm.apply(whole, weight, bias, features, eps, True)
        count, y = float(number), y.to(x.dtype)
    elif not _features_are_last(x, weight, bias):
        split = x.unflatten(1, (features, -1))  # statistics are taken over orientations too, as one more axis
        return F.batch_norm(split, running_mean, running_var, weight, bias, True, momentum, eps).flatten(1, 2)
    else:
        y, mean, var, _ = _StackedBatchNorm.apply(x, weight, bias, features, eps, False)
        count = x.numel() / features
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((var * (count / (count - 1))).to(running_var), momentum)
    return y


def _features_are_last(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether these are channels_last images, as the kernel returns them, outside of transforms such as vmap.

    On them, torch's batch norm over one more axis makes copies and takes five to six times as long as a plain one.
    """
    if x.device.type != "cpu" or not _is_channels_last(x) or torch.compiler.is_compiling():
        return False
    if x.dtype not in (torch.float32, torch.float64) or any(p is not None and p.dtype != x.dtype for p in parameters):
        return False
    return outside_transforms(x, *parameters)


def several_processes() -> bool:
    """Whether this is one of several processes that work together, by torch.distributed."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


class _StackedBatchNorm(torch.autograd.Function):
    """Batch norm of stacked maps with shared statistics of all orientations; gives these and the number of values too.

    In float32 the kernel's code runs on channels_last images. Otherwise the sums over examples and positions come from
    torch's plain batch norm, which is fast in this layout. If it is synchronised, sums run over all processes. Each has
    the gradients of its own examples for weight and bias: those are added up with the gradients of other parameters.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, features: int, eps: float, synchronised: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        order = x.shape[1] // features
        code = None if synchronised else _kernel_for(x)
        number = x.new_full((), prod(as_numbers(x.shape)) / features)  # while torch traces, sizes are tensors
        if code is not None:
            y, mean, var = torch.empty_like(x), x.new_empty(features), x.new_empty(features)
            code.normalise(x, order, _dense(weight), _dense(bias), eps, mean, var, y)
        else:
            means, variances = (t.view(features, -1) for t in _moments(x))
            mean, var = means.mean(1), variances.mean(1) + means.var(1, correction=0)
            if synchronised:
                mean, var, number = _over_processes(mean, var, number)
            of_each = [expanded(t, order) for t in (mean, var, weight, bias)]
            y = F.batch_norm(x, of_each[0], of_each[1], of_each[2], of_each[3], training=False, eps=eps)
        ctx.save_for_backward(x, weight, bias, mean, var, number)
        ctx.eps, ctx.synchronised = eps, synchronised
        ctx.mark_non_differentiable(mean, var, number)
        ctx.set_materialize_grads(False)  # those would have gradients of zeros
        return y, mean, var, number

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        if grad is None:  # nothing depends on the output
            return (None,) * 6
        x, weight, bias, mean, var, number = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives are needed: torch's own code has them, but is slower
            if ctx.synchronised:
                raise OptionError(
                    "a synchronised batch norm has no second derivatives: call qt.sync_batch_norm(net, False) first"
                )
            split = x.unflatten(1, (len(mean), -1))
            y = F.batch_norm(split, None, None, weight, bias, True, 0.0, ctx.eps).flatten(1, 2)
            return *gradients(y, (x, weight, bias), grad, ctx.needs_input_grad), None, None, None
        order = x.shape[1] // len(mean)
        if _is_channels_last(x):
            grad = grad.contiguous(memory_format=torch.channels_last)
        of_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        code = None if ctx.synchronised else _kernel_for(x)
        if code is not None:
            of_weight, of_bias = torch.empty_like(mean), torch.empty_like(mean)
            code.normalise_gradient(grad, x, order, _dense(weight), ctx.eps, (mean, var), of_x, of_weight, of_bias)
        else:
            of_each = [expanded(t, order) for t in (weight, mean, var)]
            _, *sums = torch.ops.aten.native_batch_norm_backward(
                grad, x, *of_each, None, None, False, ctx.eps, [False, True, True]
            )
            of_weight, of_bias = (t.view(-1, order).sum(1) for t in sums)  # sums of grad * normalised x, and of grad
            if of_x is not None:
                whole = torch.stack([of_weight, of_bias])
                if ctx.synchronised:
                    distributed.all_reduce(whole)
                scale = (var + ctx.eps).rsqrt()
                along_grad = scale if weight is None else scale * weight
                along_x = -along_grad * scale * whole[0] / number
                constant = -along_grad * whole[1] / number - along_x * mean
                shape = (1, -1, *[1] * (x.dim() - 2))
                factors = [t.repeat_interleave(order).view(shape) for t in (constant, along_x, along_grad)]
                of_x = torch.addcmul(factors[0], x, factors[1]).addcmul_(grad, factors[2])
        return of_x, None if weight is None else of_weight, None if bias is None else of_bias, None, None, None


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel."""
    if x.device.type == "cpu":  # many times faster than var_mean
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    var, mean = torch.var_mean(x, [axis for axis in range(x.dim()) if axis != 1], correction=0)
    return mean, var


def _over_processes(mean: Tensor, var: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the values of all processes, and their number, from those of each process."""
    sums = torch.cat([mean * number, number[None]])
    distributed.all_reduce(sums)
    whole = sums[:-1] / sums[-1]
    squares = number * (var + (mean - whole) ** 2)  # about the common mean, so that nothing large cancels
    distributed.all_reduce(squares)
    return whole, squares / sums[-1], sums[-1]


def _dense(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


def _kernel_for(x: Tensor) -> Library | None:
    """The compiled code for these maps, if it is there and they are in its precision."""
    return library() if x.dtype is torch.float32 else None


def expanded(parameter: Tensor | None, order: int) -> Tensor | None:
    """Repeat the number of each feature for all its orientations."""
    return None if parameter is None else parameter.repeat_interleave(order)


def gradients(
    y: Tensor, inputs: tuple[Tensor | None, ...], grad: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs that need one; they can be differentiated again."""
    wanted = [t for t, need in zip(inputs, needed, strict=False) if need and t is not None]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
    return tuple(next(found) if need and t is not None else None for t, need in zip(inputs, needed, strict=False))
