"""Packed weights that are kept as long as the parameter lives and does not change."""

from typing import NamedTuple

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from quarterturn.kernel.library import Library
from quarterturn.kernel.plan import Plan


class _Entry(NamedTuple):
    plan: Plan
    pairs: bool
    state: tuple[int, int]
    checksum: int | None  # of the values, from the second call on
    packed: Tensor


_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()


def packed(kernel: Library, plan: Plan, pairs: bool, weight: Tensor, out_stride: int, in_stride: int) -> Tensor:
    """The weights in the kernel's order, from the last call if they are the same, as in eval.

    They are the same if address, version and values are: a change through `.data` leaves the version as it is. In
    training the version changes with every step, and the values need not be looked at. A view, such as a matrix as
    filters of one position, is kept with the parameter that it shows.
    """
    dense = weight.float().contiguous()
    if weight.is_inference():  # it has no version
        return kernel.pack(plan, pairs, dense, out_stride, in_stride)
    owner = weight if weight._base is None else weight._base
    state = (weight.data_ptr(), weight._version)
    entry = _kept.get(owner)
    again = entry is not None and entry.plan is plan and (entry.pairs, entry.state) == (pairs, state)
    checksum = kernel.checksum(dense) if again else None
    if entry is None or checksum is None or entry.checksum != checksum:
        entry = _Entry(plan, pairs, state, checksum, kernel.pack(plan, pairs, dense, out_stride, in_stride))
        _kept[owner] = entry
    return entry.packed
