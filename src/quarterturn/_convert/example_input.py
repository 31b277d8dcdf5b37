"""The input on which a network is read: the user's, or one that is made up."""

import itertools

import torch
from torch import Tensor, nn

from quarterturn.errors import ConversionError, OptionError, ShapeError
from quarterturn.graph.capture import first_line
from quarterturn.groups import Group, groups_for

SIZES = {1: (64, 128, 32, 256, 1024), 2: (64, 96, 32, 28, 128, 224, 256, 299, 331), 3: (16, 32, 24, 48, 64)}
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def example_inputs(model: nn.Module, group: Group, example: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    """Inputs of more than one example each, so that their first axis can be told from axes of one."""
    if example is None:
        return (_made_up(model, group.dim),)
    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    if not inputs or not all(isinstance(x, Tensor) for x in inputs):
        raise OptionError(
            "example must be an input of the network: a tensor or a tuple of tensors, as torch.randn(2, 3, 64, 64); "
            f"got {example!r}"
        )
    axes = [x.dim() - 2 for x in inputs]
    if group.dim not in axes and max(axes) > 1:  # images or volumes, but not those of this group
        shape = tuple(inputs[axes.index(max(axes))].shape)
        raise ShapeError(
            f"{group.name} turns maps with {2 + group.dim} axes, got an example of {shape}; {groups_for(max(axes))}"
        )
    return tuple(torch.cat([x, x]) if x.dim() and x.shape[0] == 1 else x for x in inputs)


def _made_up(model: nn.Module, dim: int) -> Tensor:
    """Random numbers of the first size that the network takes."""
    first = next((m for m in model.modules() if isinstance(m, CONVOLUTIONS[dim - 1])), None)
    if first is None:
        others = [
            axes for axes, kind in enumerate(CONVOLUTIONS, 1) if any(isinstance(m, kind) for m in model.modules())
        ]
        instead = groups_for(others[-1]) if others else "wrap() it, or give an example input"
        raise ConversionError(
            f"the network has no {CONVOLUTIONS[dim - 1].__name__}, so nothing of it shares filters over orientations: "
            + instead
        )
    seed = torch.Generator().manual_seed(0)
    errors = []
    for channels, size in itertools.product(dict.fromkeys((first.in_channels, 3, 1)), SIZES[dim]):
        shape = (2, channels, *[size] * dim)
        example = torch.randn(shape, generator=seed).to(first.weight.device, first.weight.dtype)
        try:
            model(example)
        except (RuntimeError, ValueError, AssertionError, TypeError, IndexError) as error:
            errors.append(f"{tuple(shape)}: {first_line(error)}")
            continue
        return example
    raise ConversionError(
        f"the network took none of the inputs that were tried: {'; '.join(errors[:2])}; … Give one that it takes: "
        "convert(…, example=x)"
    )
