"""What it would cost to make a network equivariant, by each of the ways, as one table."""

from collections.abc import Sequence

import torch
from torch import nn

from quarterturn._convert.converted_network import convert
from quarterturn._convert.report import table
from quarterturn._convert.widths import Keep
from quarterturn._wrap import wrap
from quarterturn.cost import Cost, cost
from quarterturn.errors import ConversionError, OptionError
from quarterturn.groups import Group


def summary(model: nn.Module, group: Group, input_size: Sequence[int]) -> str:
    """Print, and return, what the network costs as it is, wrapped and converted, for one example.

    `input_size` is that of the input without the batch, such as (3, 224, 224).

    >>> from quarterturn import C4
    >>> net = nn.Sequential(nn.Conv2d(1, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> import contextlib, io
    >>> with contextlib.redirect_stdout(io.StringIO()):
    ...     text = summary(net, C4, (1, 32, 32))
    >>> text.splitlines()[2].split()[:3]
    ['wrap', '37.57k', '(1.00x)']
    """
    rows, notes = costs(model, group, input_size)
    text = "\n".join([table(group, rows), *(f"- {note}" for note in notes)])
    print(text)
    return text


def costs(model: nn.Module, group: Group, input_size: Sequence[int]) -> tuple[dict[str, Cost], list[str]]:
    """The rows of that table, and what is to be said below it."""
    sizes = tuple(input_size)
    if len(sizes) != 1 + group.dim or any(not isinstance(n, int) or n < 1 for n in sizes):
        raise OptionError(f"input_size must be channels and {group.dim} sizes for {group.name}, got {input_size!r}")
    first = next(model.parameters(), torch.empty(0))
    example = torch.randn(2, *sizes, device=first.device, dtype=first.dtype)
    rows: dict[str, Cost] = {"as it is": cost(model, [example]), "wrap": cost(wrap(model, group), [example])}
    keeps: tuple[Keep, ...] = ("width", "parameters")
    notes: dict[str, None] = {}
    for keep in keeps:
        try:
            conversion = convert(model, group, keep=keep, example=example).conversion
        except ConversionError as error:
            return rows, [str(error)]
        rows[f"convert, keep={keep!r}"] = conversion.after
        notes |= dict.fromkeys(f"keep={keep!r}: {note}" for note in conversion.remarks)
    return rows, list(notes)
