"""What is made from a parameter alone, such as turned filters, kept as long as the parameter lives and does not change.

Nothing is kept where gradients have to flow to the parameter, so this is for inference and frozen layers.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from quarterturn.kernel import dispatch_modes, outside_transforms

T = TypeVar("T")
MANY = 16_384


class _Kept(NamedTuple):
    strides: tuple[int, ...]
    values: Tensor  # a copy of the parameter
    made: dict[Hashable, Any]


_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()


def kept(parameter: Tensor, key: Hashable, make: Callable[[], T]) -> T:
    """What `make` gives, from an earlier call with that key if the parameter has the same numbers in the same format.

    The numbers themselves are compared: nothing else tells of every change, such as one through `.data`.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> with torch.no_grad():
    ...     first, second = (kept(weight, "twice", lambda: 2 * weight) for _ in range(2))
    >>> first is second
    True
    """
    if not may_be_kept(parameter):
        return make()
    entry = _kept.get(parameter)
    if entry is None or not _is_same(entry, parameter):
        entry = _Kept(parameter.stride(), parameter.detach().clone(), {})
        _kept[parameter] = entry
    if key not in entry.made:
        with torch.inference_mode(False), torch.no_grad():  # later calls may be outside of inference mode
            entry.made[key] = make()
    found: T = entry.made[key]
    return found


def _is_same(entry: _Kept, parameter: Tensor) -> bool:
    before = entry.values
    if (before.dtype, before.shape, entry.strides) != (parameter.dtype, parameter.shape, parameter.stride()):
        return False
    if _are_words(before) and _are_words(parameter):
        return torch.equal(before.view(-1).view(torch.int64), parameter.detach().view(-1).view(torch.int64))
    return torch.equal(before, parameter)


def _are_words(x: Tensor) -> bool:
    """Whether its numbers are many, and words of eight bytes in memory: these compare in less than half the time."""
    many = x.numel() > MANY and x.is_contiguous()
    return many and x.nbytes % 8 == 0 and x.storage_offset() * x.itemsize % 8 == 0


def may_be_kept(parameter: Tensor) -> bool:
    """Whether it is a parameter on the CPU, where comparing is cheap, and no one watches what is made from it."""
    if type(parameter) is not nn.Parameter or parameter.device.type != "cpu" or parameter.is_inference():
        return False
    if torch.is_grad_enabled() and parameter.requires_grad:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or dispatch_modes():
        return False
    return outside_transforms(parameter)
