"""The checker: how far a network is from equivariant, and which layer is the first to break equivariance."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from quarterturn import ops, trees
from quarterturn.errors import NotEquivariantError, QuarterturnError, ShapeError, unknown
from quarterturn.groups import Group, groups_for

OutputKind = Literal["scalar", "vector", "invariant"]
OUTPUT_KINDS = ("scalar", "vector", "invariant")
# How a tensor may change when the input is turned, and the words for it in messages.
LAWS = {
    "unchanged": "unchanged (invariant)",
    "pathways permuted": "sliced (pathways permuted: is a Pool missing?)",
    "orientations permuted": "stacked (orientations permuted: is a Pool missing?)",
    "turned": "turned with the input (same-equivariant)",
}
COMPARED = (Tensor, int, float, complex)
MOST_EXTRA = 16  # tokens without a position that are looked for
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class LayerLaw:
    """How a layer's output changes when the input is turned: the law that fits best, and its largest relative error."""

    path: str
    layer: str
    law: str
    error: float


@dataclass(frozen=True)
class EquivarianceErrors:
    """The error of a network for every element of a group: `absolute`, and `relative` to the output's largest value.

    If there are several outputs, each has its own scale, and the errors are those of the worst output.

    >>> from quarterturn import C4
    >>> errors = EquivarianceErrors(C4, (0.0, 0.1, 0.0, 0.2), (0.0, 0.01, 0.0, 0.02))
    >>> errors.worst, errors.relative[errors.worst]
    (3, 0.02)
    """

    group: Group
    absolute: tuple[float, ...]
    relative: tuple[float, ...]

    @property
    def worst(self) -> int:
        """The index of the element with the largest relative error; NaN counts as the largest."""
        return max(range(self.group.order), key=lambda g: _rank(self.relative[g]))


def equivariance_error(
    model: Callable[..., Any],
    group: Group,
    x: Tensor | tuple[Tensor, ...],
    kind: OutputKind = "scalar",
    input_kind: ops.Kind = "scalar",
) -> EquivarianceErrors:
    """Measure how far a model is from equivariant, for every element of the group (section 3 of the paper).

    Outputs that are maps should turn with the input (same-equivariant). Dense outputs and numbers should not change
    (invariant). With `kind="vector"` outputs hold directions, whose components turn too; `input_kind` says so of
    inputs. With `kind="invariant"` no output should change. Outputs may be tensors and numbers, or tuples, lists,
    dicts, dataclasses and namespaces of them; None and text in these must stay the same. Give several inputs as a
    tuple. The model runs on copies of the inputs, in eval mode and without gradients; its modes are restored. If the
    inputs or outputs are such that the check could not fail, it raises.

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
    """Raise unless the model is equivariant; the message names the worst element and the first layer to blame.

    The `tolerance` is relative to the largest value of each output; by default 1e-10 in float64 and 1e-4 in float32.
    The other arguments, `kind` and `input_kind` too, are those of `equivariance_error`.

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
        f"with an error of {worst.gap:.3g}, which is {worst.relative:.3g} of the largest "
        f"{f'value of the output {worst.path!r}' if worst.path else 'output'} (tolerance {tolerance:.3g})"
    )


def laws_by_layer(model: nn.Module, group: Group, x: Tensor) -> list[LayerLaw]:
    """How the output of every innermost layer changes when the input is turned, in the order in which they run.

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
            for law, expected in _laws(call.outputs[0], group, g, x.shape, ("scalar",)):
                here[law] = min(here[law], _worst(_differences([("", expected)], [("", t) for t in after])).relative)
            errors = {law: max(errors[law], here[law], key=_rank) for law in LAWS}
        best = min(errors, key=lambda law: _rank(errors[law]))
        found.append(LayerLaw(call.path, type(call.module).__name__, best, errors[best]))
    return found


# --- comparing --------------------------------------------------------------------------------------------------------


class _Difference(NamedTuple):
    """How far an output is from the expected one: the largest difference, and the largest finite value."""

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
    """The differences of all outputs, for every element; raises if the check could not fail."""
    if kind not in OUTPUT_KINDS:
        raise unknown("kind", kind, OUTPUT_KINDS)
    _check_that_turning_changes(inputs, group, input_kind)
    output, differences = _compared(model, group, inputs, kind, input_kind)
    _check_that_outputs_tell(output, differences)
    return differences


def error_of_answers(
    model: Callable[..., Any], group: Group, inputs: tuple[Tensor, ...], stacked: Collection[str] = ()
) -> float:
    """The largest error, relative to how far the answers to the examples of the batch are from each other.

    A network that is almost constant has small errors relative to its output, whatever it does. An output that is
    constant, or has no axis of examples, is measured by its largest value. `stacked` names the outputs whose
    orientations must be permuted too.
    """
    _check_that_turning_changes(inputs, group, "scalar")
    output, differences = _compared(model, group, inputs, "scalar", "scalar", stacked)
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
    model: Callable[..., Any],
    group: Group,
    inputs: tuple[Tensor, ...],
    kind: OutputKind,
    input_kind: ops.Kind,
    stacked: Collection[str] = (),
) -> tuple[list[tuple[str, Any]], list[list[_Difference]]]:
    """The outputs for the inputs, and for each turned copy of the inputs the differences from the expected outputs."""
    differences = []
    with in_eval_mode(model), torch.no_grad():
        output = _outputs(_run(model, inputs))
        for g in range(group.order):
            expected = [(path, _expected(value, group, g, kind)) for path, value in output]
            turned = _outputs(_run(model, _turned(inputs, group, g, input_kind)))
            found = _differences(expected, turned)
            if stacked:
                after = dict(turned)
                permuted = {path: _permuted(path, a, after[path], group, g) for path, a in output if path in stacked}
                found = [permuted.get(difference.path, difference) for difference in found]
            differences.append(found)
    return output, differences


def _permuted(path: str, a: Tensor, b: Tensor, group: Group, h: int) -> _Difference:
    """How far b is from a, turned and with its orientations permuted."""
    laws = dict(reversed(list(_laws(a, group, h, a.shape, ("scalar",)))))  # of two, that of features first
    expected = laws.get("orientations permuted")
    return _Difference(path, math.inf, 1.0) if expected is None else _difference(path, expected, b)


def _run(model: Callable[..., Any], inputs: Iterable[Tensor]) -> Any:
    return model(*(t.clone() for t in inputs))  # copies: the model may change them in place


def _outputs(result: Any) -> list[tuple[str, Any]]:
    """All outputs by path: tensors (numbers become tensors), text and None; anything else raises."""
    found = []
    for path, value in trees.leaves(result):
        if isinstance(value, COMPARED):
            value = _as_tensor(value)
        elif value is not None and not isinstance(value, str):
            raise QuarterturnError(
                f"the output {path or 'of the model'} is a {type(value).__name__}, which cannot be compared: "
                "return tensors, numbers, or tuples, lists, dicts, dataclasses or namespaces of them"
            )
        found.append((path, value))
    if not any(isinstance(value, Tensor) for _, value in found):
        raise QuarterturnError(
            f"the model returned a {type(result).__name__} without a tensor or a number in it, so there is nothing to "
            "compare: return the tensors to check"
        )
    return found


def _as_tensor(value: Tensor | complex) -> Tensor:
    """A copy, because the model may later change its tensor in place; numbers become tensors without axes."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)


def _expected(out: Any, group: Group, g: int, kind: OutputKind) -> Any:
    turns = isinstance(out, Tensor) and out.dim() > 1 and kind != "invariant"
    return ops.act(out, group, g, kind) if turns else out  # type: ignore[arg-type]


def _turned(inputs: Iterable[Tensor], group: Group, g: int, kind: ops.Kind) -> tuple[Tensor, ...]:
    """Turn maps and leave other tensors as they are. Turned maps are contiguous, like a user's turned image."""
    return tuple(ops.act(t, group, g, kind).contiguous() if t.dim() == 2 + group.dim else t for t in inputs)


def _as_tuple(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def _check_that_turning_changes(inputs: tuple[Tensor, ...], group: Group, kind: ops.Kind) -> None:
    for g in range(1, group.order):
        if all(map(_same, inputs, _turned(inputs, group, g, kind))):
            example = ", ".join(["16"] * group.dim)
            raise ShapeError(
                f"the input looks the same when turned by {group.elements[g]}, so the check could not fail: use "
                f"maps with {2 + group.dim} axes and without that symmetry, such as torch.randn(2, 3, {example})"
                + (f"; {groups_for(axes)}" if (axes := inputs[0].dim() - 2) not in (0, group.dim) else "")
            )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _check_that_outputs_tell(output: list[tuple[str, Any]], differences: list[list[_Difference]]) -> None:
    """Raise if an output is constant for all turns: it would be equivariant even if the layers before it were not.

    Next to other outputs, a constant is allowed if it holds integers or has no axes, such as an unused loss.
    """
    differs = {found.path for turn in differences for found in turn if found.gap != 0}
    tensors = [(path, value) for path, value in output if isinstance(value, Tensor)]
    constant = [(path, value) for path, value in tensors if path not in differs and _is_constant(value)]
    refused = [path for path, t in constant if t.dim() and (t.is_floating_point() or t.is_complex())]
    if refused or len(constant) == len(tensors):
        names = " and ".join(f"the output {path!r}" if path else "the output" for path in refused or dict(constant))
        raise QuarterturnError(
            f"{names} is constant (empty, zero, or one value everywhere), so the check could not fail: use weights "
            "and an input of two or more examples for which it varies, or do not return it"
        )


def _is_constant(t: Tensor) -> bool:
    """Whether all values are zero, or equal floats. A single nonzero number and equal nonzero integers do not count."""
    if not t.any():
        return True
    return t.numel() > 1 and (t.is_floating_point() or t.is_complex()) and bool((t == t.flatten()[0]).all())


def _differences(expected: Sequence[tuple[str, Any]], got: Sequence[tuple[str, Any]]) -> list[_Difference]:
    """The difference of each output, on its own scale; infinite if the outputs or their shapes do not match."""
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
    """Compare two models' outputs (tensors or containers): the difference and largest value of the worst one."""
    tensors = ([("", value) for _, value in trees.leaves(tree, Tensor)] for tree in (expected, got))
    worst = _worst(_differences(*tensors))
    return worst.gap, worst.size


def _worst(differences: Iterable[_Difference]) -> _Difference:
    return max(differences, key=lambda found: _rank(found.relative), default=_Difference("", 0.0, 0.0))


def _errors(group: Group, differences: list[list[_Difference]]) -> EquivarianceErrors:
    absolute = tuple(max((found.gap for found in turn), key=_rank) for turn in differences)
    return EquivarianceErrors(group, absolute, tuple(_worst(turn).relative for turn in differences))


def _rank(error: float) -> tuple[bool, float]:
    """Sort key of errors: NaN is the worst."""
    return math.isnan(error), error


@contextmanager
def in_eval_mode(model: Callable[..., Any]) -> Iterator[None]:
    """Put a model into eval mode, and restore the mode of each module afterwards."""
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
    """One call of a submodule: its inputs and outputs, and whether it called submodules of its own."""

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
    """The first call to finish whose inputs obey a law, whose outputs obey none, and whose outputs matter."""
    if not isinstance(model, nn.Module):
        return "it is not an nn.Module, so its layers cannot be checked"
    if any(t.isnan().any() for t in inputs):
        return "the input has values that are not numbers (NaN), which nothing can be compared with: replace them first"
    kinds: tuple[ops.Kind, ...] = ("scalar", "vector") if "vector" in (kind, input_kind) else ("scalar",)
    shape = next(t.shape for t in inputs if t.dim() == 2 + group.dim)
    turned_inputs = _turned(inputs, group, h, input_kind)
    with in_eval_mode(model), torch.no_grad():
        calls = _record(model, inputs)
        calls_turned = _record(model, turned_inputs)
    if [call.path for call in calls] != [call.path for call in calls_turned]:
        return "it calls different layers for the input and for the turned input"

    def laws(before: list[Tensor], after: list[Tensor]) -> list[str | None]:
        if len(before) != len(after):
            return [None]
        return [_law(a, b, group, h, shape, kinds, tolerance) for a, b in zip(before, after, strict=True)]

    def lawful(before: list[Tensor], after: list[Tensor]) -> list[Tensor]:
        """The outputs for the turned input, with each one that obeys no law replaced by the nearest that does."""
        if len(before) != len(after):
            return [torch.zeros_like(b) for b in after]
        return [
            b if law else _nearest(a, b, group, h, shape, kinds)
            for a, b, law in zip(before, after, laws(before, after), strict=True)
        ]

    def matters(number: int) -> bool:
        """Whether the model's output changes if this call returns lawful tensors; if not, its output is unused."""
        instead = lawful(calls[number].outputs, calls_turned[number].outputs)
        try:
            with in_eval_mode(model), torch.no_grad():
                answer = _record(model, turned_inputs, (number, instead))[-1].outputs
        except Exception:  # the model fails on the replaced output, so it uses it
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
            return f"it breaks inside the forward of {name}: the layers called there are fine"
        return f"the first layer that breaks it is {name}"
    found = laws(calls[-1].outputs, calls_turned[-1].outputs)
    return f"no layer breaks it, but the output is {' and '.join(sorted({LAWS[law] for law in found if law}))}"


def _describe(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return f"{module.original_name}, compiled by torch.jit"
    return type(module).__name__ if len(list(module.children())) else repr(module)


def _law(
    a: Tensor, b: Tensor, group: Group, h: int, shape: Sequence[int], kinds: tuple[ops.Kind, ...], tolerance: float
) -> str | None:
    """The first law by which b, the tensor for the turned input, follows from a; None if there is none."""
    for name, expected in _laws(a, group, h, shape, kinds):
        if _difference("", expected, b).relative <= tolerance:
            return name
    return None


def _nearest(a: Tensor, b: Tensor, group: Group, h: int, shape: Sequence[int], kinds: tuple[ops.Kind, ...]) -> Tensor:
    """The tensor nearest to b that follows from a by a law; zeros if none has the shape of b."""
    allowed = [t for _, t in _laws(a, group, h, shape, kinds) if t.shape == b.shape]
    return min(allowed, key=lambda t: _rank(_difference("", t, b).gap), default=torch.zeros_like(b))


def _laws(
    a: Tensor, group: Group, h: int, shape: Sequence[int], kinds: tuple[ops.Kind, ...]
) -> Iterator[tuple[str, Tensor]]:
    """The allowed changes of a: unchanged; turned; pathways permuted, x_g -> x_gh; turned and orientations permuted.

    `shape` is that of the input, which tells the examples, and the grids that tokens may be.
    """
    sliced = a.dim() > 0 and len(a) % (group.order * shape[0]) == 0
    permutation = [group.table[g][h] for g in range(group.order)]
    yield "unchanged", a
    if sliced:
        pathways = a.unflatten(0, (group.order, len(a) // group.order))
        yield "pathways permuted", pathways[permutation].flatten(0, 1)
    for features in (1, -1):  # the axis of the features: some layers, such as LayerNorm, need it last
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
    if a.dim() == 3 and group.dim != 1 and not sliced:
        yield from _laws_of_tokens(a, group, h, shape[2:], permutation)


def _laws_of_tokens(
    a: Tensor, group: Group, h: int, sides: Sequence[int], permutation: list[int]
) -> Iterator[tuple[str, Tensor]]:
    """Tokens (N, T, C) turn as the grid of patches that they are; those without a position come first and stay."""
    patches = range(1, max(sides) + 1)
    grids = {tuple(max(1, n // p) for n in sides) for p in patches} | {
        tuple(-(-n // p) for n in sides) for p in patches
    }
    for grid in sorted(grids):
        extra = a.shape[1] - math.prod(grid)
        if not 0 <= extra <= MOST_EXTRA:
            continue
        maps = a[:, extra:].transpose(1, 2).unflatten(2, grid)
        turned = torch.cat([a[:, :extra], ops.act(maps, group, h).flatten(2).transpose(1, 2)], dim=1)
        yield "turned", turned
        if a.shape[2] % group.order == 0:
            yield "orientations permuted", turned.unflatten(2, (-1, group.order))[..., permutation].flatten(2)


def _record(
    model: nn.Module, inputs: tuple[Tensor, ...], instead: tuple[int, list[Tensor]] | None = None
) -> list[_Call]:
    """Run the model and list the calls of all its modules, inner ones before outer ones.

    `instead` is the number of a call and the tensors to return in place of its own. A ScriptModule counts as one
    layer, because the calls inside it are not visible.
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
        for path, module in model.named_modules():  # nn.Module's own methods, because ScriptModule hides them
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
    """The same containers with their tensors and numbers replaced by these."""
    values = iter(tensors)

    def filled(_: str, old: Any) -> Any:
        new = next(values)
        return new.clone() if isinstance(old, Tensor) else type(old)(new.item())

    return trees.mapped(tree, COMPARED, filled)
