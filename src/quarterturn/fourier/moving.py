"""Turned maps from place to place through the compiled kernel: what slice, stack and roll do, forward and backward."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quarterturn.fourier.library import library
from quarterturn.groups import Element

Place = tuple[int, int]
SMALLEST = 1 << 12  # numbers in a tensor for which the call pays


def suits_moves(x: Tensor) -> bool:
    """Whether the kernel can move these maps: contiguous float32 on the CPU, of one or two axes, outside torch.func."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.dim() not in (3, 4) or x.numel() < SMALLEST:
        return False
    if type(x) not in (Tensor, torch.nn.Parameter) or not x.is_contiguous():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and library() is not None


def carry_out(
    x: Tensor,
    out: Tensor,
    places_in: Place,
    places_out: Place,
    moves: Sequence[tuple[Place, Place, Element]],
) -> Tensor:
    """Write each (place in the output, place in the input, element) into `out`; what arrives at one place is summed.

    Places are (pathway, orientation), in a batch and features of so many pathways and orientations.
    """
    kernel = library()
    assert kernel is not None
    size = [1, *x.shape[2:]] if x.dim() == 3 else list(x.shape[2:])
    numbers = [len(x) // places_in[0], x.shape[1] // places_in[1], *places_in, *places_out, *size, *size, len(moves)]
    for end, start, element in moves:
        planar = element if len(element) == 2 else (1, 2 * element[0])
        numbers += [*end, *start, *planar]
    kernel.move(numbers, x, out)
    return out
