"""The checker: how far a network is from equivariant, and which layer is the first to break it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quarterturn import ops
from quarterturn.errors import NotEquivariantError, ShapeError, unknown
from quarterturn.groups import Group

OutputKind = Literal["scalar", "vector", "invariant"]
OUTPUT_KINDS = ("scalar", "vector", "invariant")
# What may become of a tensor when the input is turned, and how we speak of it.
LAWS = {
    "unchanged": "unchanged (invariant)",
    "pathways permuted": "sliced (pathways permuted: is a Pool missing?)",
    "orientations permuted": "stacked (orientations permuted: is a Pool missing?)",
    "turned": "turned with the input (same-equivariant)",
}
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class LayerLaw:
    """How the output of a layer follows the input's turns: the law that fits best, and its largest relative error."""

    path: str
    layer: str
    law: str
    error: float


@dataclass(frozen=True)
class EquivarianceErrors:
    """The error of a network for every element of a group: absolute, and relative to the largest output."""

    group: Group
    absolute: tuple[float, ...]
    relative: tuple[float, ...]

    @property
    def worst(self) -> int:
        """The element with the largest relative error; NaN counts as the largest."""
        return max(
            range(self.group.order), key=lambda g: math.inf if math.isnan(self.relative[g]) else self.relative[g]
        )


def equivariance_error(
    model: Callable[..., Any],
    group: Group,
    x: Tensor | tuple[Tensor, ...],
    kind: OutputKind = "scalar",
    input_kind: ops.Kind = "scalar",
) -> EquivarianceErrors:
    """Compare model(g x) with what model(x) says it should be, for every element g (section 3 of the paper).

    By its shape an output is expected unchanged (invariant: vectors) or turned with the input (same-equivariant: maps).
    `kind="vector"`: the output holds directions, whose components turn too. `kind="invariant"`: unchanged, whatever the
    shape. Outputs may be tensors or tuples, lists, dicts and dataclasses of them; several inputs are given as a tuple.
    The model runs in eval mode, without gradients, and gets its modes back.

    >>> from quarterturn import C4
    >>> max(equivariance_error(nn.MaxPool2d(3, 2), C4, torch.randn(1, 1, 9, 9)).relative)
    0.0
    """
    if kind not in OUTPUT_KINDS:
        raise unknown("kind", kind, OUTPUT_KINDS)
    inputs = x if isinstance(x, tuple) else (x,)
    _check_that_turning_changes(inputs, group, input_kind)
    absolute, relative = [], []
    with in_eval_mode(model), torch.no_grad():
        output = list(_tensors(model(*inputs)))
        for g in range(group.order):
            turned = list(_tensors(model(*_turned(inputs, group, g, input_kind))))
            expected = [_expected(out, group, g, kind) for out in output]
            gap, size = _distance(expected, turned)
            absolute.append(gap)
            relative.append(gap / size if size else gap)
    return EquivarianceErrors(group, tuple(absolute), tuple(relative))


def assert_equivariant(
    model: Callable[..., Any],
    group: Group,
    x: Tensor | tuple[Tensor, ...],
    kind: OutputKind = "scalar",
    input_kind: ops.Kind = "scalar",
    tolerance: float | None = None,
) -> None:
    """Raise unless the model is equivariant; the message has the worst element and the first layer that breaks it.

    The tolerance is relative to the largest output: 1e-10 in float64, 1e-4 in float32, unless given. Arguments as in
    `equivariance_error`.

    >>> from quarterturn import C4, Slice, Pool
    >>> net = nn.Sequential(Slice(C4), nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), Pool(C4))
    >>> assert_equivariant(net, C4, torch.randn(1, 1, 8, 8))
    """
    inputs = x if isinstance(x, tuple) else (x,)
    if tolerance is None:
        tolerance = max(TOLERANCES.get(t.dtype, 0.0) for t in inputs)
    errors = equivariance_error(model, group, x, kind, input_kind)
    worst = errors.worst
    if errors.relative[worst] <= tolerance:  # false for NaN
        return
    culprit = _find_culprit(model, group, inputs, worst, kind, input_kind, tolerance)
    raise NotEquivariantError(
        f"not equivariant to {group.name}: {culprit}. The worst element is number {worst}, {group.elements[worst]}, "
        f"with an error of {errors.absolute[worst]:.3g}, {errors.relative[worst]:.3g} of the largest output "
        f"(tolerance {tolerance:.3g})"
    )


def laws_by_layer(model: nn.Module, group: Group, x: Tensor) -> list[LayerLaw]:
    """How the output of every innermost layer follows the turns of the input, over all elements, in running order.

    >>> from quarterturn import C4, Slice, Pool
    >>> net = nn.Sequential(Slice(C4), nn.ReLU(), Pool(C4))
    >>> [layer.law for layer in laws_by_layer(net, C4, torch.randn(1, 1, 8, 8))]
    ['pathways permuted', 'pathways permuted', 'turned']
    """
    _check_that_turning_changes((x,), group, "scalar")
    with in_eval_mode(model), torch.no_grad():
        calls = _record(model, (x,))
        turned = [_record(model, _turned((x,), group, g, "scalar")) for g in range(group.order)]
    found = []
    for number, call in enumerate(calls):
        if call.has_calls or len(call.outputs) != 1:
            continue
        errors = dict.fromkeys(LAWS, 0.0)
        for g in range(group.order):
            here = dict.fromkeys(LAWS, math.inf)
            after = turned[g][number].outputs if number < len(turned[g]) else []
            for law, expected in _laws(call.outputs[0], group, g, len(x), ("scalar",)):
                gap, size = _distance([expected], after)
                here[law] = min(here[law], gap / size if size else gap)
            errors = {law: _larger(errors[law], here[law]) for law in LAWS}
        best = min(errors, key=lambda law: (math.isnan(errors[law]), errors[law]))
        found.append(LayerLaw(call.path, type(call.module).__name__, best, errors[best]))
    return found


# --- comparing --------------------------------------------------------------------------------------------------------


def _expected(out: Tensor, group: Group, g: int, kind: OutputKind) -> Tensor:
    return out if kind == "invariant" else ops.act(out, group, g, kind)


def _turned(inputs: Iterable[Tensor], group: Group, g: int, kind: ops.Kind) -> tuple[Tensor, ...]:
    """Maps are turned, other tensors go in as they are. Contiguous, as a user's turned image would be."""
    return tuple(ops.act(t, group, g, kind).contiguous() if t.dim() == 2 + group.dim else t for t in inputs)


def _check_that_turning_changes(inputs: tuple[Tensor, ...], group: Group, kind: ops.Kind) -> None:
    for g in range(1, group.order):
        if all(map(_same, inputs, _turned(inputs, group, g, kind))):
            example = ", ".join(["16"] * group.dim)
            raise ShapeError(
                f"the input looks the same when turned by {group.elements[g]}, so the check could not fail: give it "
                f"maps with {2 + group.dim} axes and without that symmetry, such as torch.randn(2, 3, {example})"
            )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _distance(expected: list[Tensor], got: list[Tensor]) -> tuple[float, float]:
    """The largest difference between two lists of tensors, and the largest value in them."""
    if [t.shape for t in expected] != [t.shape for t in got]:
        return math.inf, 1.0
    gap = size = 0.0
    for a, b in zip(expected, got, strict=True):
        if a.numel():
            wide = torch.complex128 if a.is_complex() else torch.float64
            a, b = a.to(wide), b.to(wide)
            gap = _larger(gap, (a - b).abs().max().item())
            size = max(size, a.abs().max().item(), b.abs().max().item())
    return gap, size


def largest_difference(expected: Any, got: Any) -> tuple[float, float]:
    """The largest difference between two outputs, tensors or containers of them, and the largest value in them."""
    return _distance(list(_tensors(expected)), list(_tensors(got)))


def _larger(a: float, b: float) -> float:
    return b if math.isnan(b) or b > a else a


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
    elif is_dataclass(output):
        for entry in fields(output):
            yield from _tensors(getattr(output, entry.name))


@contextmanager
def in_eval_mode(model: Callable[..., Any]) -> Iterator[None]:
    """Run a model in eval mode, and give each of its modules its mode back."""
    modes = {m: m.training for m in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


# --- finding the layer ------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    """One call of a submodule: what went in and came out, and whether it called submodules of its own."""

    path: str
    module: nn.Module
    inputs: list[Tensor]
    outputs: list[Tensor]
    has_calls: bool


def _find_culprit(
    model: Callable[..., Any],
    group: Group,
    inputs: tuple[Tensor, ...],
    h: int,
    kind: OutputKind,
    input_kind: ops.Kind,
    tolerance: float,
) -> str:
    """The first call, in the order of their ends, whose inputs obey a law and whose outputs obey none."""
    if not isinstance(model, nn.Module):
        return "it is no nn.Module, so its layers cannot be looked at"
    kinds: tuple[ops.Kind, ...] = ("scalar", "vector") if "vector" in (kind, input_kind) else ("scalar",)
    with in_eval_mode(model), torch.no_grad():
        calls = _record(model, inputs)
        calls_turned = _record(model, _turned(inputs, group, h, input_kind))
    if [call.path for call in calls] != [call.path for call in calls_turned]:
        return "it calls other layers for the turned input than for the input"

    def laws(before: list[Tensor], after: list[Tensor]) -> list[str | None]:
        if len(before) != len(after):
            return [None]
        return [_law(a, b, group, h, len(inputs[0]), kinds, tolerance) for a, b in zip(before, after, strict=True)]

    for call, turned in zip(calls, calls_turned, strict=True):
        if None in laws(call.outputs, turned.outputs) and None not in laws(call.inputs, turned.inputs):
            name = f"{call.path!r} ({_describe(call.module)})" if call.path else f"the model ({_describe(call.module)})"
            if call.has_calls:
                return f"it breaks inside the forward of {name}: the layers that it calls are fine"
            return f"the first layer that breaks it is {name}"
    found = laws(calls[-1].outputs, calls_turned[-1].outputs)
    return f"no layer breaks it, but the output is {' and '.join(sorted({LAWS[law] for law in found if law}))}"


def _describe(module: nn.Module) -> str:
    return type(module).__name__ if len(list(module.children())) else repr(module)


def _law(
    a: Tensor, b: Tensor, group: Group, h: int, examples: int, kinds: tuple[ops.Kind, ...], tolerance: float
) -> str | None:
    """How the tensor b, made from the turned input, follows from a: the first law that holds."""
    for name, expected in _laws(a, group, h, examples, kinds):
        gap, size = _distance([expected], [b])
        if gap <= tolerance * size:
            return name
    return None


def _laws(a: Tensor, group: Group, h: int, examples: int, kinds: tuple[ops.Kind, ...]) -> Iterator[tuple[str, Tensor]]:
    """What symmetry allows: unchanged; turned; pathways permuted, x_g -> x_gh; turned and orientations permuted."""
    sliced = a.dim() > 0 and len(a) % (group.order * examples) == 0
    permutation = [group.table[g][h] for g in range(group.order)]
    yield "unchanged", a
    if sliced:
        pathways = a.unflatten(0, (group.order, len(a) // group.order))
        yield "pathways permuted", pathways[permutation].flatten(0, 1)
    for features in (1, -1):  # the axis of the features: some layers, such as LayerNorm, want it last
        maps = a.movedim(features, 1) if a.dim() == 2 + group.dim else a
        if maps.dim() not in (2, 2 + group.dim):
            continue
        for kind in kinds:
            if kind == "scalar" or maps.shape[1] % group.dim == 0:
                turned = ops.act(maps, group, h, kind)
                yield "turned", turned.movedim(1, features)
        if maps.shape[1] % group.order == 0 and not sliced:
            orientations = maps.unflatten(1, (maps.shape[1] // group.order, group.order))
            turned = ops.act(orientations[:, :, permutation].flatten(1, 2), group, h)
            yield "orientations permuted", turned.movedim(1, features)


def _record(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[_Call]:
    """Run the model and list the calls of all its modules, the inner ones before the outer ones."""
    calls: list[_Call] = []
    entered: list[tuple[list[Tensor], int]] = []
    handles = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        entered.append(([t.clone() for t in _tensors([args, kwargs])], len(calls)))

    def leave(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            tensors, calls_before = entered.pop()
            copies = [t.clone() for t in _tensors(output)]  # a later layer may change them in place
            calls.append(_Call(path, module, tensors, copies, len(calls) > calls_before))

        return hook

    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave(path)))
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return calls
