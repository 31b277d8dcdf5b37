"""What becomes of norms."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from quarterturn._convert.axes import Blocks, HeadFeatures, Orientations, Strips
from quarterturn._convert.equivariant_writer import EquivariantWriter, pointwise_layer
from quarterturn._convert.initial_weights import per_feature
from quarterturn._convert.tracked_value import TrackedValue, result
from quarterturn._convert.widths import Features, make_equal
from quarterturn.graph.refusal import Refusal
from quarterturn.layers.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm


def _filled(w: EquivariantWriter, layer: Any, module: Any, features: Features, inner: bool = True) -> nn.Module:
    """The new norm with the parameters of the old one.

    `inner`: the old norm has the orientations as the fastest index; else as the slowest, or not at all.
    """
    count = w.widths.of(features)
    if module.weight is not None and module.bias is None:
        layer.bias = None
    for name, rest in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
        mine, old = getattr(layer, name, None), getattr(module, name, None)
        if mine is None or old is None or (name.startswith("running") and w.init == "scratch"):
            continue
        with torch.no_grad():
            if inner:
                mine.copy_(per_feature(old.detach(), w.widths.sources(features), w.group.order, w.init, rest))
            else:
                mine.copy_(old.detach().reshape(-1, count).mean(0))
    return layer


def _placed(module: Any, name: str = "weight") -> dict[str, Any]:
    tensor = getattr(module, name, None)
    tensor = tensor if tensor is not None else getattr(module, "running_mean", None)
    return {} if tensor is None else {"device": tensor.device, "dtype": tensor.dtype}


def _share(w: EquivariantWriter, path: str, features: Features) -> None:
    """A norm that is called again gets as many features as before."""
    make_equal(w.known.setdefault(w.tied(path), (features,))[0], features)


def batch_norm(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    """Batch norm, with the activation and dropout that some libraries put into it."""
    strips = isinstance(value.strips, Strips)  # of a single one, what it is not is there too, and must not count
    value = value if strips else w.in_network_layout(value, path)
    features = value.features
    if value.axes[1:2] != ((features,),):  # all else may be in any order
        raise Refusal("it needs tensors with features first")
    _share(w, path, features)

    def make() -> nn.Module:
        options = {"affine": module.weight is not None, "track_running_stats": module.track_running_stats}
        layer = BatchNorm(
            w.group, w.widths.of(features), module.eps, module.momentum, **options, rotate=w.rotate, **_placed(module)
        )
        return _filled(w, layer, module, features)

    value = result(value, w.layer(path, make, value.node), example)
    for name in ("drop", "act"):
        inner = getattr(module, name, None)
        if isinstance(inner, nn.Module) and not isinstance(inner, nn.Identity):
            value = pointwise_layer(w, f"{path}.{name}", inner, value, example)
    return value


def layer_norm(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    """Layer norm over features, wherever the old network has them; over all of a map, group norm with one group."""
    value = w.with_orientations(value, path)
    count = len(module.normalized_shape)
    held = [c for axis in value.axes[len(value.axes) - count :] for c in axis]
    if len(held) == 1 and isinstance(held[0], HeadFeatures):
        return of_heads(w, path, module, value, example, nn.LayerNorm)
    features = value.features
    whole = len(held) == 1 + w.group.dim and features in held
    blocks = len(held) == 1 and isinstance(held[0], Blocks)  # the orientations were split off: it is one of ours
    if held != [features] and not whole and not blocks:
        raise Refusal("it normalises over other axes than the features")
    if blocks:
        features.fixed(features.channels // w.group.order)
    if whole and module.weight is not None:
        raise Refusal("it has a parameter for each position")
    _share(w, path, features)
    value = w.layout_or_strips(value, path)

    def make() -> nn.Module:
        affine = module.weight is not None
        if whole:
            return GroupNorm(w.group, 1, w.widths.of(features), module.eps, False, w.rotate)
        layer = LayerNorm(w.group, w.widths.of(features), module.eps, affine, w.rotate, **_placed(module))
        return _filled(w, layer, module, features, inner=not blocks)

    return result(value, w.layer(path, make, value.node), example)


def of_heads(
    w: EquivariantWriter,
    path: str,
    module: Any,
    value: TrackedValue,
    example: Tensor,
    kind: type[nn.LayerNorm] | type[nn.RMSNorm],
) -> TrackedValue:
    """A layer norm or rms norm over the features of each head, in each orientation by itself."""
    value = w.orientations_in_batch(value, path)
    held = value.axes[-1][0]
    assert isinstance(held, HeadFeatures)

    def make() -> nn.Module:
        size = w.head_size(held).number()
        layer: Any = kind(size, module.eps, elementwise_affine=module.weight is not None, **_placed(module))
        for name in ("weight", "bias"):
            old = getattr(module, name, None)
            if getattr(layer, name, None) is None:
                continue
            if old is None:
                layer.bias = None
                continue
            with torch.no_grad():
                getattr(layer, name).copy_(old[[place * len(old) // size for place in range(size)]])
        return layer

    return result(value, w.layer(path, make, value.node), example)


def group_norm(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    value = w.in_network_layout(value, path)
    features = value.features
    held = value.axes[1] if len(value.axes) > 1 else ()
    # the orientations are the slow index, and no group mixes them: it is one of ours
    turned = len(held) == 2 and isinstance(held[0], Orientations) and module.num_groups % w.group.order == 0
    if turned:
        features.fixed(features.channels // w.group.order)
    elif [len(axis) for axis in value.axes[:2]] != [1, 1] or held != (features,):  # positions may be in any order
        raise Refusal("it needs tensors with features first")
    _share(w, path, features)

    def make() -> nn.Module:
        count = w.widths.of(features)
        wanted = module.num_groups // w.group.order if turned else module.num_groups
        groups = math.gcd(wanted, count)
        if groups != wanted:
            w.notes.append(f"{path}: num_groups={wanted} becomes {groups}")
        affine = module.weight is not None
        layer = GroupNorm(w.group, groups, count, module.eps, affine, w.rotate, **_placed(module))
        return _filled(w, layer, module, features, inner=not turned)

    return result(value, w.layer(path, make, value.node), example)


def instance_norm(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    if getattr(module, "track_running_stats", False):
        raise Refusal("instance norm with running statistics is not known")
    value = w.maps_with_features_first(value, path)
    features = value.features
    _share(w, path, features)

    def make() -> nn.Module:
        affine = module.weight is not None
        layer = InstanceNorm(w.group, w.widths.of(features), module.eps, affine, w.rotate, **_placed(module))
        return _filled(w, layer, module, features)

    return result(value, w.layer(path, make, value.node), example)
