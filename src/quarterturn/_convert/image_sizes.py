"""Images of other sizes than that of the example: a network that does not take them says so."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn.errors import ShapeError
from quarterturn.graph.capture import first_line

AGAIN = "resize them, or convert the network with an example of their size"


@dataclass(frozen=True)
class KnownSizes:
    """The sides of the example; what is a number for each position is for these alone, and named in `table`."""

    sides: tuple[int, ...]
    table: str | None


def known_sizes(w: EquivariantWriter, inputs: Sequence[Tensor]) -> KnownSizes:
    bound = bool(w.tables_of_maps) and not w.resized
    return KnownSizes(tuple(inputs[0].shape[2:]), w.tables_of_maps[0] if bound else None)


def of_known_sizes(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward pass with one of our errors for images of a size that it does not take."""

    @functools.wraps(forward)
    def run(self: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        known = self.meta.get("sizes")
        if known is None or torch.compiler.is_compiling() or torch.jit.is_tracing() or not _differ(known, args):
            return forward(self, *args, **kwargs)
        needed, came = (" x ".join(map(str, sides)) for sides in (known.sides, args[0].shape[2:]))
        takes = f"this network takes images of {needed}, got {came}"
        if known.table is not None:
            raise ShapeError(f"{takes}: {known.table} has a number for each position of its maps; {AGAIN}")
        try:
            return forward(self, *args, **kwargs)
        except RuntimeError as error:  # torch's own, of shapes that do not fit
            raise ShapeError(f"{takes}: {first_line(error)}; {AGAIN}") from error

    return run


def _differ(known: KnownSizes, args: Sequence[Any]) -> bool:
    """Whether these are images, of other sides than the example's."""
    x = args[0] if args else None
    return type(x) is Tensor and x.dim() == 2 + len(known.sides) and tuple(x.shape[2:]) != known.sides
