"""The checker: how far a network is from equivariant, and which layer is the first to break it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from quarterturn import ops, trees
from quarterturn.errors import NotEquivariantError, QuarterturnError, ShapeError, unknown
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
COMPARED = (Tensor, int, float, complex)
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
    """The error of a network for every element of a group: absolute, and relative to the output's largest value.

    Each of several outputs has a scale of its own; the errors are those of the worst output.
    """

    group: Group
    absolute: tuple[float, ...]
    relative: tuple[float, ...]

    @property
    def worst(self) -> int:
        """The element with the largest relative error; NaN counts as the largest."""
        return max(range(self.group.order), key=lambda g: _rank(self.relative[g]))


def equivariance_error(
    model: Callable[..., Any],
    group: Group,
    x: Tensor | tuple[Tensor, ...],
    kind: OutputKind = "scalar",
    input_kind: ops.Kind = "scalar",
) -> EquivarianceErrors:
    """Compare model(g x) with what model(x) says it should be, for every element g (section 3 of the paper).

    By its shape an output is expected unchanged (invariant: vectors, numbers) or turned with the input
    (same-equivariant: maps). `kind="vector"`: the output holds directions, whose components turn too.
    `kind="invariant"`: unchanged, whatever the shape. Outputs may be tensors and numbers, or tuples, lists, dicts,
    dataclasses and namespaces of them; None and text in these must stay the same. Several inputs are given as a tuple.
    The model runs in eval mode, without gradients, on copies of the inputs, and gets its modes back. Inputs and
    outputs on which the check could not fail are refused.

    >>> from quarterturn import C4
    >>> max(equivariance_error(nn.MaxPool2d(3, 2), C4, torch.randn(1, 1, 9, 9)).relative)
    0.0
    """
    return _errors(group, _checked(model, group, _as_tuple(x), kind, input_kind))


def assert_equivariant(
    model: Callable[..., Any],
    group: Group,
    x: Tensor | tuple[Tensor, ...],
    kind: OutputKind = "scalar",
    input_kind: ops.Kind = "scalar",
    tolerance: float | None = None,
) -> None:
    """Raise unless the model is equivariant; the message has the worst element and the first layer that breaks it.

    The tolerance is relative to the largest value of each output: 1e-10 in float64, 1e-4 in float32, unless given.
    Arguments as in `equivariance_error`.

    >>> from quarterturn import C4, Slice, Pool
    >>> net = nn.Sequential(Slice(C4), nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), Pool(C4))
    >>> assert_equivariant(net, C4, torch.randn(1, 1, 8, 8))
    """
    inputs = _as_tuple(x)
    if tolerance is None:
        tolerance = max(TOLERANCES.get(t.dtype, 0.0) for t in inputs)
    differences = _checked(model, group, inputs, kind, input_kind)
    g = _errors(group, differences).worst
    worst = _worst(differences[g])
    if worst.relative <= tolerance:  # false for NaN
        return
    culprit = _find_culprit(model, group, inputs, g, kind, input_kind, tolerance)
    raise NotEquivariantError(
        f"not equivariant to {group.name}: {culprit}. The worst element is number {g}, {group.elements[g]}, "
        f"with an error of {worst.gap:.3g}, {worst.relative:.3g} of the largest "
        f"{f'value of the output {worst.path!r}' if worst.path else 'output'} (tolerance {tolerance:.3g})"
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
                here[law] = min(here[law], _worst(_differences([("", expected)], [("", t) for t in after])).relative)
            errors = {law: max(errors[law], here[law], key=_rank) for law in LAWS}
        best = min(errors, key=lambda law: _rank(errors[law]))
        found.append(LayerLaw(call.path, type(call.module).__name__, best, errors[best]))
    return found


# --- comparing --------------------------------------------------------------------------------------------------------


class _Difference(NamedTuple):
    """How far an output is from what it should be: the largest difference, and the largest finite value."""

    path: str
    gap: float
    size: float

    @property
    def relative(self) -> float:
        """The difference relative to the output's own scale."""
        return self.gap / self.size if self.size else self.gap


def _checked(
    model: Callable[..., Any], group: Group, inputs: tuple[Tensor, ...], kind: OutputKind, input_kind: ops.Kind
) -> list[list[_Difference]]:
    """The differences of all outputs, for every element; raises where they could not tell good from bad."""
    if kind not in OUTPUT_KINDS:
        raise unknown("kind", kind, OUTPUT_KINDS)
    _check_that_turning_changes(inputs, group, input_kind)
    output, differences = _compared(model, group, inputs, kind, input_kind)
    _check_that_outputs_tell(output, differences)
    return differences


def error_of_answers(model: Callable[..., Any], group: Group, inputs: tuple[Tensor, ...]) -> float:
    """The largest error, relative to how far the answers to the examples of the batch are from each other.

    A network that is almost constant has small errors relative to its output, whatever it does. An output that is
    constant, or has no axis of examples, is measured by its largest value.
    """
    _check_that_turning_changes(inputs, group, "scalar")
    output, differences = _compared(model, group, inputs, "scalar", "scalar")
    spreads = {path: _spread(value) for path, value in output}

    def error(found: _Difference) -> float:
        spread = spreads.get(found.path, 0.0)
        scale = spread if spread > 1e-8 * found.size else found.size  # less than that is rounding, in float64
        return found.gap / scale if scale else found.gap

    return max((error(found) for turn in differences for found in turn), key=_rank)


def _spread(value: Any) -> float:
    """The largest difference between the examples of a batch; zero where there are none to compare."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0 or value.numel() == 0:
        return 0.0
    spread = float((value.amax(0) - value.amin(0)).max())
    return spread if math.isfinite(spread) else 0.0


def _compared(
    model: Callable[..., Any], group: Group, inputs: tuple[Tensor, ...], kind: OutputKind, input_kind: ops.Kind
) -> tuple[list[tuple[str, Any]], list[list[_Difference]]]:
    """The outputs for the inputs as they are, and how far those for each turn of them are from what they should be."""
    differences = []
    with in_eval_mode(model), torch.no_grad():
        output = _outputs(_run(model, inputs))
        for g in range(group.order):
            expected = [(path, _expected(value, group, g, kind)) for path, value in output]
            turned = _outputs(_run(model, _turned(inputs, group, g, input_kind)))
            differences.append(_differences(expected, turned))
    return output, differences


def _run(model: Callable[..., Any], inputs: Iterable[Tensor]) -> Any:
    return model(*(t.clone() for t in inputs))  # copies: the model may change them in place


def _outputs(result: Any) -> list[tuple[str, Any]]:
    """All that the model gave, by path: tensors (also for numbers), text and None; anything else is refused."""
    found = []
    for path, value in trees.leaves(result):
        if isinstance(value, COMPARED):
            value = _as_tensor(value)
        elif value is not None and not isinstance(value, str):
            raise QuarterturnError(
                f"the output {path or 'of the model'} is a {type(value).__name__}, which the check cannot look into: "
                "return tensors, numbers, or tuples, lists, dicts, dataclasses or namespaces of them"
            )
        found.append((path, value))
    if not any(isinstance(value, Tensor) for _, value in found):
        raise QuarterturnError(
            f"the model returned a {type(result).__name__} without a tensor or a number in it, so there is nothing to "
            "compare: return what should be checked"
        )
    return found


def _as_tensor(value: Tensor | complex) -> Tensor:
    """A copy, as the model may keep its own and change it in place; numbers become tensors without axes."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)


def _expected(out: Any, group: Group, g: int, kind: OutputKind) -> Any:
    turns = isinstance(out, Tensor) and out.dim() > 1 and kind != "invariant"
    return ops.act(out, group, g, kind) if turns else out  # type: ignore[arg-type]


def _turned(inputs: Iterable[Tensor], group: Group, g: int, kind: ops.Kind) -> tuple[Tensor, ...]:
    """Maps are turned, other tensors go in as they are. Contiguous, as a user's turned image would be."""
    return tuple(ops.act(t, group, g, kind).contiguous() if t.dim() == 2 + group.dim else t for t in inputs)


def _as_tuple(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


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


def _check_that_outputs_tell(output: list[tuple[str, Any]], differences: list[list[_Difference]]) -> None:
    """Raise where an output is constant, for all turns: it would be so whatever the layers before it do.

    A constant among other outputs may be meant if it holds whole numbers or has no axes: a loss that is not used.
    """
    differs = {found.path for turn in differences for found in turn if found.gap != 0}
    tensors = [(path, value) for path, value in output if isinstance(value, Tensor)]
    constant = [(path, value) for path, value in tensors if path not in differs and _is_constant(value)]
    refused = [path for path, t in constant if t.dim() and (t.is_floating_point() or t.is_complex())]
    if refused or len(constant) == len(tensors):
        names = " and ".join(f"the output {path!r}" if path else "the output" for path in refused or dict(constant))
        raise QuarterturnError(
            f"{names} is constant (empty, zero, or one value everywhere), so the check could not fail: give the model "
            "weights and an input of two examples or more for which it is not, or leave it out of what is returned"
        )


def _is_constant(t: Tensor) -> bool:
    """Whether all is zero, or one value; a single number says something, and so does a class."""
    if not t.any():
        return True
    return t.numel() > 1 and (t.is_floating_point() or t.is_complex()) and bool((t == t.flatten()[0]).all())


def _differences(expected: Sequence[tuple[str, Any]], got: Sequence[tuple[str, Any]]) -> list[_Difference]:
    """The difference of each output, on its own scale; infinite where there are others, or of other shapes."""
    if [path for path, _ in expected] != [path for path, _ in got]:
        return [_Difference("", math.inf, 1.0)]
    return [_difference(path, a, b) for (path, a), (_, b) in zip(expected, got, strict=True)]


def _difference(path: str, a: Any, b: Any) -> _Difference:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return _Difference(path, 0.0 if type(a) is type(b) and a == b else math.inf, 1.0)
    if a.shape != b.shape:
        return _Difference(path, math.inf, 1.0)
    if not a.numel():
        return _Difference(path, 0.0, 0.0)
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    gap = torch.where(a == b, 0.0, (a - b).abs())  # equal infinities are equal
    size = max(torch.where(t.isfinite(), t, 0.0).abs().max().item() for t in (a, b))
    return _Difference(path, gap.max().item(), size)


def largest_difference(expected: Any, got: Any) -> tuple[float, float]:
    """The difference of the worst of two models' outputs, tensors or containers of them, and its largest value."""
    tensors = ([("", value) for _, value in trees.leaves(tree, Tensor)] for tree in (expected, got))
    worst = _worst(_differences(*tensors))
    return worst.gap, worst.size


def _worst(differences: Iterable[_Difference]) -> _Difference:
    return max(differences, key=lambda found: _rank(found.relative), default=_Difference("", 0.0, 0.0))


def _errors(group: Group, differences: list[list[_Difference]]) -> EquivarianceErrors:
    absolute = tuple(max((found.gap for found in turn), key=_rank) for turn in differences)
    return EquivarianceErrors(group, absolute, tuple(_worst(turn).relative for turn in differences))


def _rank(error: float) -> tuple[bool, float]:
    """By which errors are ordered: NaN is worse than all."""
    return math.isnan(error), error


@contextmanager
def in_eval_mode(model: Callable[..., Any]) -> Iterator[None]:
    """Run a model in eval mode, and give each of its modules its mode back."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    modes = {m: m.training for m in modules if hasattr(m, "training")}  # a frozen ScriptModule has no mode
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
    """The first call, in the order of their ends, whose inputs obey a law and whose outputs obey none, and matter."""
    if not isinstance(model, nn.Module):
        return "it is no nn.Module, so its layers cannot be looked at"
    kinds: tuple[ops.Kind, ...] = ("scalar", "vector") if "vector" in (kind, input_kind) else ("scalar",)
    examples = next(len(t) for t in inputs if t.dim() == 2 + group.dim)
    turned_inputs = _turned(inputs, group, h, input_kind)
    with in_eval_mode(model), torch.no_grad():
        calls = _record(model, inputs)
        calls_turned = _record(model, turned_inputs)
    if [call.path for call in calls] != [call.path for call in calls_turned]:
        return "it calls other layers for the turned input than for the input"

    def laws(before: list[Tensor], after: list[Tensor]) -> list[str | None]:
        if len(before) != len(after):
            return [None]
        return [_law(a, b, group, h, examples, kinds, tolerance) for a, b in zip(before, after, strict=True)]

    def lawful(before: list[Tensor], after: list[Tensor]) -> list[Tensor]:
        """What came out for the turned input, with all that obeys no law replaced by the nearest that does."""
        if len(before) != len(after):
            return [torch.zeros_like(b) for b in after]
        return [
            b if law else _nearest(a, b, group, h, examples, kinds)
            for a, b, law in zip(before, after, laws(before, after), strict=True)
        ]

    def matters(number: int) -> bool:
        """Whether the model's answer is another when what this call gives is lawful: it may be thrown away."""
        instead = lawful(calls[number].outputs, calls_turned[number].outputs)
        try:
            with in_eval_mode(model), torch.no_grad():
                answer = _record(model, turned_inputs, (number, instead))[-1].outputs
        except Exception:  # the model does not take it: then it looks at it
            return True
        as_it_is = calls_turned[-1].outputs
        return (
            not _worst(_differences(*([("", t) for t in found] for found in (as_it_is, answer)))).relative <= tolerance
        )

    for number, (call, turned) in enumerate(zip(calls, calls_turned, strict=True)):
        if None not in laws(call.outputs, turned.outputs) or None in laws(call.inputs, turned.inputs):
            continue
        if call.path and not matters(number):
            continue
        name = f"{call.path!r} ({_describe(call.module)})" if call.path else f"the model ({_describe(call.module)})"
        if call.has_calls:
            return f"it breaks inside the forward of {name}: the layers that it calls are fine"
        return f"the first layer that breaks it is {name}"
    found = laws(calls[-1].outputs, calls_turned[-1].outputs)
    return f"no layer breaks it, but the output is {' and '.join(sorted({LAWS[law] for law in found if law}))}"


def _describe(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return f"{module.original_name}, compiled by torch.jit"
    return type(module).__name__ if len(list(module.children())) else repr(module)


def _law(
    a: Tensor, b: Tensor, group: Group, h: int, examples: int, kinds: tuple[ops.Kind, ...], tolerance: float
) -> str | None:
    """How the tensor b, made from the turned input, follows from a: the first law that holds."""
    for name, expected in _laws(a, group, h, examples, kinds):
        if _difference("", expected, b).relative <= tolerance:
            return name
    return None


def _nearest(a: Tensor, b: Tensor, group: Group, h: int, examples: int, kinds: tuple[ops.Kind, ...]) -> Tensor:
    """The tensor that follows from a by a law and is nearest to b; zeros where none has its shape."""
    allowed = [t for _, t in _laws(a, group, h, examples, kinds) if t.shape == b.shape]
    return min(allowed, key=lambda t: _rank(_difference("", t, b).gap), default=torch.zeros_like(b))


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


def _record(
    model: nn.Module, inputs: tuple[Tensor, ...], instead: tuple[int, list[Tensor]] | None = None
) -> list[_Call]:
    """Run the model and list the calls of all its modules, the inner ones before the outer ones.

    `instead` has the number of a call and the tensors that it is made to give. What a ScriptModule calls inside is not
    seen: it is one layer.
    """
    calls: list[_Call] = []
    entered: list[tuple[list[Tensor], int]] = []
    handles = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        entered.append((_tensors([args, kwargs]), len(calls)))

    def leave(path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            tensors, calls_before = entered.pop()
            if instead is not None and instead[0] == len(calls):
                output = _filled(output, instead[1])
            calls.append(_Call(path, module, tensors, _tensors(output), len(calls) > calls_before))
            return output

        return hook

    try:
        for path, module in model.named_modules():  # by nn.Module's methods, because ScriptModule hides them
            handles.append(nn.Module.register_forward_pre_hook(module, enter, with_kwargs=True))
            handles.append(nn.Module.register_forward_hook(module, leave(path)))
        _run(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _tensors(tree: Any) -> list[Tensor]:
    """Copies of all tensors and numbers: a later layer may change them in place."""
    return [_as_tensor(value) for _, value in trees.leaves(tree, COMPARED)]


def _filled(tree: Any, tensors: list[Tensor]) -> Any:
    """The same containers with these tensors and numbers in the places of the old ones."""
    values = iter(tensors)

    def filled(_: str, old: Any) -> Any:
        new = next(values)
        return new.clone() if isinstance(old, Tensor) else type(old)(new.item())

    return trees.mapped(tree, COMPARED, filled)
