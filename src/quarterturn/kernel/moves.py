"""Turned maps and dense features from place to place through the compiled kernel: slice, stack and roll, both ways."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quarterturn.groups import Element
from quarterturn.kernel.border import Pair, move_numbers
from quarterturn.kernel.library import library
from quarterturn.kernel.watch import report


def suits_moves(x: Tensor, features_last: bool) -> bool:
    """Whether the kernel can move these features: dense float32 on the CPU, of two axes at most, outside torch.func."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.dim() > 4 or x.numel() == 0:
        return False
    if type(x) not in (Tensor, torch.nn.Parameter) or x.is_neg():  # memory holds the numbers before a lazy negation
        return False
    if not x.is_contiguous(memory_format=torch.channels_last if features_last else torch.contiguous_format):
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and library() is not None


def carry_out(
    x: Tensor,
    out: Tensor,
    features_last: bool,
    places_in: Pair,
    places_out: Pair,
    moves: Sequence[tuple[Pair, Pair, Element]],
) -> Tensor:
    """Write each (place in the output, place in the input, element) into `out`; what arrives at one place is summed.

    Places are (pathway, orientation), in a batch and features of so many pathways and orientations. Both tensors are in
    the same memory format; dense ones are maps of one pixel.
    """
    kernel = library()
    assert kernel is not None

    def planar(element: Element) -> Element:
        return (1, 2) if x.dim() == 2 else element if len(element) == 2 else (1, 2 * element[0])

    listed = move_numbers(
        len(x) // places_in[0],
        x.shape[1] // places_in[1],
        places_in,
        places_out,
        [*[1] * (4 - x.dim()), *x.shape[2:]],
        [(end, start, planar(element)) for end, start, element in moves],
    )
    report("copy to another layout", x, out)
    kernel.move(listed, features_last or x.dim() == 2, x, out)
    return out
