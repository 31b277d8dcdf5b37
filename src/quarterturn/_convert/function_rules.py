"""What becomes of each function and method that the network's code calls: one rule for each name."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional as F

from quarterturn import trees
from quarterturn._convert import (
    axis_rules,
    convolution_rules,
    frame_rules,
    indexing_rules,
    layer_rules,
    norm_rules,
    patch_rules,
    reduction_rules,
    spatial_rules,
    token_rules,
)
from quarterturn._convert.attention_heads import makes_heads
from quarterturn._convert.axes import (
    Axis,
    Batch,
    Blocks,
    Cut,
    Extra,
    OfHeads,
    Own,
    Position,
    Spread,
    are_framed,
    axis_size,
    broadcast,
    maps_of,
)
from quarterturn._convert.computed_filters import computed_filters
from quarterturn._convert.equivariant_writer import EquivariantWriter, pointwise_layer
from quarterturn._convert.function_calls import Call, asks_for_sizes, node_of, same_call
from quarterturn._convert.helper_layers import AtLeastFloat, CopiedFeatures
from quarterturn._convert.one_example import depends_on_examples, of_one_example
from quarterturn._convert.position_tables import is_table, position_table
from quarterturn._convert.tracked_value import (
    TrackedValue,
    is_token_axis,
    named,
    number,
    ordinary_tensor,
    result,
    values_in,
    with_smaller_maps,
)
from quarterturn._convert.widths import Features, channels
from quarterturn.graph.pointwise import is_pointwise
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import (
    AS_LAYERS,
    PERMUTATIONS,
    REDUCTIONS,
    RESHAPES,
    name_of,
    option,
    permutation,
)

TRANSPOSED: tuple[Any, ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
CONVOLUTIONS: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d, *TRANSPOSED)
# What they make of a parameter is the same numbers, in another shape perhaps.
VIEWS = {
    *RESHAPES,
    "getitem",
    "unsqueeze",
    "squeeze",
    "permute",
    "transpose",
    "contiguous",
    "clone",
    "detach",
    "to",
    "float",
}
RESAMPLING = ("antialias", "recompute_scale_factor")  # of F.interpolate
# They look at every position by itself, so ordinary maps may go through them before they are sliced.
BY_POSITION = {"cat", "concat", "getitem", "split", "chunk", "softmax", "log_softmax", "narrow", "normalize"}


def value_of_call(
    w: EquivariantWriter, node: fx.Node, path: str, args: Any, kwargs: Any, example: Any, ends: bool
) -> Any:
    """What stands for the result of a call in the new network."""
    values = values_in([args, kwargs])
    if all(v.kind in ("number", "constant") for v in values):
        return _of_numbers(w, node, args, kwargs, values, example)
    tensors = [v for v in values if v.kind != "number"]
    meets_table = _meets_table(w, node, tensors, example)
    if (
        all(v.kind != "oriented" for v in tensors)
        and not meets_table
        and _may_stay_ordinary(node, args, kwargs, tensors, example)
    ):
        return _on_ordinary_tensors(w, node, args, kwargs, example)
    first = next(v for v in tensors if v.kind != "constant")
    call = Call(w, node, path, args, kwargs, first, example, ends)
    if args and isinstance(args[0], TrackedValue) and args[0].kind == "constant" and not is_pointwise(node.target):
        return _of_constant(call, args[0], tensors)
    if asks_for_sizes(node):
        return _sizes(call)
    if call.name == "dropout":
        return _dropout(call)
    if node.target == "contiguous" and first.kind == "oriented" and len(args) == 1 and not kwargs:
        return result(first, first.node, example)  # numbers have an order of their own in memory here
    if call.name in ("to", "type", "float") and len(tensors) == 1 and first.example.dtype == example.dtype:
        return _same_type(call)
    if is_pointwise(node.target) or (call.name in ("max", "min") and len(tensors) > 1):
        return _pointwise(call, tensors)
    if node.target not in (*AS_LAYERS, *CONVOLUTIONS) and name_of(node.target) is None:
        same = [v for v in tensors if v.example is example]
        if same or example is None:  # a function of the network's own that has nothing to do here
            return same[0] if same else None
    if node.target not in CONVOLUTIONS:  # which may be the first of the network
        call = replace(call, value=w.with_orientations(first, path))
    return _rule(call)(call)


def _rule(call: Call) -> Callable[[Call], Any]:
    target, name = call.node.target, call.name
    if target in CONVOLUTIONS:
        return _convolution
    if name == "interpolate" and call.option(1, "size") is not None:
        return _interpolate
    if target in AS_LAYERS:
        return _as_layer
    if name in frame_rules.FRAME_RULES and any(v.is_framed for v in values_in([call.args, call.kwargs])):
        return frame_rules.FRAME_RULES[name]
    if name in ("matmul", "bmm") and any(v.kind == "constant" for v in values_in(call.args)):
        return frame_rules.product
    if name in REDUCTIONS:
        return reduction_rules.reduce
    if name in FUNCTION_RULES:
        return FUNCTION_RULES[name]
    raise Refusal("this function is not known")


# --- numbers, constants and ordinary tensors --------------------------------------------------------------------------


def _of_numbers(
    w: EquivariantWriter, node: fx.Node, args: Any, kwargs: Any, values: list[TrackedValue], example: Any
) -> Any:
    """What is made of sizes and parameters alone."""
    if asks_for_sizes(node):  # of a parameter: where it is used as it is, they are the same
        return number(example, example) if isinstance(example, int) else tuple(number(n, n) for n in example)
    constants = [v for v in values if v.kind == "constant"]
    if depends_on_examples(values) and not any(v.source and _is_parameter(w, v.source) for v in constants):
        return of_one_example(w, node, args, kwargs, values, example)
    if constants and isinstance(example, Tensor | tuple):
        names = tuple(dict.fromkeys(name for v in constants for name in v.names))
        detached = name_of(node.target) == "detach" or all(v.detached for v in constants)
        constant = TrackedValue(
            "constant", lambda: same_call(w, node, args, kwargs), example, names=names, detached=detached
        )
        if len(constants) == 1 and _is_view(w, node, constants[0], example):
            return replace(constant, source=constants[0].source, computed=constants[0].computed)
        if is_pointwise(node.target):
            return replace(constant, computed=lambda find: same_call(w, node, args, kwargs, find))
        if name_of(node.target) == "expand" and _expands_by_itself(node):
            return constants[0]
        if name_of(node.target) in ("expand", "repeat") and _is_one_for_each_example(constants[0], constant):
            return replace(constant, source=constants[0].source, single=constants[0])
        return constant if isinstance(example, Tensor) else _results(w, constant)
    if any(v.kind == "number" and v.node is None for v in values):
        if isinstance(example, Tensor):
            raise Refusal("it makes a tensor from a number of features or examples")
        return number(example)
    new = same_call(w, node, args, kwargs)
    return TrackedValue("constant", new, example) if isinstance(example, Tensor) else number(example, new)


def _is_one_for_each_example(before: TrackedValue, after: TrackedValue) -> bool:
    """Whether a constant has been repeated along its first axis alone."""
    missing = len(after.shape) - len(before.shape)
    return missing >= 0 and (*[1] * missing, *before.shape) == (1, *after.shape[1:])


def _results(w: EquivariantWriter, constant: TrackedValue) -> tuple[TrackedValue, ...]:
    """The tensors of a function of constants that gives several."""

    def one(i: int, item: Any) -> TrackedValue:
        return replace(constant, node=lambda: w.function(operator.getitem, node_of(constant), i), example=item)

    return tuple(one(i, item) for i, item in enumerate(constant.example))


def _is_view(w: EquivariantWriter, node: fx.Node, constant: TrackedValue, after: Any) -> bool:
    """Whether a call gives a constant itself, in a shape with at most one axis that is longer than one.

    A parameter that is detached is not itself: it must not learn from there.
    """
    name, before = name_of(node.target), constant.example
    if name == "detach" and (constant.source is None or _is_parameter(w, constant.source)):
        return False
    same = isinstance(before, Tensor) and isinstance(after, Tensor) and before.numel() == after.numel()
    return name in VIEWS and same and sum(n > 1 for n in after.shape) <= 1


def _is_parameter(w: EquivariantWriter, path: str) -> bool:
    return isinstance(operator.attrgetter(path)(w.model), nn.Parameter)


def _may_stay_ordinary(node: fx.Node, args: Any, kwargs: Any, values: list[TrackedValue], example: Any) -> bool:
    """Whether a function of ordinary tensors looks at each position by itself, or there are none."""
    maps = [v for v in values if v.kind == "ordinary" and len(v.shape) > 2]
    if not maps or asks_for_sizes(node) or is_pointwise(node.target):
        return True
    name, shape = name_of(node.target), maps[0].shape
    if name in ("repeat", "expand", "expand_as"):  # of channels alone, as from grey images to those with colours
        return (*example.shape[:1], shape[1], *example.shape[2:]) == shape
    return name in BY_POSITION and indexing_rules.along_channels(str(name), args, kwargs, len(shape))


def _meets_table(w: EquivariantWriter, node: fx.Node, tensors: list[TrackedValue], example: Any) -> bool:
    """Whether maps meet a parameter or buffer with a number for each position: they must have orientations then."""
    if not (is_pointwise(node.target) or name_of(node.target) in ("cat", "concat")):
        return False
    dim = w.group.dim
    tables = [v for v in tensors if v.kind == "constant" and any(n > 1 for n in v.shape[-dim:])]
    return bool(tables) and isinstance(example, Tensor) and example.dim() == 2 + dim


def _on_ordinary_tensors(w: EquivariantWriter, node: fx.Node, args: Any, kwargs: Any, example: Any) -> Any:
    new = same_call(w, node, args, kwargs)
    if asks_for_sizes(node):
        return _sizes_of_ordinary(w, node, new, example)
    if isinstance(example, tuple | list):
        return tuple(ordinary_tensor(item, w.function(operator.getitem, new, i)) for i, item in enumerate(example))
    if name_of(node.target) in ("repeat", "expand", "expand_as") and example.dim() == 2 + w.group.dim:
        return replace(ordinary_tensor(example, new), copies_of=args[0])
    return ordinary_tensor(example, new)


def _sizes_of_ordinary(w: EquivariantWriter, node: fx.Node, new: fx.Node, example: Any) -> Any:
    """The sizes of an ordinary tensor, of which the first is the number of examples."""
    if isinstance(example, tuple):
        found = [number(n, w.function(operator.getitem, new, i)) for i, n in enumerate(example)]
        return (replace(found[0], for_one=1), *found[1:])
    asked = option(node.args, node.kwargs, 1, "dim")
    return replace(number(example, new), for_one=1 if asked == 0 else None)


# --- tensors with orientations ----------------------------------------------------------------------------------------


def _of_constant(call: Call, constant: TrackedValue, tensors: list[TrackedValue]) -> TrackedValue:
    """A constant that is brought to the shape of another tensor, or meets it."""
    if call.name in ("max", "min"):
        return _pointwise(call, tensors)
    if call.name == "expand_as" and _expands_by_itself(call.node):
        return constant
    raise Refusal(f"it uses {named(constant)} in a way that is not known")


def _sizes(call: Call) -> Any:
    """Sizes of maps can be had in the new network; numbers of examples and features are other ones there."""
    value, asked = call.value, call.args[1] if len(call.args) > 1 and call.args[1] != "shape" else None

    def one(axis: Axis, size: int) -> TrackedValue:
        if len(axis) == 1 and isinstance(axis[0], Position) and value.form != "dense":
            place = 2 + axis[0].axis if value.form == "maps" else value.axes.index(axis)
            place = 2 if value.form == "tokens" else place
            return replace(number(size, call.w.method("size", value.node, place)), axes=(axis,))
        if is_token_axis(call.w.group.dim, axis) and value.form in ("tokens", "in_batch"):
            place = 2 if value.form == "tokens" else value.axes.index(axis)
            return replace(number(size, call.w.method("size", value.node, place)), axes=(axis,))
        if is_token_axis(call.w.group.dim, axis) and value.form == "maps" and value.positions:
            sides = [call.w.method("size", value.node, 2 + i) for i in range(call.w.group.dim)]
            return replace(number(size, call.w.function(math.prod, sides)), axes=(axis,))
        held = [c for c in axis if isinstance(c, Position | Cut)]
        if held and len(held) == len(axis) and value.form == "maps":
            each = [c.size if isinstance(c, Cut) else call.w.method("size", value.node, 2 + c.axis) for c in held]
            return replace(number(size, call.w.function(math.prod, each)), axes=(axis,))
        if axis and isinstance(axis[0], Batch) and all(isinstance(c, Position | Cut | Own) for c in axis[1:]):
            return replace(number(size), axes=(axis,), for_one=axis_size(axis[1:]))
        same = all(isinstance(c, Extra | Spread | Cut) for c in axis)  # numbers of features and examples differ there
        return replace(number(size, size if same else None), axes=(axis,))

    if asked is not None:
        return one(value.axes[asked], call.example)
    return tuple(one(axis, size) for axis, size in zip(value.axes, value.shape, strict=True))


def _same_type(call: Call) -> TrackedValue:
    """Numbers of the type that they have: of any other that the network has later, but half ones become float32."""
    if call.name != "float":
        return replace(call.value, example=call.example)
    value = call.w.with_orientations(call.value, call.path)
    return result(value, call.w.helper(f"{call.path}.wide", AtLeastFloat, value.node), call.example)


def _dropout(call: Call) -> TrackedValue:
    """The function, read in eval mode, becomes a layer, so that it acts in training."""
    return pointwise_layer(
        call.w, call.w.free(call.path), nn.Dropout(call.option(1, "p", 0.5)), call.value, call.example
    )


def _pointwise(call: Call, values: list[TrackedValue]) -> TrackedValue:
    """Tensors are brought to one layout, and parameters for each channel or position to the same."""
    w, path = call.w, call.path
    call, values = _one_of_each(call, values)
    meets = any(v.kind == "oriented" for v in values)
    tensors = {
        id(v): _fewer_copies(w, v, path) if meets and v.copies_of is not None else w.with_orientations(v, path)
        for v in values
        if v.kind != "constant"
    }
    strips = _are_alike_strips(list(tensors.values()))
    if not strips:
        tensors = {key: w.strip_as_maps(v, path) for key, v in tensors.items()}
    if len({(p.axis, p.shift) for v in tensors.values() for p in v.positions if p.size > 1}) > w.group.dim:
        tensors = {key: w.moved_on(v, path) for key, v in tensors.items()}  # some of them are shifted
    if any(with_smaller_maps(v).has_each_axis_once() and not v.has_each_axis_once() for v in tensors.values()):
        tensors = _of_the_same_maps(tensors)
    axes = broadcast([v.axes for v in tensors.values()])
    if tuple(map(axis_size, axes)) != tuple(call.example.shape) and len(tensors) == len(values):
        raise Refusal("it expands tensors that meet none of that size")
    constants = [v for v in values if v.kind == "constant" and v.example.numel() != 1]
    if (
        constants
        and len(tensors) == 1
        and (_has_heads(axes) or _are_pairs(axes) or _is_table_in_frames(constants, axes))
    ):
        return _on_heads(call, next(iter(tensors.values())), constants)
    tables = [v for v in constants if is_table(v, axes)]
    if tables and any(v.is_shifted for v in tensors.values()):
        tensors = {key: w.moved_on(v, path) for key, v in tensors.items()}
        axes = broadcast([v.axes for v in tensors.values()])
    for constant in constants:
        if constant not in tables:
            _check_vector(constant, axes)
    narrow = any(_channels(v.axes) != _channels(axes) for v in tensors.values())
    if narrow and constants:
        raise Refusal(f"{named(constants[0])} meets tensors with different numbers of channels")
    in_batch = narrow or (not constants and not _fit_network_layout(list(tensors.values())))
    if in_batch:
        tensors = {key: w.orientations_in_batch(v, path) for key, v in tensors.items()}
    elif (len(tensors) > 1 or constants) and not strips:
        tensors = {key: w.in_network_layout(v, path) for key, v in tensors.items()}
        forms = {v.form for v in tensors.values()}
        as_form = w.tokens if "tokens" in forms else w.maps if "maps" in forms else w.dense
        tensors = {key: as_form(v, path) for key, v in tensors.items()}
    first = replace(next(iter(tensors.values())), axes=axes)

    def found(value: TrackedValue) -> Any:
        if id(value) in tensors:
            return tensors[id(value)].node
        if value in tables:
            return position_table(w, path, value, first)
        return w.feature_parameter(value, first) if value in constants else node_of(value)

    return result(first, same_call(w, call.node, call.args, call.kwargs, found), call.example)


def _fewer_copies(w: EquivariantWriter, value: TrackedValue, path: str) -> TrackedValue:
    """Channels of the input again and again, beside features: as many of them as there are features, not channels."""
    base, features = value.copies_of, channels(value.shape[1])
    if base is None or w.widths.of(features) < base.shape[1]:  # some would be left out
        return w.with_orientations(value, path)
    options = w.group, base.shape[1]
    node = w.helper(
        f"{path}.copies",
        lambda: CopiedFeatures(*options, w.widths.of(features), w.rotate),
        w.with_orientations(base, path).node,
    )
    return TrackedValue("oriented", node, value.example, maps_of(value.example, features))


def _one_of_each(call: Call, values: list[TrackedValue]) -> tuple[Call, list[TrackedValue]]:
    """The call with one copy of constants that have one for each example; a token that is learnt becomes a tensor."""
    known: dict[int, TrackedValue] = {}

    def one(_: str, value: TrackedValue) -> TrackedValue:
        if value.single is None:
            return value
        if id(value) not in known:
            alone = token_rules.is_learnt_token(call.w, value) and value.shape[1] == 1 == call.example.shape[1]
            known[id(value)] = token_rules.learnt_tokens(call.w, value) if alone else value.single
        return known[id(value)]

    args, kwargs, values = trees.mapped((call.args, call.kwargs, values), TrackedValue, one)
    return replace(call, args=args, kwargs=kwargs), values


def _of_the_same_maps(tensors: dict[int, TrackedValue]) -> dict[int, TrackedValue]:
    """Tensors some of which have reduced blocks of maps: smaller maps, unless they meet what was not reduced."""
    smaller = {key: with_smaller_maps(v) for key, v in tensors.items()}
    sizes = {(p.axis, p.size) for v in smaller.values() for p in v.positions}
    return smaller if len(sizes) == len({axis for axis, _ in sizes}) else tensors


def _are_alike_strips(tensors: list[TrackedValue]) -> bool:
    """Whether all are the same strips of maps: number by number, nothing has to be moved."""
    return tensors[0].strips is not None and len({(v.strips, v.shape) for v in tensors}) == 1


def _are_pairs(axes: Sequence[Axis]) -> bool:
    """Whether they hold pairs of positions, as attention without heads has them."""
    held = [{c.axis for c in axis if isinstance(c, Position | Cut)} for axis in axes[1:]]
    several = any(not one.isdisjoint(other) for i, one in enumerate(held) for other in held[:i])
    return several and not any(isinstance(c, Features | Blocks) for axis in axes for c in axis)


def _has_heads(axes: Sequence[Axis]) -> bool:
    return any(isinstance(c, OfHeads) for axis in axes for c in axis)


def _is_table_in_frames(constants: list[TrackedValue], axes: Sequence[Axis]) -> bool:
    """Whether a constant meets positions that are in their own frames."""

    def meets(constant: TrackedValue) -> bool:
        pairs = zip(reversed(constant.shape), reversed(axes), strict=False)
        return any(n > 1 and any(isinstance(c, Own) for c in axis) for n, axis in pairs)

    return are_framed(axes) and any(map(meets, constants))


def _on_heads(call: Call, value: TrackedValue, constants: list[TrackedValue]) -> TrackedValue:
    """Numbers for each head or for each pair of tokens meet what attention computes."""
    w = call.w
    if tuple(call.example.shape) != value.shape:
        raise Refusal(f"{named(constants[0])} makes a tensor of heads larger")
    value = w.orientations_in_batch(value, call.path)
    node, found, count = token_rules.meets_constants(w, call.path, value, constants)

    def find(other: TrackedValue) -> Any:
        return found.get(id(other)) or (node_of(other) if other.kind in ("constant", "number") else node)

    out = w.method("flatten", same_call(w, call.node, call.args, call.kwargs, find), 0, count - 1)
    return result(value, out, call.example)


def _fit_network_layout(tensors: list[TrackedValue]) -> bool:
    """Whether tensors with orientations in the batch go back, because others are there, or there are none."""
    beside = [v for v in tensors if v.form == "in_batch"]
    plain = all(v.has_each_axis_once() and all(len(axis) <= 1 for axis in v.axes) for v in beside)
    plain = plain and not any(_has_heads(v.axes) for v in beside)
    return not beside or (plain and len(beside) < len(tensors))


def _check_vector(constant: TrackedValue, axes: Sequence[Axis]) -> None:
    """Of a parameter, the one axis that is longer than one must be that of the features."""
    shape = constant.example.shape
    long = [i - len(shape) + len(axes) for i, n in enumerate(shape) if n > 1]
    held = axes[long[0]] if len(long) == 1 else ()
    if len(held) != 1 or not isinstance(held[0], Features):
        raise Refusal(f"{named(constant)} has a number for each part of an axis that is not known here")


def _channels(axes: Sequence[Axis]) -> int:
    """How many channels the old tensor has; one, if it has no axis for them."""
    held = [c for axis in axes for c in axis if isinstance(c, Features | Blocks)]
    found = [c if isinstance(c, Features) else c.features for c in held]
    return found[0].channels if found else 1


# --- functions that are layers ----------------------------------------------------------------------------------------


def _refuse_resampling(call: Call) -> None:
    for name in RESAMPLING:
        if call.kwargs.get(name):
            raise Refusal(f"{name} is not known")


def _as_layer(call: Call) -> TrackedValue:
    _refuse_resampling(call)
    options = {k: v for k, v in call.kwargs.items() if v is not None and k not in RESAMPLING}
    given, options = _known_options(call, (call.args[1:], options))
    layer = AS_LAYERS[call.node.target](*given, **options)  # type: ignore[index]
    if values_in([call.args[1:], call.kwargs]) and _takes_all(call, layer):
        layer = nn.AdaptiveAvgPool2d(1) if "Avg" in type(layer).__name__ else nn.AdaptiveMaxPool2d(1)
    elif values_in([call.args[1:], call.kwargs]):
        call.w.notes.append(f"{call.path}: {layer}, as for the size of the example")
    rule = layer_rules.rule_for(layer)
    assert rule is not None
    return rule(call.w, call.w.free(call.path), layer, call.value, call.example)


def _known_options(call: Call, options: Any) -> Any:
    """Options that are computed from sizes, as they are for the example."""
    if any(v.kind != "number" for v in values_in(options)):
        raise Refusal("its options are computed from tensors")
    return trees.mapped(options, TrackedValue, lambda _, v: v.example)


def _takes_all(call: Call, layer: Any) -> bool:
    """Whether a pool has one window, which is all of the map: it is a global one then, at every size."""
    window = getattr(layer, "kernel_size", None)
    sizes = tuple(window) if isinstance(window, tuple | list) else (window,) * call.w.group.dim
    return sizes == call.value.shape[2:] and call.example.shape[2:].numel() == 1


def _convolution(call: Call) -> TrackedValue:
    transposed = call.node.target in TRANSPOSED
    names: tuple[str, ...] = ("input", "weight", "bias", "stride", "padding")
    names += ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    options = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    value, weight, bias = options.pop("input"), options.pop("weight"), options.pop("bias", None)
    if weight.kind != "constant" or (bias is not None and bias.kind != "constant") or values_in(options):
        raise Refusal("its filters or options are computed from its input")
    if bias is not None and bias.source is None:
        raise Refusal(f"its bias is computed from {named(bias)}, which is not known")
    computed, name = None, weight.source
    if name is None:
        if transposed:
            raise Refusal("its filters are computed by the network, which is not known for transposed convolutions")
        computed = computed_filters(call.w.model, option(call.node.args, call.node.kwargs, 1, "weight"))
        name = computed.filters
    stored = operator.attrgetter(name)(call.w.model)
    trained = isinstance(stored, nn.Parameter) and stored.requires_grad
    filters, bias = weight.example if computed is None else stored, None if bias is None else bias.example
    old = convolution_rules.Convolution(filters, bias, **options, trained=trained, computed=computed)
    rule = convolution_rules.transposed if transposed else convolution_rules.convolution
    return rule(call.w, name.removesuffix(".weight"), old, value, call.example)


def _interpolate(call: Call) -> TrackedValue:
    _refuse_resampling(call)
    size, mode, align = call.option(1, "size"), call.option(3, "mode", "nearest"), call.option(4, "align_corners")
    if isinstance(size, int) or (isinstance(size, TrackedValue) and isinstance(size.example, int)):
        size = [size] * call.w.group.dim
    return spatial_rules.resize(
        call.w,
        call.path,
        mode,
        align,
        call.value,
        trees.mapped(size, TrackedValue, lambda _, v: node_of(v)),
        call.example,
    )


def _linear(call: Call) -> TrackedValue:
    weight, bias = call.option(1, "weight"), call.option(2, "bias")
    if weight.source is None or (bias is not None and bias.kind != "constant"):
        raise Refusal("its weights are computed by the network")
    if bias is not None and bias.source is None:
        call.w.notes.append(f"{call.path}: its bias, made of {' and '.join(bias.names)}, becomes one parameter")
    path, bias = weight.source.removesuffix(".weight"), None if bias is None else bias.example
    return convolution_rules.linear(call.w, path, weight.example, bias, call.value, call.example)


def _norm(rule: Callable[..., TrackedValue], *names: str) -> Callable[[Call], TrackedValue]:
    """The rule of a norm's layer for the function that does the same."""

    def run(call: Call) -> TrackedValue:
        given: dict[str, Any] = {"weight": None, "bias": None, "eps": 1e-5, "momentum": 0.1, "running_mean": None}
        given |= {**dict(zip(("input", *names), call.args, strict=False)), **call.kwargs}
        tensors = {k: v for k, v in given.items() if isinstance(v, TrackedValue) and k != "input"}
        if any(v.source is None for v in tensors.values()):
            raise Refusal("its parameters are computed by the network")
        old = SimpleNamespace(**{k: tensors[k].example if k in tensors else v for k, v in given.items()})
        old.track_running_stats = old.running_mean is not None
        source = next((v.source.rpartition(".")[0] for v in tensors.values() if v.source), "")
        return rule(call.w, source or call.w.free(call.path), old, call.value, call.example)

    return run


def _pad(call: Call) -> TrackedValue:
    given = call.option(1, "pad")
    amounts = [v.example if isinstance(v, TrackedValue) else v for v in given]
    if values_in(given):
        call.w.notes.append(f"{call.path}: pads by {amounts}, as for the size of the example")
    mode, fill, path = call.option(2, "mode", "constant"), call.option(3, "value"), call.w.free(call.path)
    return spatial_rules.pad(call.w, path, amounts, mode, fill, call.value, call.example)


# --- functions of axes ------------------------------------------------------------------------------------------------


def _reshape(call: Call) -> TrackedValue:
    numbers = [v for v in values_in([call.args[1:], call.kwargs]) if v.axes and v.node is not None]
    sizes = {c: v.node for v in numbers for c in v.axes[0] if isinstance(c, Position)}
    split = axis_rules.axes_of_features(call.value, call.example.shape)
    heads = makes_heads(call.w.model, call.node, split, call.example.dim(), call.w.made_heads)
    if heads:
        call.w.made_heads.add(call.node)
    return axis_rules.reshape(call.w, call.path, call.value, call.example, sizes, heads)


def _permute(call: Call) -> TrackedValue:
    order = permutation(str(call.name), len(call.value.axes), call.args[1:], call.kwargs)
    return axis_rules.permute(call.w, call.path, call.value, order, call.example)


def _roll(call: Call) -> TrackedValue:
    counts, dims = call.option(1, "shifts"), call.option(2, "dims")
    counts, dims = ((n,) if isinstance(n, int) else n for n in (counts, dims))
    if dims is None or not all(isinstance(n, int) for n in (*counts, *dims)):
        raise Refusal("it moves numbers on by amounts that are computed, or along no axis")
    shifts = {d % len(call.value.axes): n for d, n in zip(dims, counts, strict=True)}
    return axis_rules.shift(call.w, call.path, call.value, shifts, call.example)


def _unsqueeze(call: Call) -> TrackedValue:
    return axis_rules.insert_axis(call.w, call.path, call.value, call.option(1, "dim"), call.example)


def _squeeze(call: Call) -> TrackedValue:
    dims = call.option(1, "dim")
    if dims is None:
        return _reshape(call)
    which = [i for i in ([dims] if isinstance(dims, int) else dims) if call.value.shape[i] == 1]
    return axis_rules.drop_axes(call.w, call.path, call.value, which, call.example) if which else call.value


def _expand(call: Call) -> TrackedValue:
    """What is multiplied or added next expands by itself."""
    if _expands_by_itself(call.node):
        return call.value
    return axis_rules.expand(call.w, call.path, call.value, _wanted_axes(call), call.example)


def _expands_by_itself(node: fx.Node) -> bool:
    """Whether it goes only to functions that bring it together with other tensors, number by number."""

    def meets_others(user: fx.Node) -> bool:
        return is_pointwise(user.target) or name_of(user.target) in ("max", "min")

    return all(meets_others(user) and len(user.all_input_nodes) > 1 for user in node.users)


def _wanted_axes(call: Call) -> list[tuple[Axis, Any]]:
    """What each axis of an expanded tensor shall hold, with its size in the new network, where these can be told."""
    if call.name == "expand_as":
        like = call.w.orientations_in_batch(call.option(1, "other"), call.path)
        return [(axis, call.w.method("size", like.node, i)) for i, axis in enumerate(like.axes)]
    sizes = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], tuple | list) else call.args[1:]
    return [(v.axes[0], v.node) if isinstance(v, TrackedValue) and v.axes else ((), v) for v in sizes]


def _repeat(call: Call) -> TrackedValue:
    """Repeated features are joined; axes of one expand by themselves."""
    value = call.value
    if len(call.example.shape) != len(value.shape):
        raise Refusal("it repeats a tensor along a new axis")
    changed = [i for i, (n, m) in enumerate(zip(value.shape, call.example.shape, strict=True)) if n != m]
    if not changed:
        return value
    if all(not value.axes[i] for i in changed):
        return _expand(call)
    if len(changed) == 1 and value.axes[changed[0]] == (value.features,):
        times, axis = call.example.shape[changed[0]] // value.shape[changed[0]], changed[0]
        return indexing_rules.cat(replace(call, args=([value] * times, axis), kwargs={}))
    raise Refusal("it repeats positions or examples")


def _repeat_interleave(call: Call) -> TrackedValue:
    """Each example several times, one after the other, as for the windows of its maps."""
    count, dim = call.option(1, "repeats"), call.option(2, "dim")
    value, times = call.value, call.example.shape[0] // call.value.shape[0]
    if dim != 0 or len(value.axes[0]) != 1 or not isinstance(value.axes[0][0], Batch):
        raise Refusal("it repeats other axes than that of examples")
    if times == 1:
        return replace(value, example=call.example)
    if isinstance(count, TrackedValue) and count.node is None and count.for_one != times:
        raise Refusal("it repeats examples by a number of them")
    value = call.w.orientations_in_batch(value, call.path)
    node = call.w.method("repeat_interleave", value.node, times, 0)
    return result(value, node, call.example, axes=((*value.axes[0], Extra(times)), *value.axes[1:]))


def _glu(call: Call) -> TrackedValue:
    return axis_rules.glu(call.w, call.path, call.value, call.option(1, "dim", -1), call.example)


def _unfold(call: Call) -> TrackedValue:
    """The method, along one axis; the function of torch, as a layer."""
    if call.node.op != "call_method":
        names = ("kernel_size", "dilation", "padding", "stride")
        given = {**dict(zip(names, call.args[1:], strict=False)), **call.kwargs}
        given = _known_options(call, {k: v for k, v in given.items() if k != "input"})
        return patch_rules.unfold(call.w, call.path, nn.Unfold(**given), call.value, call.example)
    options = [call.option(i, name) for i, name in enumerate(("dimension", "size", "step"), start=1)]
    axis, size, step = _known_options(call, options)
    return patch_rules.unfold_axis(call.w, call.path, call.value, axis, size, step, call.example)


FUNCTION_RULES: dict[str | None, Callable[[Call], Any]] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(PERMUTATIONS, _permute),
    **dict.fromkeys(("split", "chunk", "tensor_split"), indexing_rules.split),
    **dict.fromkeys(("cat", "concat"), indexing_rules.cat),
    **dict.fromkeys(("softmax", "log_softmax"), reduction_rules.softmax),
    **dict.fromkeys(("expand", "expand_as"), _expand),
    "repeat": _repeat,
    "roll": _roll,
    "repeat_interleave": _repeat_interleave,
    "normalize": reduction_rules.normalize,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "getitem": indexing_rules.getitem,
    "unbind": indexing_rules.unbind,
    "narrow": indexing_rules.narrow,
    "stack": indexing_rules.stack,
    "scaled_dot_product_attention": token_rules.attention,
    "attended": token_rules.dropping_attention,
    "glu": _glu,
    "unfold": _unfold,
    "matmul": reduction_rules.matmul,
    "bmm": reduction_rules.matmul,
    "pad": _pad,
    "linear": _linear,
    "batch_norm": _norm(norm_rules.batch_norm, "running_mean", "running_var", "weight", "bias"),
    "layer_norm": _norm(norm_rules.layer_norm, "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": _norm(layer_rules.rms_norm, "normalized_shape", "weight", "eps"),
    "group_norm": _norm(norm_rules.group_norm, "num_groups", "weight", "bias", "eps"),
}
