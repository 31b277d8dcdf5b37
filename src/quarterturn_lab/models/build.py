"""Builds an `nn.Sequential` from a `Net`, with the same parameter names whether it rotates maps or filters."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

import quarterturn as qt
from quarterturn import Group
from quarterturn.filters import Rotate
from quarterturn_lab.models.convnext import convnext
from quarterturn_lab.models.layers import (
    CosetPool,
    CosetsToOne,
    Join,
    Keep,
    Questions,
    SymmetricConv,
    UNet,
    output_nonlinearity,
    smallest_subgroup,
)
from quarterturn_lab.models.residual import batch_norm, residual
from quarterturn_lab.seeds import key
from quarterturn_lab.settings.networks import Net


def build(net: Net, rotate: Rotate = "maps") -> nn.Sequential:
    """The network as a module: `(N, channels, side, side)` -> `(N, outputs)`, or maps if the head is convolutional.

    >>> from quarterturn_lab.settings.networks import PLANKTON, edited
    >>> sum(p.numel() for p in build(edited(PLANKTON, "roll-all-quarter")).parameters())
    953649
    """
    if rotate not in ("maps", "filters"):
        raise qt.errors.unknown("rotate", rotate, ("maps", "filters"))
    if net.convnext:
        return convnext(net)
    return residual(net, rotate) if net.residual else _Builder(net, rotate).build()


def filters_twin(net: Net, module: nn.Module) -> nn.Module:
    """The same network with the same weights, rotating its filters: it takes images of any shape."""
    outputs = len(module.get_parameter("output.bias"))  # as many as the data have classes
    twin = build(replace(net, outputs=outputs), "filters")
    twin.load_state_dict(module.state_dict())
    return twin.to(next(module.parameters()).device).train(module.training)


TORCH: dict[int, tuple[Any, Any]] = {2: (nn.Conv2d, nn.MaxPool2d), 3: (nn.Conv3d, nn.MaxPool3d)}


class _Builder:
    """Adds one layer after another, and tracks the number of features and their size."""

    def __init__(self, net: Net, rotate: Rotate) -> None:
        self.net, self.rotate = net, rotate
        self.group = qt.named(net.group) if net.group else None
        self.method: str = net.method if self.group else "plain"
        self.sequence = UNet() if net.unet else nn.Sequential()
        self.convolution, self.max_pool = TORCH[net.axes]
        self.features, self.side = net.channels, net.side
        self.has_pathways = False  # from the first convolution to the pooling over pathways, or the stack

    def build(self) -> nn.Sequential:
        self._convolutions()
        (self._dense_head if self.net.head == "dense" else self._conv_head)()
        return self.sequence

    def _add(self, name: str, module: nn.Module) -> None:
        self.sequence.add_module(name, module)

    # --- convolutions

    def _convolutions(self) -> None:
        net, kept = self.net, []
        self.number = 0
        for stage, widths in enumerate(net.stages, start=1):
            self._stage(widths)
            if net.unet and stage < len(net.stages):
                self._add(f"keep{stage}", Keep())
                kept.append(self.features)
            if net.pooled and not (net.unet and stage == len(net.stages)):
                self._shrink(f"shrink{stage}", 2 if net.unet else 3)
        for stage in range(len(kept), 0, -1):
            self._add(f"join{stage}", Join())
            self.features += kept[stage - 1]
            self._stage(net.stages[stage - 1])

    def _stage(self, widths: tuple[int, ...]) -> None:
        net = self.net
        for width in widths:
            self.number += 1
            self._conv(
                f"conv{self.number}", width * net.widen // net.divide, net.kernel, net.kernel // 2 if net.same else 0
            )
            if net.norm:
                group = self.group if self.has_pathways else None
                self._add(f"norm{self.number}", batch_norm(group, self.rotate, self.features, net.axes))
            self._add(f"relu{self.number}", nn.ReLU())
            self.side -= 0 if net.same else net.kernel - 1

    def _conv(self, name: str, width: int, kernel: int, padding: int) -> None:
        """Add a convolution; the method decides which layer of the library it is."""
        group, rotate, inputs = self.group, self.rotate, self.features
        module: nn.Module
        if group is None or self.method == "plain":
            module = self.convolution(inputs, width, kernel, padding=padding)
        elif self.method == "symmetric":
            module = SymmetricConv(group, inputs, width, kernel, padding)
        elif self.method == "oriented-max" or not self.has_pathways:
            module = qt.SliceConv(group, inputs, width, kernel, padding=padding, rotate=rotate)
        elif self.net.roll == "all":
            module = qt.RollConv(group, inputs, width, kernel, padding=padding, rotate=rotate)
        else:
            module = qt.PathConv(group, inputs, width, kernel, padding=padding, rotate=rotate)
        self._add(name, module)
        self.features = width
        if group is not None and self.method == "oriented-max":
            self._add(f"oriented_max_{name}", qt.Pool(group, "max", rotate=rotate))
        self.has_pathways = self.method in ("pool", "stack", "gradual-pool")

    def _shrink(self, name: str, window: int) -> None:
        if self.group is not None and self.has_pathways:
            self._add(name, qt.MaxPool(self.group, window, 2, ceil_mode=True, rotate=self.rotate))
        else:
            self._add(name, self.max_pool(window, 2, ceil_mode=True))
        self.side = max(1, -(-(self.side - window) // 2) + 1)

    def _leave_pathways_by_stack(self, group: Group) -> None:
        if self.rotate == "maps":
            self._add("stack", qt.Stack(group))
        self.features *= group.order
        self.has_pathways, self.method = False, "plain"

    # --- heads

    def _dense_head(self) -> None:
        net, group = self.net, self.group
        if group is not None and self.method == "stack":
            self._leave_pathways_by_stack(group)
        elif group is not None and self.has_pathways:
            if self.rotate == "filters":
                self._add("unstack", qt.Unstack(group))
            if net.roll == "all":
                self._roll("roll_maps", group)
        self._flat = False
        for number, width in enumerate(net.hidden, start=1):
            last = number == len(net.hidden)
            width = width if last else width * net.widen // net.divide
            width = width // net.divide_dense if number == 1 else width
            self._dense(f"drop{number}", f"dense{number}", width)
            if not last or net.relu:
                self._add(f"relu_dense{number}", nn.ReLU())
            if group is not None and self.has_pathways and not last:
                if net.roll in ("dense", "all"):
                    self._roll(f"roll_dense{number}", group)
                if self.method == "gradual-pool" and number == 1:
                    self._add("pool_cosets", CosetPool(group, smallest_subgroup(group), net.pool))
        if net.pool_at == "before-output":
            self._pool_pathways("maps")
        self._dense("drop_output", "output", net.outputs)
        self._pool_pathways("maps")
        for name, layer in output_nonlinearity(net).items():
            self._add(name, layer)

    def _dense(self, drop: str, name: str, width: int) -> None:
        """Dropout and a dense layer. The first one flattens the maps, or is a symmetric filter of their size.

        Dropout comes after flattening: torch draws its mask in memory order, which depends on the memory format.
        """
        dropout = nn.Dropout(self.net.dropout)
        if not self._flat and self.group is not None and self.method == "symmetric":
            self._add(drop, dropout)
            self._add(name, SymmetricConv(self.group, self.features, width, self.side))
            self._add("flatten", nn.Flatten())
        else:
            if not self._flat:
                self._add("flatten", nn.Flatten())
                self.features *= self.side**2
            self._add(drop, dropout)
            self._add(name, nn.Linear(self.features, width))
        self.features, self._flat = width, True

    def _roll(self, name: str, group: Group) -> None:
        self._add(name, qt.Roll(group))
        self.features *= group.order

    def _conv_head(self) -> None:
        net, group = self.net, self.group
        if group is not None and self.method == "stack":
            self._leave_pathways_by_stack(group)
        if group is not None and self.method == "gradual-pool":
            if self.rotate == "filters":
                self._add("unstack", qt.Unstack(group))
            self._add("pool_cosets", CosetPool(group, smallest_subgroup(group), net.pool))
            self.method = "cosets"
        if group is not None and net.invariants:  # what follows is ordinary, and costs no more than in such a network
            several = qt.Invariants(group, self.rotate)
            self._add("pool", several)
            self.features, self.has_pathways, self.method = self.features * several.numbers, False, "invariants"
        for number, width in enumerate(net.hidden, start=1):
            last = number == len(net.hidden)
            if self.method in ("cosets", "invariants"):
                self._add(f"hidden{number}", self.convolution(self.features, width, 1))
                self.features = width
            else:
                self._conv(f"hidden{number}", width if last else width * net.widen // net.divide, 1, 0)
            if not last or net.relu or net.invariants:
                self._add(f"relu_hidden{number}", nn.ReLU())
        if net.pool_at == "before-output":
            self._pool_pathways(self.rotate)
        if self.has_pathways:
            self._conv("output", net.outputs, 1, 0)
        else:
            self._add("output", self.convolution(self.features, net.outputs, 1))
        self._pool_pathways(self.rotate)
        for name, layer in output_nonlinearity(net).items():
            self._add(name, layer)

    def _pool_pathways(self, rotate: Rotate) -> None:
        """Pool over pathways, if there are any left."""
        group, net = self.group, self.net
        if group is None or not self.has_pathways:
            return
        if "gradual" in net.method:
            self._add("pool", CosetsToOne(group.order // len(smallest_subgroup(group)), net.pool))
        else:
            self._add("pool", qt.Pool(group, net.pool, rotate=rotate))
        if net.relu_after:
            self._add("relu_pooled", nn.ReLU())
        self.has_pathways = False


def initialise(module: nn.Module, seed: int, output_scale: float = 0.1) -> None:
    """He initialisation (fan-in includes rolled inputs), zero biases, and a scaled Xavier output layer.

    Biases before the decision tree are one: it rectifies, and a question without votes would never learn.

    The random numbers of each tensor depend only on the seed and its name, so maps and filters mode start equal.
    """
    modules = dict(module.named_modules())
    has_questions = any(isinstance(layer, Questions) for layer in modules.values())
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            owner, _, kind = name.rpartition(".")
            if kind == "bias":
                parameter.fill_(1.0 if name == "output.bias" and has_questions else 0.0)
            elif parameter.dim() > 1:
                fan_in = getattr(modules[owner], "fan_in", parameter[0].numel())
                std = (2 / fan_in) ** 0.5
                if owner == "output":
                    std = output_scale * (2 / (fan_in + parameter.shape[0])) ** 0.5
                generator = torch.Generator().manual_seed(key(seed, name))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
