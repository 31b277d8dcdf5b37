"""What Python hands to the compiled library for volumes: its functions and its list of numbers. As border.py."""

import itertools
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64, c_void_p

from quarterturn.fourier.transforms import Program
from quarterturn.kernel.border import Numbers, numbers

_LIST = _TENSOR = (c_void_p, c_int64)
_THREADS = (c_int64, c_void_p)

FUNCTIONS: dict[str, tuple[tuple[type, ...], type]] = {
    "volume_convolve": ((*_LIST, *4 * _TENSOR, *_THREADS), c_int),
    "volume_weight_gradient": ((*_LIST, *3 * _TENSOR, *_THREADS), c_int),
    "reason": ((), c_char_p),
}


def listed(program: Program) -> list[int]:
    """How many places and sums; for each sum where it goes, how many terms, and of each its place and sign."""
    steps = ([step.to, len(step.terms), *itertools.chain(*step.terms)] for step in program.steps)
    return [program.places, len(program.steps), *itertools.chain(*steps)]


def volume_numbers(
    sizes: Sequence[int],
    jobs: Sequence[Sequence[int]],
    gather: Sequence[Sequence[int]],
    analysis: Program,
    synthesis: Program,
    reads: Sequence[Sequence[Sequence[int]]],
) -> Numbers:
    """The list that volumes/layer.h reads.

    Elements of the group, examples, features in and out of one orientation, three sizes of source and of target, how
    many offsets; how many irreps, and of each its rows, parts and columns; the part and the sign of each product; two
    programs; and for each offset and element the position that output position 0 reads.
    """
    basis = [len(jobs), *(number for job in jobs for number in job), *(number for one in gather for number in one)]
    places = (place for row in reads for read in row for place in read)
    return numbers([*sizes, *basis, *listed(analysis), *listed(synthesis), *places])
