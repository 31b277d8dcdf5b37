"""Where the kernel can run a layer, and where it gains: each function gives the reason against it, or None.

The widths from which it gains were measured by bench/rule.py and bench/dense.py (docs/speed.md).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from quarterturn.fourier.transforms import transform_of
from quarterturn.groups import Group
from quarterturn.kernel.library import kernels, library, volume_library
from quarterturn.kernel.structures import structure

NARROWEST_DENSE = 512  # features times orientations from which a dense layer gains


class Narrowest(NamedTuple):
    """Widths from which the kernel is faster: features times orientations, the geometric mean of input and output."""

    window: int
    pointwise: int  # for a window of one position


NARROWEST = {  # by the code that runs
    "portable": Narrowest(32, 72),  # not measured since it is for few features too
    "avx2": Narrowest(16, 36),
    "avx512": Narrowest(24, 36),
    "avx512bf16": Narrowest(24, 36),
    "volumes": Narrowest(8, 96),  # whatever code runs
}
VOLUME = 3  # axes


def is_available(group: Group | None = None) -> bool:
    """Whether the kernel is compiled, and has a transform for the group; it takes float32 and bf16 on the CPU."""
    if group is not None and group.dim == VOLUME:
        return volume_library() is not None and transform_of(group) is not None
    return library() is not None and (group is None or structure(group) is not None)


def cannot_run(group: Group, strides: tuple[int, ...], groups: int, padding_mode: str) -> str | None:
    """Why the kernel cannot run a layer with these options at all."""
    if not is_available(group):
        missing = group.dim == VOLUME and volume_library() is None
        why = "the kernel for volumes is not compiled" if missing else f"the kernel has no transform for {group.name}"
        return why if is_available() else kernels().why
    if groups != 1:
        return f"the kernel takes groups=1, not groups={groups}"
    if padding_mode != "zeros":
        return f"the kernel pads with zeros, not with padding_mode={padding_mode!r}"
    if group.dim == VOLUME and any(stride != 1 for stride in strides):
        return f"for volumes the kernel takes stride 1, not {strides}"
    if not _strides_agree(group, strides):
        return f"the kernel needs equal strides along axes that {group.name} exchanges, not {strides}"
    return None


@lru_cache(maxsize=256)
def _strides_agree(group: Group, strides: tuple[int, ...]) -> bool:
    return all(tuple(strides[abs(a) - 1] for a in element) == strides for element in group.elements)


def too_narrow(group: Group, in_features: int, out_features: int, kernel_size: Sequence[int]) -> str | None:
    """Why the kernel would be slower than torch's convolution, for so many features of each orientation.

    >>> from quarterturn import C4, D4
    >>> too_narrow(C4, 8, 8, (3, 3)), too_narrow(D4, 8, 8, (3, 3))
    (None, None)
    >>> too_narrow(C4, 1, 2, (3, 3))[:41]
    'too narrow: 1 and 2 features in 4 orienta'
    """
    code = "volumes" if group.dim == VOLUME else kernels().code
    return _too_narrow(group.order, in_features, out_features, math.prod(kernel_size) == 1, code)


@lru_cache(maxsize=1024)
def _too_narrow(order: int, in_features: int, out_features: int, pointwise: bool, code: str) -> str | None:
    least = NARROWEST.get(code, NARROWEST["portable"])
    narrowest = least.pointwise if pointwise else least.window
    if order * math.sqrt(in_features * out_features) >= narrowest:
        return None
    features = " and ".join(map(str, dict.fromkeys((in_features, out_features))))
    return (
        f"too narrow: {features} features in {order} orientations; the kernel gains from a width of {narrowest} on"
        f"{' for 1x1 windows' if pointwise else ''}"
    )


def cannot_take(x: Tensor, weight: Tensor) -> str | None:
    """Why the kernel cannot, or should not, run on these tensors, here and now."""
    autocast = torch.is_autocast_enabled("cpu")
    precision = torch.get_autocast_dtype("cpu") if autocast else weight.dtype
    if x.device.type != "cpu" or weight.device.type != "cpu":
        return f"the kernel is for the CPU, and the tensors are on {x.device.type}"
    if x.dtype not in (precision, torch.float32) or weight.dtype not in (precision, torch.float32):
        return f"the kernel takes float32 or bf16, not {x.dtype}"
    if precision not in (torch.float32, torch.bfloat16):
        return f"the kernel takes float32 or bf16, not {precision}"
    if x.dim() == 2 + VOLUME and not (x.dtype is weight.dtype is precision is torch.float32):
        return f"for volumes the kernel takes float32, not {precision}"
    if precision is torch.bfloat16 and kernels().code != "avx2":
        return "in bf16 the kernel gains with AVX2 alone; torch has instructions for it here"
    if x.dtype != precision and not autocast:
        return f"maps in {x.dtype} and weights in {precision}"  # torch's convolution says what is wrong
    if torch.onnx.is_in_onnx_export():
        return "an export needs torch's own operators"
    if not torch.compiler.is_compiling() and not outside_transforms(x, weight):
        return "torch.func and forward derivatives need torch's own operators"
    return None


def outside_transforms(*tensors: Tensor | None) -> bool:
    """Whether nothing but autograd watches: neither torch.func nor forward derivatives need torch's own layers."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(forward_ad.unpack_dual(t).tangent is None for t in tensors if t is not None)


def blocks_do_not_gain(x: Tensor, group: Group, in_features: int, out_features: int) -> str | None:
    """Why dense features, or maps seen through 1x1 windows, gain nothing from the block-diagonal form in torch.

    It is for so many features of each orientation, on the CPU; sums of half floats would lose precision.
    """
    if x.device.type != "cpu":
        return f"the block-diagonal form was measured on the CPU alone, and the tensors are on {x.device.type}"
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return "sums of half floats in the group-Fourier basis would lose precision"
    width = min(in_features, out_features) * group.order
    if width < NARROWEST_DENSE:
        return f"too narrow: {width} features; the block-diagonal form gains from {NARROWEST_DENSE} on"
    return None
