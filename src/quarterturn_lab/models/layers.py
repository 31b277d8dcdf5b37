"""Layers that are not in the library: for the paper's related work, U-Nets and Galaxy Zoo's decision tree."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import Group, ops
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.networks import Net


class CosetPool(nn.Module):
    """Pool the pathways of each coset Kg of a subgroup K, realigned: a step of Fasel's gradual pooling.

    `(G*N, C, *S)` -> `(G/K*N, C, *S)`, realigned with the input. Rotating the input permutes the cosets, so pooling
    over all of them is invariant. Layers in between must act on one position at a time.
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
    """Pool the cosets that `CosetPool` leaves: `(cosets*N, C, *S)` -> `(N, C, *S)`."""

    def __init__(self, cosets: int, fn: ops.PoolFunction) -> None:
        super().__init__()
        self.cosets, self.fn = cosets, fn

    def forward(self, x: Tensor) -> Tensor:
        return ops.pool_function(self.fn)(x.unflatten(0, (self.cosets, -1)))

    def extra_repr(self) -> str:
        return f"{self.cosets} cosets, {self.fn}"


def smallest_subgroup(group: Group) -> tuple[int, ...]:
    """The first of the smallest subgroups besides the identity: for C4 and D4 the half turn."""
    found = []
    for g in range(1, group.order):
        powers = [0, g]
        while (following := group.table[powers[-1]][g]) != 0:
            powers.append(following)
        found.append(tuple(powers))
    return min(found, key=len)


class SymmetricConv(nn.Module):
    """A convolution whose filters are invariant under the group (Clark & Storkey 2015).

    `weight` is `(out, in, orbits)`: positions of the filter that the group maps to each other share a weight.
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


# --- a U-Net ----------------------------------------------------------------------------------------------------------


class Keep(nn.Identity):
    """Marks an output that a later `Join` uses: the start of a skip connection."""


class Join(nn.Module):
    """The end of a skip connection: upsamples the maps to the size of the kept ones and concatenates both.

    Linear upsampling is symmetric for any pair of sizes, so this is exactly equivariant.
    """

    def forward(self, below: Tensor, kept: Tensor) -> Tensor:
        mode = "bilinear" if kept.dim() == 4 else "trilinear"
        return torch.cat([kept, F.interpolate(below, size=kept.shape[2:], mode=mode, align_corners=False)], dim=1)


class UNet(nn.Sequential):
    """A sequence of layers in which each `Join` gets the output of the last unused `Keep`."""

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for module in self:
            if isinstance(module, Join):
                x = module(x, kept.pop())
                continue
            x = module(x)
            if isinstance(module, Keep):
                kept.append(x)
        return x


# --- Galaxy Zoo -------------------------------------------------------------------------------------------------------

# For each question: its number of answers, and the answer that leads to it (None: always asked).
QUESTIONS: dict[int, tuple[int, str | None]] = {
    1: (3, None),
    2: (2, "Class1.2"),
    3: (2, "Class2.2"),
    4: (2, "Class2.2"),
    5: (4, "Class2.2"),
    6: (2, None),
    7: (3, "Class1.1"),
    8: (7, "Class6.1"),
    9: (3, "Class2.1"),
    10: (3, "Class4.1"),
    11: (6, "Class4.1"),
}
ANSWERS = tuple(f"Class{q}.{a}" for q, (count, _) in QUESTIONS.items() for a in range(1, count + 1))


class Questions(nn.Module):
    """Galaxy Zoo's decision tree: rectify, normalise each question's answers, scale by the answer that led to it.

    `answers` are the names of the columns. Whole questions may be missing, but not single answers, nor the answer
    that leads to a question.
    """

    def __init__(self, answers: tuple[str, ...] = ANSWERS) -> None:
        super().__init__()
        self.places: list[tuple[list[int], int | None]] = []  # of a question's answers, and of the one leading to it
        for question, (count, parent) in QUESTIONS.items():
            names = [f"Class{question}.{a}" for a in range(1, count + 1)]
            known = [name for name in names if name in answers]
            if known and (len(known) < count or (parent and parent not in answers)):
                missing = [name for name in [*names, *([parent] if parent else [])] if name not in answers]
                raise ConfigError(
                    f'output="questions": question {question} needs {", ".join(missing)}, missing in the table: '
                    'use output="sigmoid"'
                )
            if known:
                self.places.append(([answers.index(n) for n in names], answers.index(parent) if parent else None))
        placed = [place for places, _ in self.places for place in places]
        if len(placed) != len(answers):
            strange = [name for i, name in enumerate(answers) if i not in placed]
            raise ConfigError(f'output="questions" does not know {strange[0]!r}: use output="sigmoid"')
        self.count = len(answers)

    def forward(self, x: Tensor) -> Tensor:
        shares: dict[int, Tensor] = {}
        for places, parent in self.places:
            votes = torch.cat([x[:, place : place + 1] for place in places], dim=1).relu()
            of_question = votes / (votes.sum(1, keepdim=True) + 1e-12)
            if parent is not None:
                of_question = of_question * shares[parent]
            shares.update((place, of_question[:, i : i + 1]) for i, place in enumerate(places))
        return torch.cat([shares[place] for place in range(self.count)], dim=1)


OUTPUTS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}


def add_output(layers: nn.Sequential, net: Net, features: int) -> None:
    """Add what makes answers for whole images of so many features: dropout, the output layer, its nonlinearity."""
    layers.add_module("flatten", nn.Flatten())
    layers.add_module("drop_output", nn.Dropout(net.dropout))
    layers.add_module("output", nn.Linear(features, net.outputs))
    for name, layer in output_nonlinearity(net).items():
        layers.add_module(name, layer)


def output_nonlinearity(net: Net) -> dict[str, nn.Module]:
    """The nonlinearity after the output layer, by its name in the network; empty if there is none."""
    if net.output == "linear":
        return {}
    if net.output != "questions":
        return {f"{net.output}_output": OUTPUTS[net.output]()}
    answers = net.answers or ANSWERS
    if len(answers) != net.outputs:
        raise ConfigError(f'output="questions" needs {len(answers)} outputs, got {net.outputs}: use output="sigmoid"')
    return {"questions_output": Questions(answers)}
