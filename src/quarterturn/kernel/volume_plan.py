"""What the kernel for volumes works from: the numbers of a layer, and its weights in the Fourier basis.

The algebra is that of plan.py, for windows with stride 1: y[h] = sum over s, u of W~[u, s] X[u, sh], where the
offsets u run over all turns of the window. The transform (fourier/transforms.py) is handed over as data, so any group
that has one runs.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from quarterturn.errors import ShapeError
from quarterturn.fourier.transforms import transform_of
from quarterturn.groups import Element, Group
from quarterturn.kernel.border import Numbers
from quarterturn.kernel.plan import middles_of, misplaced
from quarterturn.kernel.volume_border import volume_numbers

Place = tuple[int, ...]


class VolumeWindow(NamedTuple):
    """What a layer does in space: kernel, dilation, where each orientation's first window starts, sizes."""

    kernel: Place
    dilation: Place
    starts: tuple[Place, ...]
    input_size: Place
    output_size: Place


class VolumePlan(NamedTuple):
    """The kernel's numbers for one call; `places` `(U, G)`: which number of a filter is at each offset, or -1."""

    numbers: Numbers
    places: Tensor
    weights: Tensor  # from W~ to the Fourier basis, (weights, G)


def act(element: Element, position: Sequence[int]) -> Place:
    """Where the element takes a position, both relative to the middle."""
    return tuple(position[abs(a) - 1] if a > 0 else -position[-a - 1] for a in element)


@lru_cache(maxsize=256)
def volume_plan(group: Group, window: VolumeWindow, batch: int, features: tuple[int, int], adjoint: bool) -> VolumePlan:
    """The numbers of the forward pass and of the gradient to the weights, or with `adjoint` of that to the input."""
    if misplaced(group, window.kernel, window.dilation, window.starts) is not None:
        raise ShapeError(f"the windows of the orientations of {group.name} have no common centre: use conv3d there")
    middles = middles_of(group, window.kernel, window.dilation, window.starts)
    middle = [sum(axis) // group.order for axis in zip(*middles, strict=True)]
    shift = [first - m for first, m in zip(middles[0], middle, strict=True)]
    along = (
        [dilation * (2 * i - size + 1) for i in range(size)]
        for size, dilation in zip(window.kernel, window.dilation, strict=True)
    )
    offsets = [tuple(o + d for o, d in zip(offset, shift, strict=True)) for offset in itertools.product(*along)]
    back = [group.elements[group.inverse[t]] for t in range(group.order)]
    everyone = range(group.order)
    if adjoint:
        index = [[group.inverse[s] * len(offsets) + w for s in everyone] for w in range(len(offsets))]
        reads = [[[(-p - m) // 2 for p, m in zip(act(g, w), middle, strict=True)] for g in back] for w in offsets]
    else:
        number = {offset: i for i, offset in enumerate(offsets)}
        turned = sorted({act(element, offset) for element in group.elements for offset in offsets})
        found = [[number.get(act(g, u), -1) for g in back] for u in turned]
        index = [[-1 if w < 0 else s * len(offsets) + w for s, w in enumerate(row)] for row in found]
        reads = [[[(p + m) // 2 for p, m in zip(act(g, u), middle, strict=True)] for g in back] for u in turned]
    sizes = (window.output_size, window.input_size) if adjoint else (window.input_size, window.output_size)
    transform = transform_of(group)
    assert transform is not None  # the caller has looked
    numbers = volume_numbers(
        (group.order, batch, *(reversed(features) if adjoint else features), *sizes[0], *sizes[1], len(index)),
        transform.jobs,
        transform.gather,
        transform.analysis,
        transform.synthesis,
        reads,
    )
    return VolumePlan(numbers, torch.tensor(index), torch.tensor(transform.weights, dtype=torch.float32))


def to_fourier(plan: VolumePlan, weight: Tensor, adjoint: bool) -> Tensor:
    """A weight `(out, in*G, *k)` as the kernel takes it: (input, offset, weight of the Fourier basis, output)."""
    order = plan.weights.shape[1]
    out, count = len(weight), weight.shape[1] // order
    flat = weight.float().reshape(out * count, -1)  # (orientation, position) in the last axis
    missing = torch.cat([flat, flat.new_zeros(len(flat), 1)], 1) if bool((plan.places < 0).any()) else flat
    spread = missing.index_select(1, plan.places.flatten() % missing.shape[1])
    found = spread.view(-1, order) @ plan.weights.t()  # (out * in * U, weights)
    found = found.view(out, count, len(plan.places), -1)
    return found.permute((0, 2, 3, 1) if adjoint else (1, 2, 3, 0)).contiguous()


def from_fourier(plan: VolumePlan, found: Tensor, out: int, count: int, kernel_size: Sequence[int]) -> Tensor:
    """The adjoint of `to_fourier`: the gradient to a weight `(out, in*G, *k)`."""
    order, offsets = plan.weights.shape[1], len(plan.places)
    spread = torch.tensordot(found.view(count, offsets, -1, out), plan.weights, dims=([2], [0]))  # (in, U, out, G)
    spread = spread.permute(2, 0, 1, 3).reshape(out * count, offsets * order)
    length = order * torch.Size(kernel_size).numel()
    flat = spread.new_zeros(out * count, length + 1).index_add_(1, plan.places.flatten() % (length + 1), spread)
    return flat[:, :length].reshape(out, count * order, *kernel_size)
