"""Any layer, applied to each orientation in its own frame."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn.errors import ShapeError
from quarterturn.filters import Rotate, as_numbers, check_maps, check_options, join_orientations, split_orientations
from quarterturn.groups import Group


def in_own_frames(x: Tensor, group: Group, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """Turn each orientation of a stacked tensor into its own frame, apply the layer, turn back: exact for any layer.

    This is rotating maps for one layer, at the price of copies. Orientations whose turned maps have one shape run as
    one batch, so on square maps the layer is called once, as it would be between `unstack` and `stack`.
    """
    turned = [ops.act(part, group, h) for h, part in enumerate(split_orientations(x, group).unbind(2))]
    sizes = [as_numbers(part.shape[2:]) for part in turned]
    parts: dict[int, Tensor] = {}
    for shape in dict.fromkeys(sizes):
        orientations = [h for h in range(group.order) if sizes[h] == shape]
        outs = layer(torch.cat([turned[h] for h in orientations])).chunk(len(orientations))
        parts.update((h, ops.act(out, group, group.inverse[h])) for h, out in zip(orientations, outs, strict=True))
    shapes = {as_numbers(part.shape[2:]) for part in parts.values()}
    if len(shapes) > 1:
        raise ShapeError(
            f"the orientations of {group.name} come out in different shapes, {' and '.join(map(str, sorted(shapes)))}, "
            "and cannot be stacked: use options that treat the axes that the group exchanges alike"
        )
    return join_orientations(parts)


class EachOrientation(nn.Module):
    """Any torch layer that treats all examples alike and keeps their number, on each orientation in its own frame.

    The way out where no layer of ours does: sliced tensors go through it as they are, stacked ones are turned into
    their own frames and back, at the price of copies. For batch statistics take `BatchNorm`: maps that are not square
    go through in two batches here.

    >>> from quarterturn import C4
    >>> EachOrientation(C4, nn.LPPool2d(2, 3, 2), rotate="filters")(torch.zeros(1, 8, 9, 6)).shape
    torch.Size([1, 8, 4, 2])
    """

    def __init__(self, group: Group, layer: nn.Module, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_options(group, rotate)
        self.group, self.layer, self.rotate = group, layer, rotate

    def forward(self, x: Tensor) -> Tensor:
        check_maps(x, self.group, self.rotate)
        return self.layer(x) if self.rotate == "maps" else in_own_frames(x, self.group, self.layer)

    def extra_repr(self) -> str:
        return f"{self.group.name}, rotate={self.rotate!r}"
