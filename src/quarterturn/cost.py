"""What a network costs: the multiply-adds of each layer, and which code runs it.

Multiply-adds are those of torch's counter (convolutions, matrix products, attention). Our layers are counted as they
are defined, whichever code runs them; `Work.done` counts what is actually done in the group-Fourier basis.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from quarterturn.check import in_eval_mode
from quarterturn.execution import Execution
from quarterturn.layers.convolution import PoolConv, _Convolution
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.token_mixing import TokenMixing
from quarterturn.layers.transposed import RollConvTranspose
from quarterturn.rates import estimate

Ours = _Convolution | RollLinear | RollConvTranspose | TokenMixing


@dataclass(frozen=True)
class Work:
    """One call of a layer: its multiply-adds as defined and as done, and how many numbers it outputs (activations)."""

    path: str
    layer: nn.Module
    multiply_adds: float
    activations: int
    execution: Execution

    @property
    def done(self) -> float:
        return self.multiply_adds * self.execution.share


@dataclass(frozen=True)
class Cost:
    """Parameters, and for one example: multiply-adds as defined, those done (`with_kernel`), and activations.

    `seconds` is what an example of the batch should take on one thread of this processor (`quarterturn.rates`).
    """

    parameters: int
    multiply_adds: int
    with_kernel: int
    activations: int
    seconds: float = field(default=0.0, repr=False, compare=False)


def cost(model: nn.Module, examples: Sequence[Tensor]) -> Cost:
    """The cost of a network, counted while it runs the examples.

    >>> cost(nn.Conv2d(1, 2, 3), [torch.zeros(5, 1, 4, 4)])
    Cost(parameters=20, multiply_adds=72, with_kernel=72, activations=8)
    """
    return total(model, work_of(model, examples), examples)


def total(model: nn.Module, work: Sequence[Work], examples: Sequence[Tensor]) -> Cost:
    """The cost of a network whose work on these examples is known."""
    batch = examples[0].shape[0]
    sums = [sum(w.multiply_adds for w in work), sum(w.done for w in work), sum(w.activations for w in work)]
    defined, done, activations = (round(n / batch) for n in sums)
    seconds = sum(estimate(model, examples).values()) / batch
    return Cost(sum(p.numel() for p in model.parameters()), defined, done, activations, seconds)


def work_of(model: nn.Module, examples: Sequence[Tensor]) -> list[Work]:
    """All calls of layers with multiply-adds, in the order they run on these inputs, in eval mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(
        False
    )  # which runs attention in one operator that the counter does not know
    try:
        with in_eval_mode(model), torch.no_grad(), _counting(model) as work:
            model(*examples)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return work


# --- explain ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """Which code runs the layers of a network on an input, as `explain` finds it; `str` gives the table.

    `work` has an entry for each layer with multiply-adds, `codes` counts the layers of each code, and `seconds` is an
    estimate of the time, by what takes it.

    >>> import contextlib, io
    >>> with contextlib.redirect_stdout(io.StringIO()):
    ...     found = explain(nn.Linear(4, 2), torch.zeros(1, 4))
    >>> found.work[0].multiply_adds
    8.0
    """

    work: tuple[Work, ...] = field(repr=False)
    codes: dict[str, int]
    seconds: dict[str, float] = field(default_factory=dict, repr=False)  # an estimate, by what takes the time

    def __str__(self) -> str:
        total = sum(w.multiply_adds for w in self.work) or 1.0
        rows = [["layer", "", "what runs", "multiply-adds", "done", "of all", "why"]]
        for w in self.work:
            numbers = [short(w.multiply_adds), short(w.done), f"{100 * w.done / total:.0f} %"]
            rows.append([w.path or "(the model)", type(w.layer).__name__, w.execution.code, *numbers, w.execution.why])
        done = sum(w.done for w in self.work)
        rows.append(["all", "", "", short(total), short(done), f"{100 * done / total:.0f} %", ""])
        return "\n".join([aligned(rows, right=(3, 4, 5)), *self._time()])

    def _time(self) -> list[str]:
        whole = sum(self.seconds.values())
        shares = [f"{what} {100 * seconds / whole:.0f} %" for what, seconds in self.seconds.items() if seconds]
        return [f"estimated time on one thread: {1000 * whole:.3g} ms: {', '.join(shares)}"] if shares else []


def explain(model: nn.Module, x: Tensor | tuple[Tensor, ...]) -> Explanation:
    """Print a table of the layers: which code runs each one, its multiply-adds, and why.

    Multiply-adds are for the whole input, as the layer is defined. "done" are those that remain in the group-Fourier
    basis, where the kernel or a block-diagonal product runs the layer. Layers without multiply-adds (norms,
    activations, pooling) are not listed, but are a part of the estimated time below the table.

    >>> from quarterturn import C4, RollConv, SliceConv
    >>> net = nn.Sequential(SliceConv(C4, 1, 16, 3, rotate="filters"), RollConv(C4, 16, 16, 3, rotate="filters"))
    >>> import contextlib, io
    >>> with contextlib.redirect_stdout(io.StringIO()):
    ...     found = explain(net, torch.zeros(1, 1, 32, 32))
    >>> [work.execution.code for work in found.work][0]
    "torch's convolution"
    """
    examples = x if isinstance(x, tuple) else (x,)
    work = tuple(work_of(model, examples))
    found = Explanation(work, dict(Counter(w.execution.code for w in work)), estimate(model, examples))
    print(found)
    return found


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows of cells as text in aligned columns; the columns in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def short(number: float) -> str:
    """A number with four digits and a unit.

    >>> short(25_557_032)
    '25.56M'
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000 or unit == "T":
            return f"{number:.4g}{unit}"
        number /= 1000
    raise AssertionError


# --- counting ---------------------------------------------------------------------------------------------------------


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


# The formulas of torch's counter, and one for attention on the CPU, which it lacks.
FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}


class _Products(TorchDispatchMode):
    """Counts multiply-adds with the formulas above."""

    total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out) / 2
        return out


@contextmanager
def _counting(model: nn.Module) -> Iterator[list[Work]]:
    """Collect the work of all layers that run inside: what the counter gains during each call, without inner layers."""
    work: list[Work] = []
    open_calls: list[list[float]] = []  # for each running layer: the count at its start, and that of its inner layers
    paths = {module: path for path, module in model.named_modules()}
    counter = _Products()

    def before(module: nn.Module, inputs: Any) -> None:
        open_calls.append([counter.total, 0.0])

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        start, inside = open_calls.pop()
        if isinstance(module, Ours):
            found, execution = _defined(module, inputs[0], output), module.execution(inputs[0])
        else:
            found, execution = counter.total - start - inside, _of_torch(module)
        if found:
            numbers = output.numel() if isinstance(output, Tensor) else 0
            work.append(Work(paths.get(module, ""), module, found, numbers, execution))
        if open_calls:
            open_calls[-1][1] += counter.total - start

    handles = [
        nn.modules.module.register_module_forward_pre_hook(before),
        nn.modules.module.register_module_forward_hook(after, always_call=False),
    ]
    try:
        with counter:
            yield work
    finally:
        for handle in handles:
            handle.remove()


def _defined(module: Ours, x: Tensor, output: Tensor) -> float:
    """The multiply-adds of one of our layers as defined, whichever code runs it."""
    if isinstance(module, RollConvTranspose):  # its weight has a row for each orientation of each input
        return float(x.numel() * module.weight[0].numel() * module.group.order)
    pathways = module.group.order if isinstance(module, PoolConv) else 1  # all of which each output sees
    return float(output.numel() * module.weight[0].numel() * pathways)


def _of_torch(module: nn.Module) -> Execution:
    if isinstance(module, nn.modules.conv._ConvNd):
        return Execution("torch's convolution", "a torch layer")
    if isinstance(module, nn.Linear):
        return Execution("torch's matrix product", "a torch layer")
    return Execution("torch's operators", "called in this module's forward")
