"""What Python hands to the compiled kernel: its functions, the order of every list of numbers, what statuses mean.

The C++ side is in src/border.h, src/plan.h, src/moves.h, src/pooling.h and src/activations.h. This file and the C++
sources are what the kernel's fingerprint is made of (compiler.py): after a change on either side, kernels that were
compiled before are not used. Standard library alone.
"""

from collections.abc import Iterable, Sequence
from ctypes import Array, c_char_p, c_double, c_int, c_int64, c_void_p

Pair = tuple[int, int]
Numbers = Array[c_int64]

_LIST = _TENSOR = (c_void_p, c_int64)  # where it begins, and its length or size in elements
_STRIDES = (c_int64, c_int64)
_THREADS = (c_int64, c_void_p)
_PLAN = (*_LIST, c_int64)  # and the precision
_ROWS = (c_int64, c_int64)  # features and orientations

# For each function of the kernel its arguments and what it gives back; c_int is a status.
FUNCTIONS: dict[str, tuple[tuple[type, ...], type]] = {
    "packed_size": ((*_PLAN, c_void_p), c_int),
    "pack": ((*_PLAN, *_TENSOR, *_STRIDES, *_LIST, *_TENSOR, *_THREADS), c_int),
    "convolve": ((*_PLAN, *_TENSOR, *_TENSOR, *_TENSOR, *_TENSOR, *_TENSOR, c_int64, *_TENSOR, *_THREADS), c_int),
    "depthwise_gradient": ((*_LIST, *_TENSOR, *_TENSOR, *_TENSOR, *_THREADS), c_int),
    "max_pool": ((*_LIST, *_TENSOR, *_TENSOR, *_TENSOR, *_THREADS), c_int),
    "max_pool_gradient": ((*_LIST, *_TENSOR, *_TENSOR, *_TENSOR, *_THREADS), c_int),
    "normalise": ((*_TENSOR, *_ROWS, *2 * _TENSOR, c_double, *3 * _TENSOR, *_THREADS), c_int),
    "normalise_gradient": ((*2 * _TENSOR, *_ROWS, *_TENSOR, c_double, *5 * _TENSOR, *_THREADS), c_int),
    "layer_norm": ((*_TENSOR, *_ROWS, *2 * _TENSOR, c_double, *3 * _TENSOR, *_THREADS), c_int),
    "layer_norm_gradient": ((*2 * _TENSOR, *_ROWS, *6 * _TENSOR, *_THREADS), c_int),
    "beside": ((c_int64, *_ROWS, *_TENSOR, c_int64, *2 * _TENSOR, *_THREADS), c_int),
    "finish": ((*_TENSOR, *_TENSOR, c_int64, *_THREADS), c_int),
    "weight_gradient": ((*_PLAN, *_TENSOR, *_TENSOR, *_STRIDES, *_LIST, *_TENSOR, *_TENSOR, *_THREADS), c_int),
    "move": ((*_LIST, c_int64, *_TENSOR, *_TENSOR, *_THREADS), c_int),
    "checksum": (_TENSOR, c_int64),
    "reason": ((), c_char_p),
}
ACTIVATIONS = ("none", "relu", "relu6", "sigmoid", "hardsigmoid", "silu", "hardswish", "gelu")  # by their numbers
FINE, NOT_A_PLAN, WRONG_SIZE, NO_MEMORY, FAILED = range(5)

Read = tuple[int | None, int, int]  # which orientation is read, if any, and where
Phase = tuple[Pair, Pair, Pair, Pair, Pair, list[tuple[int, list[Read]]]]


def numbers(values: Iterable[int]) -> Numbers:
    """The values as the kernel reads them."""
    given = list(values)
    return (c_int64 * len(given))(*given)


def plan_numbers(
    structure: int,
    batch: int,
    features: Pair,
    source: Pair,
    target: Pair,
    offsets: int,
    place: Sequence[int],
    phases: Sequence[Phase],
) -> Numbers:
    """The list that plan.h reads.

    The structure, the batch, features in and out of one orientation, rows and columns of source and target, how many
    offsets the window has, the orientation of each element of the structure, how many phases; then for each phase
    start, step, count, base and stride along both axes, how many offsets it reads, and for each its number and
    (read, row, column) of each element of the structure: what it reads there, counted from 1 in the
    structure's order of elements, or 0 if nothing.
    """
    listed = [structure, batch, *features, *source, *target, offsets, *place, len(phases)]
    for start, step, count, base, stride, read in phases:
        listed += [*start, *step, *count, *base, *stride, len(read)]
        for number, of_orientation in read:
            listed.append(number)
            for t in place:
                seen, row, column = of_orientation[t]
                listed += [0 if seen is None else 1 + place.index(seen), row, column]
    return numbers(listed)


def move_numbers(
    examples: int,
    features: int,
    places_in: Pair,
    places_out: Pair,
    size: Sequence[int],
    moves: Iterable[tuple[Pair, Pair, Sequence[int]]],
) -> Numbers:
    """The list that moves.h reads.

    Examples and features of one place, pathways and orientations in and out, rows and columns in and out, how many
    moves; then for each its pathway and orientation in the output and in the input, and the element's two signed axes.
    """
    each = [[*end, *start, *axes] for end, start, axes in moves]
    head = [examples, features, *places_in, *places_out, *size, *size, len(each)]
    return numbers([*head, *(number for move in each for number in move)])


def depthwise_numbers(
    batch: int,
    channels: int,
    source: Sequence[int],
    target: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
) -> Numbers:
    """The list that depthwise.h reads: examples, channels, and then along both axes each of the other sizes."""
    return numbers([batch, channels, *source, *target, *window, *stride, *dilation, *padding])


def pool_numbers(
    batch: int,
    features: int,
    source: Sequence[int],
    target: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[Sequence[int]],
) -> Numbers:
    """The list that pooling.h reads.

    Examples, features and orientations, along both axes each of the other sizes, and where the first window of each
    orientation starts.
    """
    sizes = (*source, *target, *window, *stride, *dilation)
    return numbers([batch, features, len(starts), *sizes, *(place for start in starts for place in start)])
