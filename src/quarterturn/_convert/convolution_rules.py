"""What becomes of convolutions and dense layers."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from quarterturn._convert.axes import Axis, Batch, Cut, Extra, HeadIndex, Position, Spread, maps_of
from quarterturn._convert.axis_rules import permute
from quarterturn._convert.computed_filters import Computed
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.head_rules import mixed_heads
from quarterturn._convert.initial_weights import drawn, is_torchs_default, per_feature, projected, rearranged
from quarterturn._convert.patch_rules import as_filters, before_patches, of_patches
from quarterturn._convert.token_mixing_rules import mix_tokens, mixes_tokens
from quarterturn._convert.tracked_value import (
    TrackedValue,
    free_tokens,
    is_features_first,
    maps_after,
    result,
    with_features,
)
from quarterturn._convert.widths import Features, channels, make_equal
from quarterturn._convert.window_layers import ExamplesAsWindows, WindowsAsExamples
from quarterturn.filters import roll_filters, slice_filters
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import as_tuple
from quarterturn.groups import groups_for
from quarterturn.layers.computed import ComputedDepthwiseConv, ComputedRollConv, ComputedSliceConv
from quarterturn.layers.convolution import DepthwiseConv, RollConv, SliceConv, he_spread
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.tokens import TokenConv
from quarterturn.layers.transposed import RollConvTranspose
from quarterturn.windows import windows_for

# --- convolutions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution:
    """A convolution of the old network, as a layer or as a function."""

    weight: Tensor
    bias: Tensor | None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    padding_mode: str = "zeros"
    output_padding: Any = 0
    trained: bool = True  # filters that are not are kept, whatever the others begin with
    computed: Computed | None = None  # how the filters are computed from `weight`, if they are

    @classmethod
    def of(cls, module: Any) -> "Convolution":
        check_parametrized(module)
        names = ("stride", "padding", "dilation", "groups", "padding_mode", "output_padding")
        options = {name: getattr(module, name) for name in names}
        return cls(module.weight, module.bias, **options, trained=module.weight.requires_grad)

    @property
    def dim(self) -> int:
        return self.weight.dim() - 2


def convolution(
    w: EquivariantWriter, path: str, old: Convolution, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """A SliceConv on ordinary maps, else a RollConv; a filter for each feature stays one."""
    if value.kind == "oriented" and _is_over_tokens(w, old, value):
        turned = replace(value, axes=(value.axes[0], value.axes[2], value.axes[1]), example=value.example.mT)
        turned = turned if value.form != "in_batch" else replace(turned, node=w.method("transpose", value.node, 1, 2))
        out = mix_tokens(w, path, old.weight.squeeze(-1), old.bias, turned, example.mT)
        axes = (out.axes[0], out.axes[2], out.axes[1])
        return result(out, w.method("transpose", out.node, 1, 2), example, axes=axes)
    if value.kind == "oriented" and old.dim == 1 and len(value.axes) == 3 and value.axes[2] == (value.features,):
        return _across_features(w, path, old, value, example)
    if value.kind == "oriented" and value.strips and _is_pointwise(old, value, example):
        return _on_strips(w, path, old, value, example)
    if value.kind == "oriented" and _is_linear(w, old, value, example):
        return _as_linear(w, path, old, value, example)
    if value.kind == "oriented" and value.has_windows:
        return _in_windows(w, path, old, value, example)
    _check_dim(w, old)
    outs, ins = old.weight.shape[0], old.weight.shape[1] * old.groups
    is_ordinary = value.kind == "ordinary"
    if not is_ordinary:
        value = w.maps_with_features_first(value, path)
    features = None if is_ordinary else value.features
    depthwise = features is not None and old.groups == ins == outs and ins > 1
    features, out = w.known.setdefault(w.tied(path), (features, features if depthwise else channels(outs)))
    if not is_ordinary:
        features = features or value.features  # a layer on ordinary maps has none
        make_equal(features, value.features)
    _check_same_use(w, path, old)
    kernel = tuple(old.weight.shape[2:])
    windows_for(w.group, kernel, as_tuple(old.stride), as_tuple(old.padding), as_tuple(old.dilation))  # may refuse
    window = {"stride": old.stride, "padding": old.padding, "dilation": old.dilation}

    def make() -> nn.Module:
        options: dict[str, Any] = {
            **{name: as_tuple(value) for name, value in window.items()},
            "bias": old.bias is not None,
            "rotate": w.rotate,
            "padding_mode": old.padding_mode,
            "device": old.weight.device,
            "dtype": old.weight.dtype,
        }
        count = w.widths.of(out)
        _note_width(w, path, outs, out)
        layer: Any
        if depthwise:
            kind = ComputedDepthwiseConv if old.computed else DepthwiseConv
            layer, groups = kind(w.group, count, kernel, **options), w.group.order * count
        else:
            seen = ins if is_ordinary else w.widths.of(features)
            groups = _groups(w, path, old, seen, count)
            kinds = (ComputedSliceConv, ComputedRollConv) if old.computed else (SliceConv, RollConv)
            layer = kinds[not is_ordinary](w.group, seen, count, kernel, groups=groups, **options)
        in_sources: Sequence[int | None] = range(ins) if is_ordinary else w.widths.sources(features)
        expand = roll_filters if isinstance(layer, RollConv) else slice_filters
        _fill(w, layer, old, w.widths.sources(out), in_sources, groups, lambda t: expand(t, w.group, _all(w)))
        layer.weight.requires_grad_(old.trained)
        if old.computed is not None:
            _compute(w, layer, old.computed, w.widths.sources(out))
        return layer

    node = w.layer(path, make, value.node)
    if is_ordinary:
        return TrackedValue("oriented", node, example, maps_of(example, out))
    return maps_after(value, node, example, out)


def _is_over_tokens(w: EquivariantWriter, old: Convolution, value: TrackedValue) -> bool:
    """Whether tokens are its channels, and it looks at each feature by itself."""
    plain = old.dim == 1 and old.weight.shape[2] == 1 and old.groups == 1 and as_tuple(old.stride) in (1, (1,))
    return plain and len(value.axes) == 3 and mixes_tokens(w, value.axes[1]) and old.computed is None


def _across_features(
    w: EquivariantWriter, path: str, old: Convolution, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """A convolution along the axis of features, as in channel attention: along the features of each orientation."""
    if old.computed is not None or example.shape[2] != value.shape[2]:
        raise Refusal("a convolution along features must leave as many, with filters that are no computed ones")
    if any(not isinstance(c, Extra) for c in value.axes[1]):
        raise Refusal("a convolution along features needs them in the last axis, alone")
    value = w.orientations_in_batch(value, path)
    outs, ins, size = old.weight.shape

    def make() -> nn.Module:
        options = {name: as_tuple(getattr(old, name)) for name in ("stride", "padding", "dilation")}
        options |= {"groups": old.groups, "bias": old.bias is not None, "padding_mode": old.padding_mode}
        layer = nn.Conv1d(ins * old.groups, outs, size, **options).to(old.weight)
        keep = w.init == "pretrained" or not old.trained
        weight = old.weight.detach().clone() if keep else drawn(old.weight, old.weight, 1, 1)
        layer.weight = nn.Parameter(weight, old.trained)
        if old.bias is not None:
            layer.bias = nn.Parameter(old.bias.detach().clone())
        return layer

    axes = (value.axes[0], () if outs == 1 else (Extra(outs),), value.axes[2])
    return result(value, w.layer(path, make, value.node), example, axes=axes)


def _is_pointwise(old: Convolution, value: TrackedValue, example: Tensor) -> bool:
    """Whether it looks at each position by itself, with all features."""
    same = example.shape[2:] == value.shape[2:] and old.groups == 1 and old.computed is None
    return same and old.weight[0, 0].numel() == 1 and is_features_first(value)


def _is_linear(w: EquivariantWriter, old: Convolution, value: TrackedValue, example: Tensor) -> bool:
    """Whether a 1x1 convolution sees something else than maps in its axes of positions: windows, tokens or heads."""
    if old.groups != 1 or old.computed is not None or old.weight[0, 0].numel() != 1:
        return False
    same = example.shape[2:] == value.shape[2:] and as_tuple(old.padding) in (0, (0,) * old.dim, "same", "valid")
    return same and (old.dim != w.group.dim or not is_features_first(with_features(value)))


def _as_linear(w: EquivariantWriter, path: str, old: Convolution, value: TrackedValue, example: Tensor) -> TrackedValue:
    """A linear layer along the second axis."""
    rank = len(value.axes)
    last = permute(w, path, value, [0, *range(2, rank), 1], value.example.movedim(1, -1))
    out = linear(w, path, old.weight.flatten(1), old.bias, last, example.movedim(1, -1))
    return permute(w, path, out, [0, rank - 1, *range(1, rank - 1)], example)


def _in_windows(
    w: EquivariantWriter, path: str, old: Convolution, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """A convolution of windows that are beside the examples: each of them is a map by itself, with its own border."""
    value = w.moved_on(w.maps(value, path), path)
    cuts = [[c.size for c in cut] for cut in value.cuts]
    inside, blocks = [cut[-1] for cut in value.cuts], [cut[0] for cut in value.cuts]
    batch = next(c for c in value.components if isinstance(c, Batch))
    axes = ((batch, *blocks), (value.features,), *((c,) for c in inside))
    if any(len(cut) != 2 for cut in cuts) or value.axes != axes:
        raise Refusal("it needs maps with features first, or windows of them")
    node = w.helper(f"{path}.cut", lambda: WindowsAsExamples(w.group, cuts, w.rotate), value.node)
    maps = [(Position(c.axis, c.size),) for c in inside]
    alone: tuple[Axis, ...] = ((Batch(value.shape[0]),), (value.features,), *maps)
    out = convolution(w, path, old, replace(value, node=node, axes=alone), example)
    sizes = [(cut[0], n) for cut, n in zip(cuts, example.shape[2:], strict=True)]
    back = w.helper(f"{path}.whole", lambda: ExamplesAsWindows(w.group, sizes, w.rotate), out.node)
    whole = [Position(c.axis, count * n) for c, (count, n) in zip(inside, sizes, strict=True)]
    first = (batch, *(Cut(p, n, count) for p, (count, n) in zip(whole, sizes, strict=True)))
    last = [(Cut(p, 1, n),) for p, (_, n) in zip(whole, sizes, strict=True)]
    return result(out, back, example, axes=(first, (out.features,), *last))


def _on_strips(w: EquivariantWriter, path: str, old: Convolution, value: TrackedValue, example: Tensor) -> TrackedValue:
    """A 1x1 convolution of strips, whose positions are beside the examples: a dense layer."""
    _check_same_use(w, path, old, on_strips=True)
    return _dense(w, path, old.weight.flatten(1), old.bias, value, example, old.trained)


def _check_same_use(w: EquivariantWriter, path: str, old: Convolution, on_strips: bool = False) -> None:
    """Refuse filters that the old network's code uses in several ways: they become one layer."""
    names = ("stride", "padding", "dilation", "groups", "padding_mode", "output_padding")
    options = [as_tuple(getattr(old, name)) for name in names]
    bias = None if old.bias is None else old.bias.data_ptr()
    w.check_same_use(path, (*options, bias, old.computed.code if old.computed else None, on_strips))
    for other in old.computed.others if old.computed else ():
        if w.known.setdefault(f"{other}, used by", (path,)) != (path,):
            raise Refusal(f"{other!r} is used for several filters: give each of them its own")


def _check_dim(w: EquivariantWriter, old: Convolution) -> None:
    if old.dim != w.group.dim:
        raise Refusal(
            f"a convolution over {old.dim} axes does not go with {w.group.name}, which turns {w.group.dim}; "
            + groups_for(old.dim)
        )


def transposed(w: EquivariantWriter, path: str, old: Convolution, value: TrackedValue, example: Tensor) -> TrackedValue:
    _check_dim(w, old)
    if old.padding_mode != "zeros":
        raise Refusal("a transposed convolution pads with zeros only")
    value = w.maps_with_features_first(value, path)
    outs = old.weight.shape[1] * old.groups
    features, out = w.known.setdefault(w.tied(path), (value.features, channels(outs)))
    make_equal(features, value.features)
    _check_same_use(w, path, old)

    def make() -> nn.Module:
        seen, count = w.widths.of(features), w.widths.of(out)
        _note_width(w, path, outs, out)
        groups = _groups(w, path, old, seen, count)
        layer = RollConvTranspose(
            w.group,
            seen,
            count,
            tuple(old.weight.shape[2:]),
            as_tuple(old.stride),
            as_tuple(old.padding),
            as_tuple(old.output_padding),
            groups,
            old.bias is not None,
            as_tuple(old.dilation),
            w.rotate,
            old.weight.device,
            old.weight.dtype,
        )
        _fill(
            w,
            layer,
            old,
            w.widths.sources(out),
            w.widths.sources(features),
            groups,
            lambda t: roll_filters(t, w.group, _all(w), transposed=True),
            transposed=True,
        )
        return layer

    return maps_after(value, w.layer(path, make, value.node), example, out)


def _fill(
    w: EquivariantWriter,
    layer: Any,
    old: Convolution,
    out_sources: Sequence[int | None],
    in_sources: Sequence[int | None],
    groups: int,
    expand: Callable[[Tensor], Tensor],
    transposed: bool = False,
) -> None:
    with torch.no_grad():
        if w.init == "pretrained" or not old.trained:
            bank = rearranged(old.weight.detach(), out_sources, in_sources, old.groups, groups, transposed)
            layer.weight.copy_(projected(layer.weight.shape, bank, expand))
        else:
            positions = math.prod(old.weight.shape[2:])
            inputs = old.weight.shape[0] // old.groups if transposed else old.weight.shape[1]
            mine = layer.weight.shape[0] // groups if transposed else layer.weight.shape[1]
            makes_outputs = len(set(out_sources[: w.group.order])) == 1  # the same channel in every orientation
            if is_torchs_default(old.weight) and not makes_outputs:
                strides = math.prod(window.stride for window in layer.windows) if transposed else 1
                layer.weight.normal_(std=he_spread(mine * positions / strides))
            else:
                layer.weight.copy_(drawn(layer.weight, old.weight, mine * positions, inputs * positions))
        if old.bias is not None:
            layer.bias.copy_(per_feature(old.bias.detach(), out_sources, w.group.order, w.init, rest=0.0))
    if isinstance(old.bias, nn.Parameter):
        layer.bias.requires_grad_(old.bias.requires_grad)


def _compute(w: EquivariantWriter, layer: Any, computed: Computed, out_sources: Sequence[int | None]) -> None:
    """Let a layer compute its filters from its weight, as the old one did."""
    names = (computed.filters, *computed.others)
    old = {name: operator.attrgetter(name)(w.model) for name in names}
    new = {computed.filters: layer.weight}
    for name in computed.others:
        tensor = old[name]
        values = tensor.detach().clone()
        if tensor.numel() > 1:
            values = per_feature(values.flatten(), out_sources, w.group.order, w.init)
            values = values.reshape([values.numel() if n > 1 else 1 for n in tensor.shape])
        new[name] = nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
    code = computed.written_for(old, new)
    others = {name.rpartition(".")[2]: tensor for name, tensor in new.items() if name != computed.filters}
    layer.compute_from(code, **others)


def _groups(w: EquivariantWriter, path: str, old: Convolution, features_in: int, features_out: int) -> int:
    """As many groups as before, or the most that divide the new features."""
    groups = math.gcd(old.groups, features_in, features_out)
    if groups != old.groups:
        w.notes.append(f"{path}: groups={old.groups} becomes {groups}")
    return groups


def _all(w: EquivariantWriter) -> range:
    return range(w.group.order)


def _note_width(w: EquivariantWriter, path: str, old: int, features: Features) -> None:
    if not w.widths.is_exact(features):
        count, order = w.widths.of(features), w.group.order
        w.notes.append(f"{path}: {old} channels become {count} features x {order} orientations = {count * order}")


def convolution_layer(
    w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor
) -> TrackedValue:
    return convolution(w, path, Convolution.of(module), value, example)


def transposed_layer(
    w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor
) -> TrackedValue:
    return transposed(w, path, Convolution.of(module), value, example)


def check_parametrized(module: nn.Module) -> None:
    if parametrize.is_parametrized(module):
        raise Refusal("its weight is computed by a parametrization: remove it first (remove_parametrizations)")


# --- dense layers -----------------------------------------------------------------------------------------------------


def linear(
    w: EquivariantWriter, path: str, weight: Tensor, bias: Tensor | None, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """On the features of maps a 1x1 convolution, on flattened maps one of their size, else a RollLinear."""
    value = w.without_blocks(w.with_orientations(value, path), path)
    last = value.axes[-1]
    if len(last) == 1 and isinstance(last[0], HeadIndex):
        return mixed_heads(w, path, weight, bias, value, example)
    if any(isinstance(c, Cut) for c in last) and any(isinstance(c, Features) for c in last):
        return _on_patches(w, path, weight, bias, value, example)
    if mixes_tokens(w, last):
        return mix_tokens(w, path, weight, bias, value, example)
    if not any(isinstance(c, Features) for c in last):
        raise Refusal("it mixes positions, or other axes than features")
    positions = sorted((c for c in last if isinstance(c, Position)), key=lambda p: p.axis)
    if list(last) != [value.features, *positions]:
        raise Refusal("it mixes features and positions in an order that is not known")
    sizes = [p.size for p in positions]
    if positions and len(positions) != w.group.dim:
        raise Refusal("it mixes some axes of positions only")
    if value.form == "in_batch":
        value = w.in_network_layout(value, path)
    if value.form == "tokens" and not positions:
        return _of_tokens(w, path, weight, bias, value, example)
    if not value.positions:  # no positions at all
        held = value if value.strips else w.dense(value, path)
        return _dense(w, path, weight, bias, held, example, weight.requires_grad)
    kernel = sizes if positions else [1] * w.group.dim
    filters = weight.unflatten(1, (-1, *kernel)) if positions else weight.reshape(*weight.shape, *kernel)
    held = w.maps(value, path)
    held = w.whole_maps(held, path) if positions else held  # else where a position is does not matter
    there: list[Position | Spread] = [Position(p.axis, p.size) for p in held.positions]
    there += [c for c in held.components if isinstance(c, Spread)]
    spots = sorted(there, key=lambda c: c.axis)
    first = replace(held, axes=((Batch(1),), (held.features,), *((c,) for c in spots)))
    out = convolution(
        w, path, Convolution(filters, bias, trained=weight.requires_grad), first, _some_maps(example, w.group.dim)
    )
    if positions:  # one position is left
        return result(out, out.node, example, axes=(*value.axes[:-1], (out.features,)), form="maps")
    return result(out, out.node, example, axes=(*value.axes[:-1], (out.features,)))


def _on_patches(
    w: EquivariantWriter, path: str, weight: Tensor, bias: Tensor | None, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """On patches that tile the maps: a convolution whose stride is its window."""
    filters = as_filters(w, value, weight)
    before = before_patches(w, path, value)
    kernel = tuple(filters.shape[2:])
    sizes = [p.size // n for p, n in zip(value.positions_in_order, kernel, strict=True)]
    some = example.new_empty((value.shape[0], len(weight), *sizes))
    old = Convolution(filters, bias, kernel, trained=weight.requires_grad)
    out = convolution(w, path, old, before, some)
    return result(out, out.node, example, axes=of_patches(value.axes, out.features))


def _of_tokens(
    w: EquivariantWriter, path: str, weight: Tensor, bias: Tensor | None, value: TrackedValue, example: Tensor
) -> TrackedValue:
    """A rolled layer on every token."""
    features, out = w.known.setdefault(w.tied(path), (value.features, channels(weight.shape[0])))
    make_equal(features, value.features)
    free, grid = free_tokens(value), [p.size for p in value.positions_in_order] or None
    _check_same_use(w, path, Convolution(weight, bias))

    def make() -> nn.Module:
        seen, count = w.widths.of(features), w.widths.of(out)
        _note_width(w, path, weight.shape[0], out)
        options: Any = {"rotate": w.rotate, "device": weight.device, "dtype": weight.dtype}
        layer = TokenConv(w.group, seen, count, bias is not None, extra=free, grid=grid, **options)
        old = Convolution(weight.reshape(*weight.shape, *[1] * w.group.dim), bias, trained=weight.requires_grad)
        ins, outs = w.widths.sources(features), w.widths.sources(out)
        _fill(w, layer, old, outs, ins, 1, lambda t: roll_filters(t, w.group, _all(w)))
        layer.weight.requires_grad_(old.trained)
        return layer

    return result(value, w.layer(path, make, value.node), example, axes=(*value.axes[:-1], (out,)))


def _some_maps(example: Tensor, dim: int) -> Tensor:
    return example.new_empty((1, 1, *[2] * dim))


def _dense(
    w: EquivariantWriter,
    path: str,
    weight: Tensor,
    bias: Tensor | None,
    value: TrackedValue,
    example: Tensor,
    trained: bool,
) -> TrackedValue:
    features, out = w.known.setdefault(w.tied(path), (value.features, channels(weight.shape[0])))
    make_equal(features, value.features)

    def make() -> nn.Module:
        seen, count = w.widths.of(features), w.widths.of(out)
        _note_width(w, path, weight.shape[0], out)
        if out.segments[0].piece.shared:
            sees = f"{seen} features x {w.group.order} orientations, where it saw {weight.shape[1]} numbers"
            w.notes.append(f"{path}: the last layer sees {sees}; its outputs are pooled")
        layer = RollLinear(w.group, seen, count, bias is not None, w.rotate, weight.device, weight.dtype)
        old = Convolution(weight, bias, trained=trained)
        ins, outs = w.widths.sources(features), w.widths.sources(out)
        _fill(w, layer, old, outs, ins, 1, lambda t: roll_filters(t, w.group, _all(w)))
        return layer

    node = w.layer(path, make, value.node)
    axes = tuple((out,) if value.features in axis else axis for axis in value.axes)
    return result(value, node, example, axes=axes, form="dense")


def linear_layer(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    check_parametrized(module)
    return linear(w, path, module.weight, module.bias, value, example)
