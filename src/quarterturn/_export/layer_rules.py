"""The rules of `to_plain`, one for each type of layer: each takes a layer and its input, and returns the output."""

from dataclasses import replace
from typing import Any

from torch import nn

from quarterturn._export.convolution_rules import (
    linear,
    our_convolution,
    pool_convolution,
    roll_linear,
    torchs_convolution,
    transposed,
)
from quarterturn._export.norm_rules import batch_norm, group_norm, instance_norm, layer_norm
from quarterturn._export.plain_tensor import (
    PlainTensor,
    Rule,
    apply_flatten,
    apply_pending,
    copied_layer,
    input_of,
    on_pathways,
)
from quarterturn._export.plain_writer import PlainWriter
from quarterturn._export.spatial_rules import in_own_frames, our_adaptive_pool, spatial_pool, symmetric, upsample
from quarterturn._export.token_rules import attention, class_tokens, patch_embed, position_table
from quarterturn.graph import pointwise
from quarterturn.graph.in_place import copy_not_in_place
from quarterturn.graph.refusal import Refusal
from quarterturn.layers.attention import Attention
from quarterturn.layers.convolution import DepthwiseConv, PathConv, PoolConv, RollConv, SliceConv
from quarterturn.layers.each_orientation import EachOrientation
from quarterturn.layers.invariants import Invariants, invariants, matrices
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from quarterturn.layers.operations import Pool, Roll, Slice, Stack, Unstack
from quarterturn.layers.pooling import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool
from quarterturn.layers.tokens import ClassTokens, PatchEmbed, PositionTable
from quarterturn.layers.transposed import RollConvTranspose
from quarterturn.layers.upsample import Upsample

UNKNOWN_LAYER = "this layer is not supported"
SYMMETRIC = (
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip


def rule_for(module: nn.Module) -> Rule | None:
    """The rule for this type of layer, or None."""
    return next((rule for types, rule in LAYER_RULES if isinstance(module, types)), None)


def without_rule(w: PlainWriter, path: str, module: nn.Module, tensor: PlainTensor) -> PlainTensor:
    """Copy a torch layer that has no rule, if its input is a plain tensor; refuse it otherwise."""
    if tensor.group is None and is_torchs(module):
        return copied_layer(w, path, module, tensor)
    raise Refusal("this layer is not supported on pathways" if tensor.group else UNKNOWN_LAYER)


def is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


# --- the four operations ----------------------------------------------------------------------------------------------


def _slice(w: PlainWriter, path: str, module: Slice, tensor: PlainTensor) -> PlainTensor:
    if tensor.group is not None or module.kind != "scalar":
        raise Refusal("only plain tensors of scalars can be sliced here")
    if module.rotate == "filters":
        return replace(apply_pending(w, replace(tensor, group=module.group, pending="slice")), group=None)
    return replace(tensor, group=module.group, pending="slice")


def _roll(w: PlainWriter, path: str, module: Roll, tensor: PlainTensor) -> PlainTensor:
    if tensor.group != module.group:
        raise Refusal("it needs pathways of its own group")
    return replace(apply_pending(w, apply_flatten(tensor) if tensor.flat else tensor), pending="roll")


def _stack(w: PlainWriter, path: str, module: Stack, tensor: PlainTensor) -> PlainTensor:
    if tensor.group != module.group:
        raise Refusal("it needs pathways of its own group")
    return replace(apply_pending(w, apply_flatten(tensor)), group=None)


def _unstack(w: PlainWriter, path: str, module: Unstack, tensor: PlainTensor) -> PlainTensor:
    if tensor.group is not None:
        raise Refusal("it needs a stacked tensor")
    return replace(apply_flatten(tensor), group=module.group)


def _pool(w: PlainWriter, path: str, module: Pool, tensor: PlainTensor) -> PlainTensor:
    if module.kind != "scalar" or not isinstance(module.fn, str):
        raise Refusal("only the mean, max and rms of scalars are supported")
    tensor = apply_pending(w, apply_flatten(input_of(module, tensor)))
    orientations = tensor.proxy.unflatten(1, (-1, module.group.order))
    return PlainTensor(pooled(orientations, 2, module.fn), sizes=tensor.sizes)


def pooled(orientations: Any, axis: int, fn: str) -> Any:
    """A pool function of this name over an axis, in torch's functions, also on the proxies of a tracer."""
    if fn == "mean":
        return orientations.mean(axis)
    return orientations.amax(axis) if fn == "max" else orientations.square().mean(axis).clamp_min(1e-24).sqrt()


def _invariants(w: PlainWriter, path: str, module: Invariants, tensor: PlainTensor) -> PlainTensor:
    tensor = apply_pending(w, apply_flatten(input_of(module, tensor)))
    tables = [w.constant("irreps", table) for table in matrices(module.group, w.dtype, "cpu")]
    return PlainTensor(invariants(tensor.proxy, module.group, *tables), sizes=tensor.sizes)


# --- other layers -----------------------------------------------------------------------------------------------------


@on_pathways
def _each_orientation(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    rule = rule_for(module.layer) or in_own_frames
    return rule(w, f"{path}.layer", module.layer, tensor)


def _prelu(w: PlainWriter, path: str, module: nn.PReLU, tensor: PlainTensor) -> PlainTensor:
    if tensor.group is None or module.num_parameters == 1:
        return copied_layer(w, path, module, tensor)
    tensor = apply_pending(w, tensor)
    assert tensor.group is not None
    prelu = nn.PReLU(module.num_parameters * tensor.group.order)
    prelu.weight = nn.Parameter(module.weight.detach().repeat_interleave(tensor.group.order))
    return replace(tensor, proxy=w.layer(path, prelu, tensor.proxy))


def _flatten(w: PlainWriter, path: str, module: nn.Flatten, tensor: PlainTensor) -> PlainTensor:
    if module.start_dim != 1 or module.end_dim != -1:
        return without_rule(w, path, module, tensor)
    return replace(tensor, flat=True)


def _pointwise(w: PlainWriter, path: str, module: nn.Module, tensor: PlainTensor) -> PlainTensor:
    return replace(tensor, proxy=w.layer(path, copy_not_in_place(module), tensor.proxy))


LAYER_RULES: list[tuple[Any, Rule]] = [
    (Slice, _slice),
    (Roll, _roll),
    (Stack, _stack),
    (Unstack, _unstack),
    (Pool, _pool),
    (Invariants, _invariants),
    ((SliceConv, RollConv, PathConv, DepthwiseConv), our_convolution),
    (PoolConv, pool_convolution),
    ((RollConvTranspose, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), transposed),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), torchs_convolution),
    (RollLinear, roll_linear),
    (nn.Linear, linear),
    (PatchEmbed, patch_embed),
    (ClassTokens, class_tokens),
    (PositionTable, position_table),
    (Attention, attention),
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
