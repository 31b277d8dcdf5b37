"""What the new layers begin with: drawn anew, or the old network's weights, projected.

Drawn weights are as strong as the old ones where somebody chose these. Where they are torch's default, hidden layers
get He initialisation, over the rolled fan-in (decision 10).

In "pretrained" the old channel i is read as feature i // G, orientation i mod G. An old bank of filters becomes the
nearest one whose orientations are turned copies of one another: the mean of its orientations, each turned back.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

Init = Literal["scratch", "pretrained"]
Sources = Sequence[int | None]


def per_feature(old: Tensor, sources: Sources, order: int, init: Init, rest: float | None = None) -> Tensor:
    """A number for each feature from one for each old channel: the mean over its orientations, or that of the first.

    Features that no old channel became get `rest`, or the mean of all.

    >>> per_feature(torch.tensor([1.0, 3.0, 5.0, 7.0]), [0, 1, 2, 3], 2, "pretrained")
    tensor([2., 6.])
    """
    default = float(old.mean()) if rest is None else rest
    found = []
    for start in range(0, len(sources), order):
        mine = [old[i] for i in sources[start : start + order] if i is not None]
        mine = mine[:1] if init == "scratch" else mine
        found.append(torch.stack(mine).mean() if mine else old.new_tensor(default))
    return torch.stack(found)


def drawn(like: Tensor, old: Tensor, fan_in: int, old_fan_in: int) -> Tensor:
    """Weights drawn so that what they make of their input is as strong as what the old ones made of theirs."""
    spread = float(old.detach().float().square().mean().sqrt()) * math.sqrt(old_fan_in / max(fan_in, 1))
    return torch.randn_like(like) * spread


def is_torchs_default(weight: Tensor) -> bool:
    """Whether a weight looks as torch's layers make it, uniform in +-1/sqrt(numbers in a row): nobody chose that.

    >>> is_torchs_default(torch.nn.Conv2d(16, 16, 3).weight), is_torchs_default(torch.randn(16, 16, 3, 3) * 0.02)
    (True, False)
    """
    if weight.dim() < 2:
        return False
    squares = (weight.detach().double() ** 2 * weight[0].numel()).flatten()  # of numbers uniform in +-1
    deviation = 0.9 / math.sqrt(squares.numel())  # of their mean, in units of 1/3, which it is
    return bool(squares.max() <= 1 + 1e-3 and abs(3 * squares.mean() - 1) <= 5 * deviation)


def projected(shape: Sequence[int], old_bank: Tensor, expand: Callable[[Tensor], Tensor]) -> Tensor:
    """The weight whose bank, `expand(weight)`, is nearest to the old one.

    Every number of a weight stands once in each of the bank's orientations, so the projection is the adjoint of
    `expand`, divided by how often that is.
    """
    weight = torch.zeros(tuple(shape), dtype=old_bank.dtype, device=old_bank.device, requires_grad=True)
    with torch.enable_grad():
        bank = expand(weight)
        (sums,) = torch.autograd.grad(bank, weight, old_bank)
        (counts,) = torch.autograd.grad(expand(weight), weight, torch.ones_like(old_bank))
    return (sums / counts).detach()


def rearranged(
    old: Tensor, out_sources: Sources, in_sources: Sources, old_groups: int, groups: int, transposed: bool = False
) -> Tensor:
    """An old bank of filters `(out, in/groups, *k)` with the channels of the new stacked layout, in fewer groups.

    Channels that are in the new one several times, because they are the same in all orientations, share their input.
    """
    if transposed:
        bank = rearranged(_swapped(old, old_groups), out_sources, in_sources, old_groups, groups)
        return _swapped(bank, groups)
    full = _ungrouped(old, old_groups)
    copies: dict[int, int] = {}
    for source in in_sources:
        if source is not None:
            copies[source] = copies.get(source, 0) + 1
    here = full.device
    ins = torch.tensor([full.shape[1] if s is None else s for s in in_sources], device=here)
    outs = torch.tensor([full.shape[0] if s is None else s for s in out_sources], device=here)
    share = torch.tensor([0.0 if s is None else 1 / copies[s] for s in in_sources], dtype=full.dtype, device=here)
    padded = torch.nn.functional.pad(full.movedim((0, 1), (-2, -1)), (0, 1, 0, 1)).movedim((-2, -1), (0, 1))
    chosen = padded.index_select(0, outs).index_select(1, ins)
    chosen = chosen * share.reshape(1, -1, *[1] * (full.dim() - 2))
    blocks = [
        block.chunk(groups, dim=1)[i] for i, block in enumerate(chosen.chunk(groups, dim=0))
    ]  # of a finer grouping, what lies between groups is zero, and nothing is lost
    return torch.cat(blocks)


def _ungrouped(bank: Tensor, groups: int) -> Tensor:
    """A grouped bank as a whole one, with zeros between groups."""
    if groups == 1:
        return bank
    inputs = bank.shape[1]
    whole = bank.new_zeros(bank.shape[0], inputs * groups, *bank.shape[2:])
    for i, block in enumerate(bank.chunk(groups)):
        rows = slice(i * block.shape[0], (i + 1) * block.shape[0])
        whole[rows, i * inputs : (i + 1) * inputs] = block
    return whole


def _swapped(bank: Tensor, groups: int) -> Tensor:
    """A bank of transposed convolution (in, out/groups) as one of convolution (out, in/groups), or back."""
    return torch.cat([block.transpose(0, 1) for block in bank.chunk(groups)])
