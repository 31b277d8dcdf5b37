"""What `convert` did, as a table: what the network cost before and after, what was rounded and what is as it was."""

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from quarterturn.cost import Cost, Ours, Work, aligned, short
from quarterturn.groups import Group


@dataclass(frozen=True)
class KeptPart:
    """A part that runs as it is in every pathway: why, and its multiply-adds for one example, in all pathways."""

    path: str
    layer: str
    why: str
    multiply_adds: int


@dataclass(frozen=True)
class Conversion:
    """What `convert` did: the costs before and after, what was rounded, and which parts stayed plain.

    `rolled_share` is the share of the old network's multiply-adds, between 0 and 1, that lie in layers which share
    filters over orientations now (`SliceConv`, `RollConv`, `DepthwiseConv`, `RollConvTranspose`, `RollLinear`). The
    rest are those of plain parts, of layers from `until` on, and of products that are no layers, such as attention.

    `heads` has, for each last layer that gets ordinary numbers, how many. Such layers count as rolled.
    """

    group: Group
    keep: str
    before: Cost
    after: Cost
    notes: tuple[str, ...]
    plain: tuple[KeptPart, ...] = ()
    rolled_share: float = 1.0
    heads: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = {"as it was": self.before, f"converted, keep={self.keep!r}": self.after}
        return "\n".join([table(self.group, rows), *(f"- {remark}" for remark in self.remarks)])

    @property
    def remarks(self) -> list[str]:
        """What is to be said below the table, line by line."""
        share = f"layers that share filters over orientations had {100 * self.rolled_share:.0f} % of the multiply-adds"
        few = ": wrap() costs about as much and keeps the weights" if self.rolled_share < 0.5 and self.plain else ""
        lines = [f"{share}{few}"]
        for layer in dict.fromkeys(part.layer for part in self.plain):
            parts = [part for part in self.plain if part.layer == layer]
            name = f"{parts[0].path} ({layer})" + (f" and {len(parts) - 1} more of its type" if len(parts) > 1 else "")
            work = short(sum(part.multiply_adds for part in parts))
            cost = f"{self.group.order} times its own work, {work} multiply-adds"
            lines.append(f"plain, in every orientation: {name}, {cost}; {parts[0].why}")
        return [*lines, *self.notes]


def rolled_share(
    old: nn.Module, work: Sequence[Work], new: nn.Module, new_work: Sequence[Work], heads: Collection[str] = ()
) -> float:
    """The share of the old network's work in layers that are one of ours under the same name in the new network.

    Where the old network's code uses the weight of a layer that it does not call, or a parameter that became a layer,
    what these multiply is counted.
    """
    called = {w.path for w in work}
    ours = {path for path, module in new.named_modules(remove_duplicate=False) if isinstance(module, Ours)}
    rolled = sum(w.multiply_adds for w in work if w.path in {*ours, *heads})
    for w in new_work:
        if w.path in ours - called and isinstance(w.layer, Ours):
            rows = w.multiply_adds / (w.layer.weight.numel() * w.layer.group.order)
            rolled += rows * _weight_of(old, w.path)
    return rolled / (sum(w.multiply_adds for w in work) or 1.0)


def _weight_of(model: nn.Module, path: str) -> int:
    """How many weights the old network has there, as a layer or as a parameter; none, if the layer is a new one."""
    try:
        found = operator.attrgetter(path)(model)
    except AttributeError:
        return 0
    weight = getattr(found, "weight", found)
    return weight.numel() if isinstance(weight, Tensor) else 0


def kept_parts(
    why: dict[str, str], modules: dict[str, nn.Module], work: Sequence[Work], batch: int, paths: Collection[str]
) -> tuple[KeptPart, ...]:
    """The plain parts, and what each of them costs in the new network."""
    found = []
    for path in dict.fromkeys(paths):
        cost = sum(w.multiply_adds for w in work if f"{w.path}.".startswith(f"{path}.part."))
        found.append(KeptPart(path, type(modules[path]).__name__, why.get(path, ""), round(cost / batch)))
    return tuple(found)


def table(group: Group, rows: dict[str, Cost]) -> str:
    """The costs, and how they compare with the first row; the last column is an estimate for one thread."""
    first = next(iter(rows.values()))
    lines = [["", "parameters", "multiply-adds", f"with the {group.name} kernel", "activations", "time (estimate)"]]
    for name, cost in rows.items():
        numbers = (cost.parameters, cost.multiply_adds, cost.with_kernel, cost.activations)
        base = (first.parameters, first.multiply_adds, first.multiply_adds, first.activations)
        cells = [f"{short(n)} ({n / max(b, 1):.2f}x)" for n, b in zip(numbers, base, strict=True)]
        lines.append([name, *cells, f"{cost.seconds / first.seconds:.2f}x" if first.seconds else "-"])
    return aligned(lines, right=range(1, 6))
