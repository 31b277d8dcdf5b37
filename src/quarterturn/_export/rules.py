"""What becomes of each layer in a plain network: one rule for each type, from a layer and a value to a value."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from quarterturn._export.convolutions import linear, our_convolution, roll_linear, torchs_convolution, transposed
from quarterturn._export.norms import batch_norm, group_norm, instance_norm, layer_norm
from quarterturn._export.spatial import in_own_frames, our_adaptive_pool, spatial_pool, symmetric, upsample
from quarterturn._export.values import Refusal, Value, Writer, kept, left_as, oriented, stacked, unflattened
from quarterturn.graph import pointwise
from quarterturn.layers.convolution import DepthwiseConv, PathConv, RollConv, SliceConv
from quarterturn.layers.each_orientation import EachOrientation
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from quarterturn.layers.operations import Pool, Roll, Slice, Stack, Unstack
from quarterturn.layers.pooling import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool
from quarterturn.layers.transposed import RollConvTranspose
from quarterturn.layers.upsample import Upsample

Rule = Callable[[Writer, str, Any, Value], Value]
SYMMETRIC = (
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip


def rule_for(module: nn.Module) -> Rule:
    """The rule of the layer's type; torch's own layers on ordinary tensors stay as they are."""
    for types, rule in RULES:
        if isinstance(module, types):
            return rule
    return _unknown


def has_rule(module: nn.Module) -> bool:
    return rule_for(module) is not _unknown


def _unknown(w: Writer, path: str, module: nn.Module, value: Value) -> Value:
    if value.group is None and type(module).__module__.startswith("torch.nn."):
        return kept(w, path, module, value)
    raise Refusal("this layer is not known on pathways" if value.group else "this layer is not known")


# --- the four operations ----------------------------------------------------------------------------------------------


def _slice(w: Writer, path: str, module: Slice, value: Value) -> Value:
    if value.group is not None or module.kind != "scalar":
        raise Refusal("only ordinary tensors of scalars can be sliced here")
    if module.rotate == "filters":
        return replace(stacked(w, replace(value, group=module.group, pending="slice")), group=None)
    return replace(value, group=module.group, pending="slice")


def _roll(w: Writer, path: str, module: Roll, value: Value) -> Value:
    if value.group != module.group:
        raise Refusal("it needs pathways of its own group")
    return replace(stacked(w, unflattened(value) if value.flat else value), pending="roll")


def _stack(w: Writer, path: str, module: Stack, value: Value) -> Value:
    if value.group != module.group:
        raise Refusal("it needs pathways of its own group")
    return replace(stacked(w, unflattened(value)), group=None)


def _unstack(w: Writer, path: str, module: Unstack, value: Value) -> Value:
    if value.group is not None:
        raise Refusal("it needs a stacked tensor")
    return replace(unflattened(value), group=module.group)


def _pool(w: Writer, path: str, module: Pool, value: Value) -> Value:
    if module.kind != "scalar" or not isinstance(module.fn, str):
        raise Refusal("only the mean, max and rms of scalars are known")
    value = stacked(w, unflattened(oriented(module, value)))
    orientations = value.proxy.unflatten(1, (-1, module.group.order))
    if module.fn == "mean":
        pooled = orientations.mean(2)
    elif module.fn == "max":
        pooled = orientations.amax(2)
    else:
        pooled = orientations.square().mean(2).clamp_min(1e-24).sqrt()
    return Value(pooled, sizes=value.sizes)


# --- other layers -----------------------------------------------------------------------------------------------------


def _each_orientation(w: Writer, path: str, module: EachOrientation, value: Value) -> Value:
    value = oriented(module, value)
    if has_rule(module.layer):
        return left_as(module, rule_for(module.layer)(w, f"{path}.layer", module.layer, value))
    return left_as(module, in_own_frames(w, f"{path}.layer", module.layer, value))


def _prelu(w: Writer, path: str, module: nn.PReLU, value: Value) -> Value:
    if value.group is None or module.num_parameters == 1:
        return kept(w, path, module, value)
    value = stacked(w, value)
    assert value.group is not None
    prelu = nn.PReLU(module.num_parameters * value.group.order)
    prelu.weight = nn.Parameter(module.weight.detach().repeat_interleave(value.group.order))
    return replace(value, proxy=w.call(path, prelu, value.proxy))


def _flatten(w: Writer, path: str, module: nn.Flatten, value: Value) -> Value:
    if module.start_dim != 1 or module.end_dim != -1:
        return _unknown(w, path, module, value)
    return replace(value, flat=True)


def _pointwise(w: Writer, path: str, module: nn.Module, value: Value) -> Value:
    twin: Any = copy.deepcopy(module)
    if hasattr(twin, "inplace"):
        twin.inplace = False  # see pointwise.NOT_IN_PLACE
    return replace(value, proxy=w.call(path, twin, value.proxy))


RULES: list[tuple[Any, Rule]] = [
    (Slice, _slice),
    (Roll, _roll),
    (Stack, _stack),
    (Unstack, _unstack),
    (Pool, _pool),
    ((SliceConv, RollConv, PathConv, DepthwiseConv), our_convolution),
    ((RollConvTranspose, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), transposed),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), torchs_convolution),
    (RollLinear, roll_linear),
    (nn.Linear, linear),
    ((BatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), batch_norm),
    ((InstanceNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), instance_norm),
    ((GroupNorm, nn.GroupNorm), group_norm),
    (LayerNorm, layer_norm),
    (
        (MaxPool, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, AvgPool, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        spatial_pool,
    ),
    ((AdaptiveAvgPool, AdaptiveMaxPool), our_adaptive_pool),
    (SYMMETRIC, symmetric),
    ((Upsample, nn.Upsample), upsample),
    (EachOrientation, _each_orientation),
    (nn.PReLU, _prelu),
    (nn.Flatten, _flatten),
    (pointwise.LAYERS, _pointwise),
]
