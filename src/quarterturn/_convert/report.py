"""What a network costs, before and after: the table that keeps widths and parameters apart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quarterturn import fourier, kernel
from quarterturn.check import in_eval_mode
from quarterturn.groups import Group
from quarterturn.layers.convolution import RollConv, _Convolution
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.transposed import RollConvTranspose


@dataclass(frozen=True)
class Cost:
    """Of one example: parameters, multiply-adds of convolutions and dense layers, and the numbers that they put out."""

    parameters: int
    multiply_adds: int
    with_kernel: int  # the same, where the Fourier kernel runs
    activations: int


@dataclass(frozen=True)
class Conversion:
    """What `convert` did: the costs before and after, and what was rounded."""

    group: Group
    keep: str
    before: Cost
    after: Cost
    notes: tuple[str, ...]

    def __str__(self) -> str:
        rows = {"as it was": self.before, f"converted, keep={self.keep!r}": self.after}
        return "\n".join([table(self.group, rows), *(f"- {note}" for note in self.notes)])


def table(group: Group, rows: dict[str, Cost]) -> str:
    """The costs, and how they compare with the first row."""
    first = next(iter(rows.values()))
    heads = ["", "parameters", "multiply-adds", f"with the {group.name} kernel", "activations"]
    lines = [heads]
    for name, cost in rows.items():
        numbers = (cost.parameters, cost.multiply_adds, cost.with_kernel, cost.activations)
        base = (first.parameters, first.multiply_adds, first.multiply_adds, first.activations)
        cells = [f"{short(n)} ({n / max(b, 1):.2f}x)" for n, b in zip(numbers, base, strict=True)]
        lines.append([name, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def short(number: float) -> str:
    """
    >>> short(25_557_032)
    '25.56M'
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000 or unit == "T":
            return f"{number:.4g}{unit}"
        number /= 1000
    raise AssertionError


def cost(model: nn.Module, examples: Sequence[Tensor]) -> Cost:
    """Count by running the examples."""
    batch = examples[0].shape[0]
    with in_eval_mode(model), torch.no_grad(), _counting() as counts:
        model(*examples)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(parameters, *(round(n / batch) for n in counts))


@contextmanager
def _counting() -> Iterator[list[float]]:
    """Multiply-adds, those with the kernel, and activations of all layers that run inside."""
    counts = [0.0, 0.0, 0.0]

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        work = multiply_adds(module, inputs, output)
        if work is None:
            return
        counts[0] += work
        counts[1] += work * _share(module, inputs[0])
        counts[2] += output.numel()

    handle = nn.modules.module.register_module_forward_hook(after)
    try:
        yield counts
    finally:
        handle.remove()


def multiply_adds(module: nn.Module, inputs: Any, output: Any) -> float | None:
    """What a layer that has filters does for this output; None for other layers."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return float(inputs[0].numel() * weight[0].numel())
    if isinstance(module, RollConvTranspose):  # its weight has a row for each orientation of each input
        return float(inputs[0].numel() * weight[0].numel() * module.group.order)
    if isinstance(module, nn.modules.conv._ConvNd | nn.Linear | _Convolution | RollLinear):
        return float(output.numel() * weight[0].numel())
    return None


def _share(module: nn.Module, x: Tensor) -> float:
    """Which part of the products is left where a layer runs in the group-Fourier basis."""
    dense = isinstance(module, RollLinear) and module.rotate == "filters"
    dense = dense or (isinstance(module, RollConv) and module.is_pointwise())
    runs = isinstance(module, _Convolution) and module.through_kernel
    if isinstance(module, RollLinear | RollConv) and dense and not runs:
        runs = kernel.faster_dense(x, module.group, module.in_features, module.out_features)
    group: Any = getattr(module, "group", None)
    return fourier.products(group) / group.order**2 if runs else 1.0
