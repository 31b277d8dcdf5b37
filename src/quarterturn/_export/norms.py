"""Norms in a plain network: parameters and statistics repeated for each orientation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from quarterturn._export.values import Refusal, Value, Writer, kept, left_as, oriented, stacked, unflattened
from quarterturn.groups import Group
from quarterturn.layers.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm

INSTANCE_NORMS: dict[int, Callable[..., nn.Module]] = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


def _repeated(tensor: Tensor | None, group: Group) -> Tensor | None:
    return None if tensor is None else tensor.detach().repeat_interleave(group.order)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone())


def batch_norm(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, BatchNorm)
    if not ours and value.group is None:
        return kept(w, path, module, value)
    value = stacked(w, oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    if module.running_mean is None:
        raise Refusal("without running statistics it depends on the batch")
    value = unflattened(value)
    maker = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[1 if value.dense else group.dim]
    features = module.running_mean.shape[0] * group.order
    norm = maker(features, module.eps, affine=module.weight is not None, dtype=module.running_mean.dtype)
    state = {name: _repeated(tensor, group) for name, tensor in module.state_dict().items() if tensor.dim()}
    norm.load_state_dict({**norm.state_dict(), **state})
    return _norm_left(w, path, module, value, norm, ours)


def _norm_left(w: Writer, path: str, module: Any, value: Value, norm: nn.Module, ours: bool) -> Value:
    out = replace(value, proxy=w.call(path, norm, value.proxy))
    return left_as(module, out) if ours else out


def instance_norm(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, InstanceNorm)
    if not ours and value.group is None:
        return kept(w, path, module, value)
    value = stacked(w, oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    if getattr(module, "running_mean", None) is not None:
        raise Refusal("instance norm with running statistics is not known")
    weight, bias = _repeated(module.weight, group), _repeated(module.bias, group)
    count = module.features if ours else module.num_features
    norm = INSTANCE_NORMS[group.dim](count * group.order, module.eps, affine=weight is not None)
    if weight is not None and bias is not None:
        norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(bias)
    return _norm_left(w, path, module, value, norm, ours)


def group_norm(w: Writer, path: str, module: Any, value: Value) -> Value:
    ours = isinstance(module, GroupNorm)
    if not ours and value.group is None:
        return kept(w, path, module, value)
    value = stacked(w, oriented(module, value) if ours else value)
    group = value.group
    assert group is not None
    features = module.features if ours else module.num_channels
    # orientations become the slow feature index, so that groups do not mix them
    norm = nn.GroupNorm(module.num_groups * group.order, features * group.order, module.eps, module.weight is not None)
    if module.weight is not None:
        norm.weight = _parameter(module.weight.repeat(group.order))
        norm.register_parameter("bias", None if module.bias is None else _parameter(module.bias.repeat(group.order)))
    slow = value.proxy.unflatten(1, (features, group.order)).transpose(1, 2).flatten(1, 2)
    out = w.call(path, norm, slow).unflatten(1, (group.order, features)).transpose(1, 2).flatten(1, 2)
    return left_as(module, replace(value, proxy=out)) if ours else replace(value, proxy=out)


def layer_norm(w: Writer, path: str, module: LayerNorm, value: Value) -> Value:
    value = stacked(w, oriented(module, value))
    norm = nn.LayerNorm(module.features, module.eps, elementwise_affine=module.weight is not None)
    if module.weight is not None:
        norm.weight = _parameter(module.weight)
        norm.register_parameter("bias", None if module.bias is None else _parameter(module.bias))
    split = value.proxy.unflatten(1, (module.features, module.group.order)).movedim(1, -1)
    return left_as(module, replace(value, proxy=w.call(path, norm, split).movedim(-1, 1).flatten(1, 2)))
