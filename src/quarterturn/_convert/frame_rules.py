"""What becomes of code whose orientations are in their own frames: any positions may be padded, cut and weighed there.

Only examples, features and heads have to be followed. See `frames`.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from quarterturn import trees
from quarterturn._convert import head_rules
from quarterturn._convert.axes import (
    Axis,
    Batch,
    Cut,
    Extra,
    Free,
    HeadFeatures,
    HeadIndex,
    HeadPart,
    Own,
    Position,
    Tokens,
    are_framed,
    axis_size,
    broadcast,
    make_axes_equal,
    size_of,
)
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.frames import has_places
from quarterturn._convert.function_calls import Call, node_of
from quarterturn._convert.initial_weights import drawn, per_feature
from quarterturn._convert.token_rules import one_after_the_other, parts_of
from quarterturn._convert.tracked_value import TrackedValue, named, result
from quarterturn._convert.widths import Features
from quarterturn.graph import written_out
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import AS_LAYERS, name_of

NEEDS_MAPS = ("linear", "interpolate", "batch_norm", "layer_norm", "rms_norm", "group_norm")
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Rule = Callable[[EquivariantWriter, str, Any, TrackedValue, Tensor], TrackedValue]


def sees_maps(node: fx.Node) -> bool:
    """Whether the node is a layer, or a function that is one: it takes maps in the input's frame, if it can."""
    return node.op == "call_module" or node.target in AS_LAYERS or name_of(node.target) in NEEDS_MAPS


def in_own_frame(w: EquivariantWriter, path: str, value: TrackedValue) -> TrackedValue:
    """A tensor with positions, in each orientation's own frame; all else as it is."""
    return w.in_own_frames(value, path) if value.kind == "oriented" and has_places(value) else value


# --- layers -----------------------------------------------------------------------------------------------------------


def rule_in_frames(module: nn.Module | None, args: Sequence[Any]) -> Rule | None:
    """The rule for a layer on tensors in their own frames, if there is one."""
    value = args[0] if len(args) == 1 else None
    if not isinstance(value, TrackedValue) or not value.is_framed:
        return None
    if isinstance(module, nn.LayerNorm) and are_framed(value.axes[-1:]):
        return _norm_of_places
    return _pool if isinstance(module, POOLS) else _filters_of_heads if isinstance(module, CONVOLUTIONS) else None


def _pool(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    """A pool of maps, or of windows."""
    axes = _sizes_after(value, 2 + w.group.dim, example)
    return result(value, w.layer(path, lambda: copy.deepcopy(module), value.node), example, axes=axes)


def _sizes_after(value: TrackedValue, rank: int, example: Tensor) -> tuple[Axis, ...]:
    """The axes after a layer on maps, or on windows, that is local."""
    are_places = all(len(axis) == 1 and are_framed([axis]) for axis in value.axes[2:])
    if len(value.axes) != rank or are_framed(value.axes[1:2]) or not are_places:
        raise Refusal("it needs maps with features first, or windows of them")
    return (*value.axes[:2], *map(_resized, value.axes[2:], example.shape[2:]))


def _resized(axis: Axis, size: int) -> Axis:
    """An axis of maps, or of windows, that has so many places now."""
    (held,) = axis
    assert isinstance(held, Own)
    if size == held.size:
        return axis
    if isinstance(held.of, Position):
        return (Own(size, Position(held.of.axis, size)),)
    if isinstance(held.of, Cut) and held.size % size == 0:  # some of them have become one
        return (Own(size, Cut(held.of.of, held.of.step * (held.size // size), size)),)
    return (Own(size),)


def _filters_of_heads(w: EquivariantWriter, path: str, old: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    """A convolution with a filter for each feature of a head, the same for all heads: for those that it has now."""
    axes = _sizes_after(value, old.weight.dim(), example)
    held = value.axes[1][0] if len(value.axes[1]) == 1 else None
    depthwise = old.groups == old.in_channels == old.out_channels and old.padding_mode == "zeros"
    if not isinstance(held, HeadFeatures) or not depthwise:
        raise Refusal("a convolution in each orientation's own frame must have a filter for each feature of a head")

    def make() -> nn.Module:
        count = w.head_size(held).number()
        options = (old.kernel_size, old.stride, old.padding, old.dilation)
        layer: Any = type(old)(count, count, *options, groups=count, bias=old.bias is not None).to(old.weight)
        chosen = [place * len(old.weight) // count for place in range(count)]
        with torch.no_grad():
            keep = w.init == "pretrained" or not old.weight.requires_grad
            layer.weight.copy_(old.weight[chosen] if keep else drawn(layer.weight, old.weight, 1, 1))
            if old.bias is not None:
                layer.bias.copy_(old.bias[chosen])
        layer.weight.requires_grad_(old.weight.requires_grad)
        return layer

    return result(value, w.layer(path, make, value.node), example, axes=axes)


def _norm_of_places(
    w: EquivariantWriter, path: str, old: nn.LayerNorm, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """A layer norm over the features and places of a patch, with a parameter for each of them."""
    *places, last = value.axes[-1]
    if len(old.normalized_shape) != 1 or not isinstance(last, Features) or not are_framed([tuple(places)]):
        raise Refusal("it normalises over other axes than the features")
    count = axis_size(tuple(places))

    def make() -> nn.Module:
        layer = nn.LayerNorm(count * w.widths.of(last), old.eps, old.weight is not None, old.bias is not None)
        layer = layer.to(old.weight) if old.weight is not None else layer
        sources = w.widths.sources(last)
        for name, new in layer.named_parameters():
            rows = getattr(old, name).detach().unflatten(0, (count, -1))
            with torch.no_grad():
                new.copy_(torch.cat([per_feature(row, sources, w.group.order, w.init) for row in rows]))
        return layer

    return result(value, w.layer(path, make, value.node), example)


# --- functions --------------------------------------------------------------------------------------------------------


def of_constant(w: EquivariantWriter, path: str, constant: TrackedValue, axes: Sequence[Axis]) -> Any:
    """A constant whose axes hold what these do: nothing is turned, and of heads it has as many as there are."""
    node = node_of(constant)
    for place, (size, axis) in enumerate(zip(constant.shape, axes, strict=True)):
        held = axis[0] if len(axis) == 1 else None
        if size == 1 or all(isinstance(c, Extra) for c in axis):
            continue
        if isinstance(held, HeadIndex):
            node = w.method("narrow", node, place, 0, w.head_size(held))
        elif isinstance(held, HeadFeatures | HeadPart | Features):
            node = head_rules.columns(w, path, constant, place, held, node)
        else:
            raise Refusal(f"{named(constant)} has a number for each part of an axis that is not known here")
    return node


def einsum(call: Call) -> TrackedValue:
    """Sums of products, letter by letter."""
    w, (equation, *rest) = call.w, call.args
    values = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
    given, _, wanted = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if "." in equation or "->" not in equation or not any(v.is_framed for v in values):
        raise Refusal("this function is not known")
    held: dict[str, Axis] = {}
    for term, value in zip(terms, values, strict=True):
        for letter, axis in zip(term, value.axes, strict=False):
            held[letter] = broadcast([[held[letter]], [axis]])[0] if letter in held else axis
    for letter, axis in held.items():
        if letter not in wanted and any(isinstance(c, Batch) for c in axis):
            raise Refusal("it sums products over the examples")
    nodes = []
    for term, value in zip(terms, values, strict=True):
        sizes = value.shape
        axes = [held.setdefault(letter, _of_size(n)) for letter, n in zip(term, sizes, strict=True)]
        nodes.append(of_constant(w, call.path, value, axes) if value.kind == "constant" else value.node)
    first = next(v for v in values if v.kind == "oriented")
    node = w.function(torch.einsum, equation, *nodes)
    return result(first, node, call.example, axes=tuple(held[letter] for letter in wanted))


def product(call: Call) -> TrackedValue:
    """A product with a matrix of the network's own, over the features of heads or over positions."""
    one, other = call.args[:2]
    value, matrix = (other, one) if one.kind == "constant" else (one, other)
    if not value.is_framed or matrix.kind != "constant" or len(matrix.shape) != 2:
        raise Refusal("a product with a matrix of the network's own is not known: use a linear layer")
    if value is one:
        axes = (*value.axes[:-1], new := _of_size(matrix.shape[1]))
        nodes = value.node, of_constant(call.w, call.path, matrix, (value.axes[-1], new))
    else:
        axes = (*value.axes[:-2], new := _of_size(matrix.shape[0]), value.axes[-1])
        nodes = of_constant(call.w, call.path, matrix, (new, value.axes[-2])), value.node
    return result(value, call.w.function(torch.matmul, *nodes), call.example, axes=axes)


def _of_size(size: int) -> Axis:
    return (Extra(size),) if size > 1 else ()


def pad(call: Call) -> TrackedValue:
    """Padding of any axes but those of examples and features."""
    value, given = call.value, call.option(1, "pad")
    amounts = [v.example if isinstance(v, TrackedValue) else v for v in given]
    axes = list(value.axes)
    for i in range(len(amounts) // 2):
        place = len(axes) - 1 - i
        if any(amounts[2 * i : 2 * i + 2]):
            if not all(isinstance(c, Extra) for c in axes[place]):
                raise Refusal("it pads features or examples")
            axes[place] = _longer(axes[place], call.example.shape[place])
    mode, fill = call.option(2, "mode", "constant"), call.option(3, "value")
    node = call.w.function(F.pad, value.node, tuple(amounts), mode, fill)
    return result(value, node, call.example, axes=tuple(axes))


def _longer(axis: Axis, size: int) -> Axis:
    whole = axis[0] if len(axis) == 1 else None
    return _resized(axis, size) if isinstance(whole, Own) and isinstance(whole.of, Position) else (Own(size),)


def unfold(call: Call) -> TrackedValue:
    """Windows along one axis, which may overlap; the places in them become a new last axis."""
    if call.node.op != "call_method":
        raise Refusal("its patches overlap, or do not tile the maps")
    axis = call.option(1, "dimension") % len(call.value.axes)
    if not all(isinstance(c, Extra) for c in call.value.axes[axis]):
        raise Refusal("it cuts features or examples into windows")
    *_, last = call.example.shape
    axes = [(Own(call.example.shape[axis]),) if i == axis else a for i, a in enumerate(call.value.axes)]
    options = [v.example if isinstance(v, TrackedValue) else v for v in call.args[1:]]
    node = call.w.method("unfold", call.value.node, *options, **call.kwargs)
    return result(call.value, node, call.example, axes=(*axes, (Own(last),)))


def cat(call: Call) -> TrackedValue:
    """Tensors one after the other along an axis of positions, or of tokens."""
    values = call.option(0, "tensors")
    dim = call.option(1, "dim", call.kwargs.get("axis", 0)) % call.example.dim()
    if not all(v.kind == "oriented" and all(isinstance(c, Extra) for c in v.axes[dim]) for v in values):
        raise Refusal("it joins tensors along another axis than that of the features")
    values = [call.w.in_own_frames(v, call.path) for v in values]
    outer = broadcast([(*v.axes[:dim], (), *v.axes[dim + 1 :]) for v in values])
    axis = _one_after_the_other([v.axes[dim] or (Own(1, Free(1)),) for v in values], call.example.shape[dim])
    node = call.w.function(torch.cat, [v.node for v in values], dim)
    return result(values[0], node, call.example, axes=(*outer[:dim], axis, *outer[dim + 1 :]))


def _one_after_the_other(axes: Sequence[Axis], size: int) -> Axis:
    """Tokens that are joined: what they are is known where all positions are the last of them."""
    parts = [tuple(c.of for c in axis if isinstance(c, Own) and c.of is not None) for axis in axes]
    if any(len(part) != len(axis) for part, axis in zip(parts, axes, strict=True)):
        return (Own(size),)
    (whole,) = one_after_the_other([p for part in parts for p in parts_of(part)])
    return (Own(size, whole),)


def some(axis: Axis, start: int, stop: int) -> Axis:
    """What a part of an axis of positions, or of tokens, holds."""
    held = axis[0].of if len(axis) == 1 and isinstance(axis[0], Own) else None
    place = 0
    for part in parts_of((held,)) if isinstance(held, Tokens) else ():
        if (start, stop) == (place, place + axis_size(part)):
            return tuple(Own(size_of(c), c) for c in part)
        place += axis_size(part)
    return (Own(stop - start),)


def with_part(call: Call) -> TrackedValue:
    """A tensor of which a part has other numbers."""
    value, key, part = call.args
    if part.kind != "oriented" or value.kind != "oriented" or not (value.is_framed and part.is_framed):
        raise Refusal("it writes into a part of a tensor")
    items = trees.mapped(key if isinstance(key, tuple) else (key,), TrackedValue, lambda _, v: v.example)
    picked = value.example[items]
    if picked.dim() != len(value.axes) or part.shape != tuple(picked.shape):
        raise Refusal("it writes into a part of a tensor in a way that is not known")
    for i, axis in enumerate(value.axes):
        if picked.shape[i] == value.shape[i]:
            make_axes_equal(axis, part.axes[i])
        elif not all(isinstance(c, Extra) for c in axis):
            raise Refusal("it writes into a part of features or examples")
    if tuple(picked.shape) == value.shape:
        return result(value, part.node, call.example)
    return result(value, call.w.function(written_out.with_part, value.node, items, part.node), call.example)


FRAME_RULES = {"einsum": einsum, "pad": pad, "unfold": unfold, "cat": cat, "concat": cat, "with_part": with_part}
