"""What both new networks need while they are written."""

import copy
from collections.abc import Callable

from torch import Tensor, nn


def free_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, with a number if it is taken.

    >>> free_name("conv", {"conv", "conv_2"}.__contains__)
    'conv_3'
    """
    found, number = name, 1
    while is_taken(found):
        number += 1
        found = f"{name}_{number}"
    return found


def copied(tensor: Tensor) -> Tensor:
    """A copy of a parameter, trained if that is, or of a buffer."""
    copy = tensor.detach().clone()
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy


def copied_module(module: nn.Module) -> nn.Module:
    """A copy of a module whose parameters can be trained.

    Torch's older weight norms leave a computed weight, which it does not copy, and of a scripted module it makes copies
    that are computed from the old ones.
    """
    inner = [tensor for m in module.modules() for tensor in vars(m).values() if isinstance(tensor, Tensor)]
    known = {id(tensor): tensor.detach().clone() for tensor in inner if not tensor.is_leaf}
    twin = copy.deepcopy(module, known)
    for mine, old in zip(twin.parameters(), module.parameters(), strict=True):
        if not mine.is_leaf:
            mine.detach_().requires_grad_(old.requires_grad)
    return twin


def put_tensor(holder: nn.Module, name: str, tensor: Tensor) -> None:
    """Make a tensor a parameter or a buffer of the module, as it is one."""
    if isinstance(tensor, nn.Parameter):
        holder.register_parameter(name, tensor)
    else:
        holder.register_buffer(name, tensor)
