"""Apply any layer to each orientation in its own frame."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn.errors import ShapeError
from quarterturn.filters import Rotate, as_numbers, check_maps, check_options, join_orientations, split_orientations
from quarterturn.groups import Group
from quarterturn.point_groups import SPACE


def in_own_frames(x: Tensor, group: Group, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """Turn each orientation of a stacked tensor into its own frame, apply the layer, and turn back.

    This is exact for any layer, but copies the maps. Orientations whose turned maps have the same shape run as one
    batch: on square maps the layer is called once, as between `unstack` and `stack`.
    """
    turned = [[ops.act(part, group, h)] for h, part in enumerate(split_orientations(x, group).unbind(2))]
    outs = run_alike(turned, lambda part: [layer(part)])
    parts = {h: ops.act(out, group, group.inverse[h]) for h, (out,) in enumerate(outs)}
    check_same_shapes(list(parts.values()), group)
    return join_orientations(parts)


def run_alike(pathways: Sequence[Sequence[Tensor]], run: Callable[..., Sequence[Tensor]]) -> list[Sequence[Tensor]]:
    """Run the same on the tensors of each pathway: one batch for all whose tensors have the same shapes."""
    shapes = [tuple(as_numbers(x.shape) for x in inputs) for inputs in pathways]
    found: dict[int, Sequence[Tensor]] = {}
    for shape in dict.fromkeys(shapes):
        same = [h for h in range(len(pathways)) if shapes[h] == shape]
        together = [torch.cat(xs) for xs in zip(*(pathways[h] for h in same), strict=True)]
        outs = [out.chunk(len(same)) for out in run(*together)]
        found.update((h, [out[i] for out in outs]) for i, h in enumerate(same))
    return [found[h] for h in range(len(pathways))]


def check_same_shapes(parts: Sequence[Tensor], group: Group) -> None:
    """Raise unless all orientations, turned back, have the same shape."""
    shapes = {as_numbers(part.shape[2:]) for part in parts}
    if len(shapes) > 1:
        raise ShapeError(
            f"the orientations of {group.name} come out in different shapes, {' and '.join(map(str, sorted(shapes)))}, "
            "and cannot be stacked: use the same options for all axes that the group exchanges, or a group that does "
            f"not exchange them{', such as mirrors(1, 2, 3) or about(D4, axis)' if group.dim == SPACE else ''}"
        )


class EachOrientation(nn.Module):
    """Apply any torch layer to each orientation in its own frame; for layers that quarterturn does not have.

    Sliced tensors go through the layer unchanged; stacked ones are turned into their own frames and back, which copies
    them. The `layer` must treat examples independently and keep their number. Use `BatchNorm` for batch statistics:
    here, maps that are not square run in two batches.

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
