"""Rules for norms: parameters and statistics are repeated for each orientation."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from quarterturn._export.plain_tensor import PlainTensor, apply_flatten, apply_pending, on_pathways
from quarterturn._export.plain_writer import PlainWriter
from quarterturn.graph.refusal import Refusal

BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


def _set_parameters(norm: Any, weight: Tensor | None, bias: Tensor | None) -> None:
    for name, tensor in (("weight", weight), ("bias", bias)):
        norm.register_parameter(name, None if tensor is None else nn.Parameter(tensor.detach().clone()))


def _repeated(tensor: Tensor | None, order: int) -> Tensor | None:
    """Repeat the number of each feature for all its orientations, the fast index."""
    return None if tensor is None else tensor.repeat_interleave(order)


@on_pathways
def batch_norm(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    if module.running_mean is None:
        raise Refusal("it has no running statistics, so it depends on the batch")
    tensor = apply_flatten(apply_pending(w, tensor))
    assert tensor.group is not None
    order = tensor.group.order
    norm = BATCH_NORMS[1 if tensor.dense else tensor.group.dim](
        module.running_mean.shape[0] * order,
        module.eps,
        affine=module.weight is not None,
        dtype=module.running_mean.dtype,
    )
    state = {name: t.repeat_interleave(order) for name, t in module.state_dict().items() if t.dim()}
    norm.load_state_dict({**norm.state_dict(), **state})
    return replace(tensor, proxy=w.layer(path, norm, tensor.proxy))


@on_pathways
def instance_norm(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    tensor = apply_pending(w, tensor)
    group = tensor.group
    assert group is not None
    if getattr(module, "running_mean", None) is not None:
        raise Refusal("instance norm with running statistics is not supported")
    norm = INSTANCE_NORMS[group.dim](_features(module) * group.order, module.eps, affine=module.weight is not None)
    _set_parameters(norm, _repeated(module.weight, group.order), _repeated(module.bias, group.order))
    return replace(tensor, proxy=w.layer(path, norm, tensor.proxy))


@on_pathways
def group_norm(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    """Make orientation the slow feature index, so that groups do not mix orientations."""
    tensor = apply_pending(w, tensor)
    assert tensor.group is not None
    features, order = _features(module), tensor.group.order
    norm = nn.GroupNorm(module.num_groups * order, features * order, module.eps, affine=module.weight is not None)
    _set_parameters(norm, *(None if p is None else p.repeat(order) for p in (module.weight, module.bias)))
    slow = tensor.proxy.unflatten(1, (features, order)).transpose(1, 2).flatten(1, 2)
    out = w.layer(path, norm, slow).unflatten(1, (order, features)).transpose(1, 2).flatten(1, 2)
    return replace(tensor, proxy=out)


@on_pathways
def layer_norm(w: PlainWriter, path: str, module: Any, tensor: PlainTensor) -> PlainTensor:
    tensor = apply_pending(w, tensor)
    norm = nn.LayerNorm(module.features, module.eps, elementwise_affine=module.weight is not None)
    _set_parameters(norm, module.weight, module.bias)
    if module.last:
        split = tensor.proxy.unflatten(-1, (module.features, module.group.order)).transpose(-1, -2)
        return replace(tensor, proxy=w.layer(path, norm, split).transpose(-1, -2).flatten(-2))
    split = tensor.proxy.unflatten(1, (module.features, module.group.order)).movedim(1, -1)
    return replace(tensor, proxy=w.layer(path, norm, split).movedim(-1, 1).flatten(1, 2))


def _features(module: Any) -> int:
    """The number of features of a norm in each orientation; the attribute's name depends on the type of norm."""
    names = ("features", "num_features", "num_channels")
    return next(getattr(module, name) for name in names if hasattr(module, name))
