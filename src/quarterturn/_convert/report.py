"""What `convert` did, as a table: what the network cost before and after, and what was rounded."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quarterturn.cost import Cost, aligned, short
from quarterturn.groups import Group


@dataclass(frozen=True)
class Conversion:
    """What `convert` did: the costs before and after, what was rounded, and what the last layers see.

    `heads` has, for each last layer that gets ordinary numbers, how many.
    """

    group: Group
    keep: str
    before: Cost
    after: Cost
    notes: tuple[str, ...]
    heads: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = {"as it was": self.before, f"converted, keep={self.keep!r}": self.after}
        return "\n".join([table(self.group, rows), *(f"- {note}" for note in self.notes)])


def table(group: Group, rows: dict[str, Cost]) -> str:
    """The costs, and how they compare with the first row."""
    first = next(iter(rows.values()))
    lines = [["", "parameters", "multiply-adds", f"with the {group.name} kernel", "activations"]]
    for name, cost in rows.items():
        numbers = (cost.parameters, cost.multiply_adds, cost.with_kernel, cost.activations)
        base = (first.parameters, first.multiply_adds, first.multiply_adds, first.activations)
        lines.append([name, *(f"{short(n)} ({n / max(b, 1):.2f}x)" for n, b in zip(numbers, base, strict=True))])
    return aligned(lines, right=range(1, 5))
