"""The features of one head of attention: parts of them, and tables with a number for each, as rotary positions have.

Heads may be wider or narrower in the new network than in the old one. A table for them is then read at other columns:
pairs of features that turn together stay pairs, and their frequencies are spread over what there is.
"""

import math
import operator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn._convert.axes import HeadFeatures, HeadIndex, HeadPart, size_of
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.helper_layers import Columns
from quarterturn._convert.initial_weights import drawn
from quarterturn._convert.tracked_value import TrackedValue, result
from quarterturn._convert.widths import Features
from quarterturn.graph.refusal import Refusal


def part_of_heads(
    w: EquivariantWriter, path: str, value: TrackedValue, axis: int, item: slice, example: Tensor
) -> TrackedValue:
    """Every second feature of each head, or one of several equal parts of them."""
    value = w.orientations_in_batch(value, path)
    whole = value.axes[axis][0]
    assert isinstance(whole, HeadFeatures)
    start, _, step = item.indices(size_of(whole))
    count = example.shape[axis]
    if step == 1 and count:
        unit = math.gcd(start, count, size_of(whole))
        units = size_of(whole) // unit  # of equal size, so that each part is some of them
        whole.features.units = math.lcm(whole.features.units, units)
        whole.features.split(units)
        one = HeadPart(whole.features, whole.heads, units)
        part = HeadPart(whole.features, whole.heads, Fraction(size_of(whole), count))
        node = w.method("narrow", value.node, axis, w.head_size(one, start // unit), w.head_size(one, count // unit))
    elif start < step and count * step == size_of(whole):
        part = HeadPart(whole.features, whole.heads, step)
        node = w.function(operator.getitem, value.node, (*[slice(None)] * axis, slice(start, None, step)))
    else:
        raise Refusal("it takes some features of each head in a way that is not known")
    axes = (*value.axes[:axis], (part,), *value.axes[axis + 1 :])
    return result(value, node, example, axes=axes)


def mixed_heads(
    w: EquivariantWriter, path: str, weight: Tensor, bias: Tensor | None, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """A linear layer over the heads, as talking heads have: over those of each orientation by itself."""
    value = w.orientations_in_batch(value, path)
    held = value.axes[-1][0]
    assert isinstance(held, HeadIndex)
    if weight.shape[0] != weight.shape[1]:
        raise Refusal("it makes another number of heads")
    w.check_same_use(path, ("over heads",))

    def make() -> nn.Module:
        heads = w.head_size(held).number()
        options: Any = {"device": weight.device, "dtype": weight.dtype}
        layer = nn.Linear(heads, heads, bias is not None, **options)
        with torch.no_grad():
            if w.init == "pretrained" or not weight.requires_grad:
                layer.weight.copy_(weight[:heads, :heads])
            else:
                layer.weight.copy_(drawn(layer.weight, weight, heads, weight.shape[1]))
            if bias is not None:
                layer.bias.copy_(bias[:heads])
        return layer

    return result(value, w.layer(path, make, value.node), example)


def columns(
    w: EquivariantWriter,
    path: str,
    constant: TrackedValue,
    axis: int,
    held: HeadFeatures | HeadPart | Features,
    node: Any,
) -> fx.Node:
    """A constant with a number for each feature of a head, or of a part of it, as wide as these are now.

    Where there is one head alone, these are all features.
    """
    table = constant.example.detach().movedim(axis, -1)

    def make() -> Columns:
        wanted = (w.width(held) if isinstance(held, Features) else w.head_size(held)).number()
        places = None if wanted == table.shape[-1] else spread(table, wanted)
        return Columns(axis, places).to(constant.example.device)

    return w.helper(f"{path}.columns", make, node)


def spread(table: Tensor, wanted: int) -> list[int]:
    """Columns of a table `(..., D)`, so many of them: neighbours, or halves, that are equal stay so.

    >>> spread(torch.tensor([1, 1, 2, 2, 3, 3, 4, 4]), 4), spread(torch.tensor([1, 2, 3, 4, 1, 2, 3, 4]), 4)
    ([0, 1, 4, 5], [0, 2, 4, 6])
    """
    size = table.shape[-1]
    if size % 2 == 0 and wanted % 2 == 0:
        chosen = [pair * size // wanted for pair in range(wanted // 2)]
        if torch.equal(table[..., ::2], table[..., 1::2]):
            return [2 * pair + i for pair in chosen for i in (0, 1)]
        first, second = table.chunk(2, dim=-1)
        if torch.equal(first, second):
            return [pair + half for half in (0, size // 2) for pair in chosen]
    return [place * size // wanted for place in range(wanted)]
