"""What becomes of each layer: one rule for each type, from a layer and a value to a value."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from quarterturn import pointwise
from quarterturn.conv import DepthwiseConv, RollConv, SliceConv
from quarterturn.convert.layers import Pad, Resize
from quarterturn.convert.shapes import glu, reshape
from quarterturn.convert.values import Batch, Extra, Position, Value, like, maps_of, plain
from quarterturn.convert.weights import drawn, per_feature, projected, rearranged
from quarterturn.convert.widths import Features, Refusal, channels, make_equal, repeated
from quarterturn.convert.writer import Writer, result
from quarterturn.dense import RollLinear
from quarterturn.filters import roll_filters, slice_filters
from quarterturn.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from quarterturn.spatial import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, EachOrientation, MaxPool, Upsample
from quarterturn.transposed import RollConvTranspose

Rule = Callable[[Writer, str, Any, Value, Any], Value]
CONV_DIMS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
TRANSPOSED_DIMS = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of the layer's type, if there is one."""
    return next((rule for types, rule in RULES if isinstance(module, types)), None)


def is_features_first(value: Value) -> bool:
    """Whether the old tensor has its axes as torch's layers expect them."""
    wanted = [Batch, Features] + [Position] * (len(value.axes) - 2)
    return len(value.axes) > 1 and all(
        (not axis and kind is Position) or (len(axis) == 1 and isinstance(axis[0], kind))
        for axis, kind in zip(value.axes, wanted, strict=True)
    )


def _maps(w: Writer, path: str, value: Value) -> Value:
    value = w.oriented(value, path)
    if len(value.axes) != 2 + w.group.dim or not is_features_first(value):
        raise Refusal(f"it needs maps with features first and {w.group.dim} axes of positions")
    return w.maps(value, path)


def _after(value: Value, node: Any, example: Tensor, features: Features) -> Value:
    """The maps that a layer leaves; axes of one position that came from a mean over all stay so."""
    axes = list(maps_of(example, features))
    for i, axis in enumerate(value.axes[2:], start=2):
        if not axis and example.shape[i] == 1:
            axes[i] = ()
    return result(value, node, example, axes=tuple(axes), form="maps")


# --- convolutions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution:
    """A convolution of the old network, as a layer or as a function."""

    dim: int
    weight: Tensor
    bias: Tensor | None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    padding_mode: str = "zeros"
    output_padding: Any = 0
    trained: bool = True

    @classmethod
    def of(cls, module: Any, dim: int) -> "Convolution":
        names = ("stride", "padding", "dilation", "groups", "padding_mode", "output_padding")
        return cls(dim, module.weight, module.bias, **{name: getattr(module, name) for name in names})


def convolution(w: Writer, path: str, old: Convolution, value: Value, example: Tensor) -> Value:
    """A SliceConv on ordinary maps, else a RollConv; a filter for each feature stays one."""
    if old.dim != w.group.dim:
        raise Refusal(f"a convolution over {old.dim} axes does not go with {w.group.name}, which turns {w.group.dim}")
    outs, ins = old.weight.shape[0], old.weight.shape[1] * old.groups
    is_plain = value.kind == "plain"
    if not is_plain:
        value = _maps(w, path, value)
    features = None if is_plain else value.features
    depthwise = features is not None and old.groups == ins == outs and ins > 1
    features, out = w.known.setdefault(path, (features, features if depthwise else channels(outs)))
    if not is_plain and features is not value.features:
        make_equal(features, value.features)
    kernel = tuple(old.weight.shape[2:])
    window = {"stride": old.stride, "padding": old.padding, "dilation": old.dilation}

    def make() -> nn.Module:
        options: dict[str, Any] = {
            **{name: _numbers(value) for name, value in window.items()},
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
            layer, groups = DepthwiseConv(w.group, count, kernel, **options), w.group.order * count
        else:
            seen = ins if is_plain else w.widths.of(features)
            groups = math.gcd(old.groups, seen, count)
            if groups != old.groups:
                w.notes.append(f"{path}: groups={old.groups} becomes {groups}")
            kind = SliceConv if is_plain else RollConv
            layer = kind(w.group, seen, count, kernel, groups=groups, **options)
        in_sources: Sequence[int | None] = range(ins) if is_plain else w.widths.sources(features)
        expand = roll_filters if isinstance(layer, RollConv) else slice_filters
        _fill(w, layer, old, w.widths.sources(out), in_sources, groups, lambda t: expand(t, w.group, _all(w)))
        layer.weight.requires_grad_(old.trained)
        return layer

    node = w.layer(path, make, value.node)
    if is_plain:
        return Value("oriented", node, example, maps_of(example, out))
    return _after(value, node, example, out)


def transposed(w: Writer, path: str, old: Convolution, value: Value, example: Tensor) -> Value:
    if old.dim != w.group.dim:
        raise Refusal(f"a convolution over {old.dim} axes does not go with {w.group.name}, which turns {w.group.dim}")
    if old.padding_mode != "zeros":
        raise Refusal("a transposed convolution pads with zeros only")
    value = _maps(w, path, value)
    outs = old.weight.shape[1] * old.groups
    features, out = w.known.setdefault(path, (value.features, channels(outs)))
    make_equal(features, value.features)

    def make() -> nn.Module:
        seen, count = w.widths.of(features), w.widths.of(out)
        _note_width(w, path, outs, out)
        groups = math.gcd(old.groups, seen, count)
        if groups != old.groups:
            w.notes.append(f"{path}: groups={old.groups} becomes {groups}")
        layer = RollConvTranspose(
            w.group,
            seen,
            count,
            tuple(old.weight.shape[2:]),
            _numbers(old.stride),
            _numbers(old.padding),
            _numbers(old.output_padding),
            groups,
            old.bias is not None,
            _numbers(old.dilation),
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

    return _after(value, w.layer(path, make, value.node), example, out)


def _fill(
    w: Writer,
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
            layer.weight.copy_(drawn(layer.weight, old.weight, mine * positions, inputs * positions))
        if old.bias is not None:
            layer.bias.copy_(per_feature(old.bias.detach(), out_sources, w.group.order, w.init, rest=0.0))


def _numbers(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _all(w: Writer) -> range:
    return range(w.group.order)


def _note_width(w: Writer, path: str, old: int, features: Features) -> None:
    if not w.widths.is_exact(features):
        count, order = w.widths.of(features), w.group.order
        w.notes.append(f"{path}: {old} channels become {count} features x {order} orientations = {count * order}")


def _convolution_layer(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    _check_parametrized(module)
    dim = next(dim for kind, dim in CONV_DIMS.items() if isinstance(module, kind))
    return convolution(w, path, Convolution.of(module, dim), value, example)


def _transposed_layer(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    _check_parametrized(module)
    dim = next(dim for kind, dim in TRANSPOSED_DIMS.items() if isinstance(module, kind))
    return transposed(w, path, Convolution.of(module, dim), value, example)


def _check_parametrized(module: nn.Module) -> None:
    if parametrize.is_parametrized(module):
        raise Refusal("its weight is computed by a parametrization: remove it first (remove_parametrizations)")


# --- dense layers -----------------------------------------------------------------------------------------------------


def linear(w: Writer, path: str, weight: Tensor, bias: Tensor | None, value: Value, example: Tensor) -> Value:
    """On the features of maps a 1x1 convolution, on flattened maps one of their size, else a RollLinear."""
    value = w.oriented(value, path)
    last = value.axes[-1]
    if not any(isinstance(c, Features) for c in last):
        raise Refusal("it mixes positions, or other axes than features")
    positions = sorted((c for c in last if isinstance(c, Position)), key=lambda p: p.axis)
    if list(last) != [value.features, *positions]:
        raise Refusal("it mixes features and positions in an order that is not known")
    sizes = [p.size for p in positions]
    if positions and len(positions) != w.group.dim:
        raise Refusal("it mixes some axes of positions only")
    if not value.positions:  # no positions at all
        return _dense(w, path, weight, bias, w.dense(value, path), example)
    kernel = sizes if positions else [1] * w.group.dim
    filters = weight.unflatten(1, (-1, *kernel)) if positions else weight.reshape(*weight.shape, *kernel)
    held = w.maps(value, path)
    first = like(held, axes=((Batch(1),), (held.features,), *((p,) for p in _sorted(held.positions))))
    out = convolution(w, path, Convolution(w.group.dim, filters, bias), first, _some_maps(example, w.group.dim))
    if positions:  # one position is left
        return result(out, out.node, example, axes=(*value.axes[:-1], (out.features,)), form="maps")
    return result(out, out.node, example, axes=(*value.axes[:-1], (out.features,)))


def _sorted(positions: Sequence[Position]) -> list[Position]:
    return sorted(positions, key=lambda p: p.axis)


def _some_maps(example: Tensor, dim: int) -> Tensor:
    return example.new_empty((1, 1, *[2] * dim))


def _dense(w: Writer, path: str, weight: Tensor, bias: Tensor | None, value: Value, example: Tensor) -> Value:
    features, out = w.known.setdefault(path, (value.features, channels(weight.shape[0])))
    make_equal(features, value.features)

    def make() -> nn.Module:
        seen, count = w.widths.of(features), w.widths.of(out)
        _note_width(w, path, weight.shape[0], out)
        if out.segments[0].piece.shared:
            w.notes.append(f"{path}: {count} outputs from {seen} features x {w.group.order} orientations, then pooled")
        layer = RollLinear(w.group, seen, count, bias is not None, w.rotate, weight.device, weight.dtype)
        old = Convolution(0, weight, bias)
        ins, outs = w.widths.sources(features), w.widths.sources(out)
        _fill(w, layer, old, outs, ins, 1, lambda t: roll_filters(t, w.group, _all(w)))
        return layer

    node = w.layer(path, make, value.node)
    return result(value, node, example, axes=(*value.axes[:-1], (out,)), form="dense")


def _linear_layer(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    _check_parametrized(module)
    return linear(w, path, module.weight, module.bias, value, example)


# --- norms ------------------------------------------------------------------------------------------------------------


def _fill_norm(w: Writer, layer: Any, module: Any, features: Features) -> None:
    sources = w.widths.sources(features)
    for name, rest in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
        mine, old = getattr(layer, name, None), getattr(module, name, None)
        if mine is None:
            continue
        if old is None or (name.startswith("running") and w.init == "scratch"):
            continue
        with torch.no_grad():
            mine.copy_(per_feature(old.detach(), sources, w.group.order, w.init, rest))


def _placed(module: Any, name: str = "weight") -> dict[str, Any]:
    tensor = getattr(module, name, None)
    tensor = tensor if tensor is not None else getattr(module, "running_mean", None)
    return {} if tensor is None else {"device": tensor.device, "dtype": tensor.dtype}


def batch_norm(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    """Batch norm, with the activation and dropout that some libraries put into it."""
    value = w.usual(value, path)
    if not is_features_first(value):
        raise Refusal("it needs tensors with features first")
    features = value.features
    make_equal(w.known.setdefault(path, (features,))[0], features)

    def make() -> nn.Module:
        options = {"affine": module.weight is not None, "track_running_stats": module.track_running_stats}
        layer = BatchNorm(
            w.group, w.widths.of(features), module.eps, module.momentum, **options, rotate=w.rotate, **_placed(module)
        )
        _fill_norm(w, layer, module, features)
        return layer

    value = result(value, w.layer(path, make, value.node), example)
    for name in ("drop", "act"):
        inner = getattr(module, name, None)
        if isinstance(inner, nn.Module) and not isinstance(inner, nn.Identity):
            value = _kept(w, f"{path}.{name}", inner, value, example)
    return value


def layer_norm(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    """Layer norm over features, wherever the old network has them; over all of a map, group norm with one group."""
    value = w.oriented(value, path)
    count = len(module.normalized_shape)
    held = [c for axis in value.axes[len(value.axes) - count :] for c in axis]
    features = value.features
    whole = len(held) == 1 + w.group.dim and features in held
    if held != [features] and not whole:
        raise Refusal("it normalises over other axes than the features")
    if whole and module.weight is not None:
        raise Refusal("it has a parameter for each position")
    value = w.usual(value, path)

    def make() -> nn.Module:
        affine = module.weight is not None
        if whole:
            return GroupNorm(w.group, 1, w.widths.of(features), module.eps, False, w.rotate)
        layer = LayerNorm(w.group, w.widths.of(features), module.eps, affine, w.rotate, **_placed(module))
        if affine and module.bias is None:
            layer.bias = None
        _fill_norm(w, layer, module, features)
        return layer

    return result(value, w.layer(path, make, value.node), example)


def group_norm(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    value = w.usual(value, path)
    if not is_features_first(value):
        raise Refusal("it needs tensors with features first")
    features = value.features

    def make() -> nn.Module:
        count = w.widths.of(features)
        groups = math.gcd(module.num_groups, count)
        if groups != module.num_groups:
            w.notes.append(f"{path}: num_groups={module.num_groups} becomes {groups}")
        affine = module.weight is not None
        layer = GroupNorm(w.group, groups, count, module.eps, affine, w.rotate, **_placed(module))
        if affine and module.bias is None:
            layer.bias = None
        _fill_norm(w, layer, module, features)
        return layer

    return result(value, w.layer(path, make, value.node), example)


def instance_norm(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    if getattr(module, "track_running_stats", False):
        raise Refusal("instance norm with running statistics is not known")
    value = _maps(w, path, value)
    features = value.features

    def make() -> nn.Module:
        affine = module.weight is not None
        layer = InstanceNorm(w.group, w.widths.of(features), module.eps, affine, w.rotate, **_placed(module))
        _fill_norm(w, layer, module, features)
        return layer

    return result(value, w.layer(path, make, value.node), example)


# --- positions --------------------------------------------------------------------------------------------------------


def _spatial_pool(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    if getattr(module, "return_indices", False) or getattr(module, "divisor_override", None):
        raise Refusal("return_indices and divisor_override are not known")
    value = _maps(w, path, value)
    is_max = isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d)
    options = {name: _numbers(getattr(module, name)) for name in ("kernel_size", "stride", "padding")}
    if w.group.dim == 1:
        options = {name: v[0] if isinstance(v, tuple) else v for name, v in options.items()}

    def make() -> nn.Module:
        if is_max:
            return MaxPool(
                w.group, **options, dilation=_numbers(module.dilation), ceil_mode=module.ceil_mode, rotate=w.rotate
            )
        counted = module.count_include_pad
        return AvgPool(w.group, **options, ceil_mode=module.ceil_mode, count_include_pad=counted, rotate=w.rotate)

    return _after(value, w.layer(path, make, value.node), example, value.features)


def _adaptive_pool(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    if getattr(module, "return_indices", False):
        raise Refusal("return_indices is not known")
    value = _maps(w, path, value)
    kind = AdaptiveAvgPool if "Avg" in type(module).__name__ else AdaptiveMaxPool
    size = module.output_size
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,) * w.group.dim
    node = w.layer(path, lambda: kind(w.group, sizes, w.rotate), value.node)
    out = _after(value, node, example, value.features)
    if all(n == 1 for n in sizes):  # no position is left
        out = like(out, axes=(*out.axes[:2], *[()] * w.group.dim))
    return out


def _upsample(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    value = _maps(w, path, value)
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(module.mode, module.mode)
    size, factor = _numbers(module.size), _numbers(module.scale_factor)

    def make() -> nn.Module:
        if mode in ("nearest", "linear") and not getattr(module, "antialias", False):
            return Upsample(w.group, size, factor, mode, module.align_corners, rotate=w.rotate)
        return EachOrientation(w.group, nn.Upsample(size, factor, module.mode, module.align_corners), w.rotate)

    out = _after(value, w.layer(path, make, value.node), example, value.features)
    return like(out, axes=maps_of(example, value.features))


def resize(
    w: Writer, path: str, mode: str, align_corners: bool | None, value: Value, size: Any, example: Tensor
) -> Value:
    """Up-sampling to a size that the network computes."""
    if mode not in ("nearest", "linear", "bilinear", "trilinear"):
        raise Refusal(f"up-sampling by mode {mode!r} to a size that is computed is not known")
    value = _maps(w, path, value)
    node = w.helper(path, lambda: Resize(w.group, mode, align_corners, w.rotate), value.node, size)
    return result(value, node, example, axes=maps_of(example, value.features))


def each_orientation(w: Writer, path: str, module: nn.Module, value: Value, example: Tensor) -> Value:
    """A layer that looks at each map alone, in each orientation's own frame: always exact, at the price of copies."""
    value = _maps(w, path, value)
    node = w.layer(path, lambda: EachOrientation(w.group, copy.deepcopy(module), w.rotate), value.node)
    return _after(value, node, example, value.features)


def pad(w: Writer, path: str, amounts: Sequence[int], mode: str, fill: Any, value: Value, example: Tensor) -> Value:
    """Padding; the same on all sides needs no turning."""
    value = _maps(w, path, value)
    if not all(isinstance(a, int) for a in amounts) or len(amounts) > 2 * w.group.dim:
        raise Refusal("it pads by amounts that are computed, or other axes than positions")
    if not any(amounts):
        return result(value, value.node, example)
    layer = Pad(amounts, mode, fill)
    same = len(set(amounts)) == 1 and len(amounts) == 2 * w.group.dim
    if not same:
        return each_orientation(w, path, layer, value, example)
    return _after(value, w.layer(path, lambda: layer, value.node), example, value.features)


def _pad_layer(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    mode = next((mode for name, mode in modes.items() if name in type(module).__name__), "constant")
    amounts = [module.padding] * (2 * w.group.dim) if isinstance(module.padding, int) else list(module.padding)
    return pad(w, path, amounts, mode, getattr(module, "value", None), value, example)


def _pixel_shuffle(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    """From features to positions, or back: in each orientation's own frame."""
    value = _maps(w, path, value)
    up = isinstance(module, nn.PixelShuffle)
    factor = (module.upscale_factor if up else module.downscale_factor) ** 2
    if up:
        out = channels(value.features.channels // factor)
        make_equal(value.features, repeated(out, factor))
    else:
        out = repeated(value.features, factor)
    node = w.layer(path, lambda: EachOrientation(w.group, copy.deepcopy(module), w.rotate), value.node)
    return result(value, node, example, axes=maps_of(example, out))


# --- everything else --------------------------------------------------------------------------------------------------


def _kept(w: Writer, path: str, module: nn.Module, value: Value, example: Any) -> Value:
    """A layer that treats every number alike, as it is; never in place, because a tensor may have several names."""

    def make() -> nn.Module:
        twin: Any = copy.deepcopy(module)
        if hasattr(twin, "inplace"):
            twin.inplace = False
        return twin

    if isinstance(module, nn.Identity):
        return value
    return result(value, w.layer(path, make, value.node), example)


def _prelu(w: Writer, path: str, module: nn.PReLU, value: Value, example: Tensor) -> Value:
    if module.num_parameters == 1:
        return _kept(w, path, module, value, example)
    value = w.beside(value, path)
    features = value.features

    def make() -> nn.Module:
        twin = nn.PReLU(w.widths.of(features), device=module.weight.device, dtype=module.weight.dtype)
        old, sources = module.weight.detach(), w.widths.sources(features)
        twin.weight = nn.Parameter(per_feature(old, sources, w.group.order, w.init))
        return twin

    return result(value, w.layer(path, make, value.node), example)


def _flatten(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    return reshape(w, path, value, example)


def _glu(w: Writer, path: str, module: nn.GLU, value: Value, example: Tensor) -> Value:
    return glu(w, path, value, module.dim, example)


def _softmax(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    dim = 1 if isinstance(module, nn.Softmax2d) else module.dim
    if value.axes[dim] and all(isinstance(c, Features | Extra) for c in value.axes[dim]):
        value = w.beside(value, path)
        return result(value, w.layer(path, lambda: copy.deepcopy(module), value.node), example)
    raise Refusal("it normalises over other axes than features")


def ordinary(w: Writer, path: str, module: nn.Module, value: Value, example: Any) -> Value:
    """A layer on an ordinary tensor, as it is."""
    return plain(example, w.layer(path, lambda: copy.deepcopy(module), value.node))


RULES: list[tuple[Any, Rule]] = [
    (tuple(TRANSPOSED_DIMS), _transposed_layer),
    (tuple(CONV_DIMS), _convolution_layer),
    (nn.Linear, _linear_layer),
    (nn.modules.batchnorm._BatchNorm, batch_norm),
    (nn.LayerNorm, layer_norm),
    (nn.GroupNorm, group_norm),
    (nn.modules.instancenorm._InstanceNorm, instance_norm),
    (nn.modules.pooling._MaxPoolNd, _spatial_pool),
    (nn.modules.pooling._AvgPoolNd, _spatial_pool),
    ((nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd), _adaptive_pool),
    ((nn.modules.pooling._LPPoolNd, nn.LocalResponseNorm), each_orientation),
    (nn.Upsample, _upsample),
    ((nn.PixelShuffle, nn.PixelUnshuffle), _pixel_shuffle),
    (
        tuple(getattr(nn.modules.padding, f"_{kind}PadNd") for kind in ("Constant", "Reflection", "Replication"))
        + (nn.modules.padding._CircularPadNd,),
        _pad_layer,
    ),
    ((nn.Flatten, nn.Unflatten), _flatten),
    (nn.GLU, _glu),
    ((nn.Softmax, nn.LogSoftmax, nn.Softmax2d), _softmax),
    (nn.PReLU, _prelu),
    (pointwise.LAYERS, _kept),
]
