"""Numbers that do not change when orientations are permuted: a layer that tells a head more than their mean."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn.filters import Rotate, check_options
from quarterturn.fourier import irreps
from quarterturn.groups import Group


class Invariants(nn.Module):
    """The mean, the maximum and the strength of each other irrep of every feature's orientations.

    A `Pool` keeps one number of the G that a feature has, this layer keeps `numbers` of them (4 for C4, 6 for D4): the
    mean, the maximum, and the norm of the part that transforms by each irrep but the trivial one. The squares of the
    mean and of these norms add up to the mean square of the orientations.

    Sliced `(G*N, C, *S)`, or with `rotate="filters"` stacked `(N, C*G, *S)` -> `(N, C*numbers, *S)`, the numbers of a
    feature beside one another.

    >>> from quarterturn import C4
    >>> Invariants(C4, rotate="filters")(torch.tensor([[2.0, 0.0, 1.0, -1.0]])).numpy().round(3)
    array([[0.5, 2. , 1. , 0.5]], dtype=float32)
    """

    def __init__(self, group: Group, rotate: Rotate = "maps") -> None:
        super().__init__()
        check_options(group, rotate)
        self.group, self.rotate = group, rotate
        self.numbers = 1 + len(irreps.irreps(group))

    def forward(self, x: Tensor) -> Tensor:
        stacked = ops.stack(x, self.group) if self.rotate == "maps" else x
        ops.check_stacked(stacked, self.group)
        half = x.dtype in (torch.float16, torch.bfloat16)  # whose squares overflow
        wide = stacked.float() if half else stacked
        return invariants(wide, self.group, *matrices(self.group, wide.dtype, wide.device)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.group.name}, rotate={self.rotate!r}"


def invariants(stacked: Any, group: Group, transform: Any, parts: Any) -> Any:
    """The invariants of stacked features, without checks, so that the function also works on the proxies of a tracer.

    At zero norms have no gradient: they are kept away from it, so that it is zero there and not NaN.
    """
    orientations = stacked.unflatten(1, (-1, group.order)).movedim(2, -1)
    squares = orientations.matmul(transform).square().matmul(parts)
    found = [orientations.mean(-1, True), orientations.amax(-1, True), squares.clamp_min(1e-24).sqrt()]
    return torch.cat(found, dim=-1).movedim(-1, 2).flatten(1, 2)


def matrices(group: Group, dtype: torch.dtype, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """The columns of the Fourier transform, and how much each counts for each irrep but the trivial one.

    For groups of 2, 4 or 8 elements float32 has all of these numbers exactly.
    """
    transform, parts = _matrices(group)
    return torch.as_tensor(transform, dtype=dtype, device=device), torch.as_tensor(parts, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def _matrices(group: Group) -> tuple[irreps.Matrices, irreps.Matrices]:
    columns, parts = [], []
    found = irreps.irreps(group)
    rows, row = irreps.transform(group), 0
    for i, irrep in enumerate(found):
        for _ in range(irrep.dimension * len(irrep.columns)):
            columns.append(rows[row] / group.order)
            parts.append(np.eye(len(found))[i, 1:] * irrep.dimension)  # so that squares add up to the mean
            row += 1
    return np.stack(columns, axis=1), np.stack(parts)
