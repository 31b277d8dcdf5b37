"""What the operators take. All of it is checked here, before any memory is read, whoever calls them."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from quarterturn.errors import GroupError, OptionError, ShapeError, unknown
from quarterturn.groups import Element, Group
from quarterturn.kernel.border import ACTIVATIONS
from quarterturn.kernel.finish import Finish
from quarterturn.kernel.plan import Window
from quarterturn.kernel.structures import structure

PRECISIONS = (torch.float32, torch.bfloat16)  # of maps in memory, by the kernel's number; weights are float32
LARGEST = 2**31 - 1  # of sizes and positions, as in border.h


@lru_cache(maxsize=256)
def group_of(elements: tuple[int, ...]) -> Group:
    """The group of a flat list of elements, two signed axes each."""
    if len(elements) % 2:
        raise GroupError(f"elements are given as two signed axes each, one after the other, got {list(elements)}")
    pairs: tuple[Element, ...] = tuple(zip(elements[::2], elements[1::2], strict=True))
    group = Group("the group", pairs)
    if structure(group) is None:
        raise GroupError(f"the kernel has no transform for the group of {pairs}: is_available() says so beforehand")
    return group


def check_lengths(elements: Sequence[int], starts: Sequence[int], **pairs: Sequence[int]) -> Group:
    """The group; lists must be as long as it needs them. Sizes may be symbols, so their values are not looked at."""
    group = group_of(tuple(elements))
    if len(starts) != 2 * group.order:
        raise ShapeError(
            f"{group.name} needs {group.order} starts of two numbers, one for each orientation, got {list(starts)}"
        )
    for name, given in pairs.items():
        if len(given) != 2:
            raise ShapeError(f"{name} is one number for each of two axes, got {list(given)}")
    return group


@lru_cache(maxsize=512)
def read_window(
    elements: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    starts: tuple[int, ...],
    kernel_size: tuple[int, ...],
    input_size: tuple[int, ...],
    output_size: tuple[int, ...],
) -> tuple[Group, Window]:
    """The group and the window of what the operators are told in flat lists; the values are checked too."""
    steps = {"stride": stride, "dilation": dilation, "kernel_size": kernel_size}
    sizes = {"input_size": input_size, "output_size": output_size}
    group = check_lengths(elements, starts, **steps, **sizes)
    for least, lists in ((1, steps), (0, sizes)):
        for name, given in lists.items():
            if min(given) < least or max(given) > LARGEST:
                raise ShapeError(f"{name} is from {least} to {LARGEST} along each axis, got {list(given)}")
    if max(map(abs, starts)) > LARGEST:
        raise ShapeError(f"starts are at most {LARGEST} away, got {list(starts)}")
    corners = tuple(zip(starts[::2], starts[1::2], strict=True))
    kernel, step, spread, source, target = (
        (given[0], given[1]) for given in (kernel_size, stride, dilation, input_size, output_size)
    )
    return group, Window(kernel, step, spread, corners, source, target)


def check_precisions(maps: str, x: Tensor, **others: Tensor | None) -> None:
    """All in memory that the kernel reads, in precisions that go together; the maps are the first."""
    for name, tensor in ((maps, x), *others.items()):
        if tensor is None:
            continue
        if tensor.dtype not in PRECISIONS or tensor.device.type not in ("cpu", "meta"):
            raise OptionError(
                f"the kernel takes float32 and bf16 on the CPU, got {tensor.dtype} on {tensor.device} as {name}: "
                "use conv2d with turned filters there"
            )
        if tensor.dtype is not x.dtype and (name == "gradient" or tensor.dtype is not torch.float32):
            raise OptionError(
                f"a {name} in {_short(tensor)} needs an {maps} in {_short(tensor)}, got {x.dtype}: convert one"
            )
        if tensor.device != x.device:
            raise OptionError(f"{maps} and {name} must be on one device, got {x.device} and {tensor.device}")


def _short(x: Tensor) -> str:
    return "bf16" if x.dtype is torch.bfloat16 else "float32"


def check_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, order: int, pairs: bool) -> None:
    """Stacked maps `(N, in*G, *S)`, weights `(out, in*G, *k)` and a bias `(out,)`."""
    check_precisions("input", x, weight=weight, bias=bias)
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1] or not _holds(x.shape[1], order):
        raise ShapeError(
            f"stacked maps (N, in*{order}, ...) and weights (out, in*{order}, ...) are needed, "
            f"got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"the bias has one number for each of {weight.shape[0]} features, got {tuple(bias.shape)}")
    check_pairs(x, pairs)


def check_finish(x: Tensor, features: int, shape: tuple[int, ...], finish: Finish) -> None:
    """A scale for each feature, something to add that is as the output, and a known activation."""
    check_precisions("input", x, scale=finish.scale, other=finish.other)
    if finish.scale is not None and finish.scale.shape != (features,):
        raise ShapeError(f"the scale has one number for each of {features} features, got {tuple(finish.scale.shape)}")
    if finish.other is not None and (finish.other.shape != shape or finish.other.dtype is not x.dtype):
        raise ShapeError(
            f"what is added to the output must be as the output, {shape} in {x.dtype}, "
            f"got {tuple(finish.other.shape)} in {finish.other.dtype}"
        )
    if finish.activation not in ACTIVATIONS:
        raise unknown("activation", finish.activation, ACTIVATIONS)


def check_input_gradient(grad: Tensor, weight: Tensor, order: int, pairs: bool) -> None:
    """A gradient `(N, out*G, *S)` to the output, and weights `(out, in*G, *k)`."""
    check_precisions("input", grad, weight=weight)
    fits = grad.dim() == 4 == weight.dim() and grad.shape[1] == weight.shape[0] * order
    if not fits or not _holds(weight.shape[1], order):
        raise ShapeError(
            f"a gradient (N, out*{order}, ...) and weights (out, in*{order}, ...) are needed, "
            f"got {tuple(grad.shape)} and {tuple(weight.shape)}"
        )
    check_pairs(grad, pairs)


def check_weight_gradient(x: Tensor, grad: Tensor, order: int) -> None:
    """Stacked maps `(N, in*G, *S)` and a gradient `(N, out*G, *S)` to the output, in one precision."""
    check_precisions("input", x, gradient=grad)
    fits = x.dim() == 4 == grad.dim() and x.shape[0] == grad.shape[0] and grad.shape[1] % order == 0
    if not fits or not _holds(x.shape[1], order):
        raise ShapeError(
            f"stacked maps (N, in*{order}, ...) and a gradient (N, out*{order}, ...) are needed, "
            f"got {tuple(x.shape)} and {tuple(grad.shape)}"
        )


def check_pairs(x: Tensor, pairs: bool) -> None:
    if pairs and x.dtype is not torch.bfloat16:
        raise OptionError(f"products in bf16 are for maps in bf16, got {x.dtype}: convert them or use autocast")


def _holds(channels: int, order: int) -> bool:
    """Whether so many channels are those of at least one feature, with all its orientations."""
    return channels > 0 and channels % order == 0
