"""Layers that the paper's related work needs and the library does not have."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import Group, ops


class CosetPool(nn.Module):
    """Pool the pathways of each coset Kg of a subgroup K, realigned: a step of Fasel's gradual pooling.

    `(G*N, C, *S)` -> `(G/K*N, C, *S)`, from pathways to cosets in the input's frame. Turning the input permutes the
    cosets, so a further pooling over all of them is invariant: exact for layers that look at one position at a time.
    """

    def __init__(self, group: Group, subgroup: tuple[int, ...], fn: ops.PoolFunction) -> None:
        super().__init__()
        self.group, self.fn = group, fn
        self.cosets: list[tuple[int, ...]] = []
        for g in range(group.order):
            if not any(g in coset for coset in self.cosets):
                self.cosets.append(tuple(group.table[k][g] for k in subgroup))

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(0, (self.group.order, -1))
        realigned = [qt.act(parts[g], self.group, self.group.inverse[g]) for g in range(self.group.order)]
        reduce = ops.pool_function(self.fn)
        return torch.cat([reduce(torch.stack([realigned[g] for g in coset])) for coset in self.cosets])

    def extra_repr(self) -> str:
        return f"{self.group.name}, {len(self.cosets)} cosets, {self.fn}"


class CosetsToOne(nn.Module):
    """Pool what `CosetPool` left: `(cosets*N, C, *S)` -> `(N, C, *S)`."""

    def __init__(self, cosets: int, fn: ops.PoolFunction) -> None:
        super().__init__()
        self.cosets, self.fn = cosets, fn

    def forward(self, x: Tensor) -> Tensor:
        return ops.pool_function(self.fn)(x.unflatten(0, (self.cosets, -1)))

    def extra_repr(self) -> str:
        return f"{self.cosets} cosets, {self.fn}"


def smallest_subgroup(group: Group) -> tuple[int, ...]:
    """The smallest subgroup that is more than the identity, the first of them: for C4 and D4 the half turn."""
    found = []
    for g in range(1, group.order):
        powers = [0, g]
        while (following := group.table[powers[-1]][g]) != 0:
            powers.append(following)
        found.append(tuple(powers))
    return min(found, key=len)


class SymmetricConv(nn.Module):
    """A convolution whose filters look the same when turned (Clark & Storkey 2015): one weight for each orbit.

    `weight` is `(out, in, orbits)`: positions of the filter that the group moves into each other share one.
    """

    orbits: Tensor

    def __init__(self, group: Group, inputs: int, outputs: int, kernel: int, padding: int = 0) -> None:
        super().__init__()
        self.group, self.kernel, self.padding = group, kernel, padding
        positions = torch.arange(float(kernel * kernel)).reshape(1, 1, kernel, kernel)
        lowest = torch.stack([qt.act(positions, group, g) for g in range(group.order)]).amin(0)
        _, orbits = lowest.unique(return_inverse=True)
        self.register_buffer("orbits", orbits[0, 0], persistent=False)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, int(orbits.max()) + 1))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.fan_in = inputs * kernel * kernel
        nn.init.normal_(self.weight, std=(2 / self.fan_in) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight[:, :, self.orbits], self.bias, padding=self.padding)

    def extra_repr(self) -> str:
        outputs, inputs, orbits = self.weight.shape
        return f"{self.group.name}, {inputs}, {outputs}, kernel_size={self.kernel}, orbits={orbits}"


# The questions of Galaxy Zoo: columns from, to; and the column whose share of the votes was asked it.
QUESTIONS = (
    (0, 3, None),
    (3, 5, 1),
    (5, 7, 4),
    (7, 9, 4),
    (9, 13, 4),
    (13, 15, None),
    (15, 18, 0),
    (18, 25, 13),
    (25, 28, 3),
    (28, 31, 7),
    (31, 37, 7),
)


class Questions(nn.Module):
    """Galaxy Zoo's decision tree: rectify, normalise each question's answers, scale by the answer that led to it."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 37:
            raise qt.ShapeError(f'output="questions" needs all 37 answers, got {x.shape[1]}: use output="sigmoid"')
        answers: list[Tensor] = []
        for start, end, parent in QUESTIONS:
            votes = x[:, start:end].relu()
            shares = votes / (votes.sum(1, keepdim=True) + 1e-12)
            weight = 1.0 if parent is None else torch.cat(answers, dim=1)[:, parent : parent + 1]
            answers.append(shares * weight)
        return torch.cat(answers, dim=1)
