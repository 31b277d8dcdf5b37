"""What becomes of each layer: one rule for each type, from a layer and its input to its output."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from quarterturn._convert.axes import HeadFeatures
from quarterturn._convert.axis_rules import glu, reshape
from quarterturn._convert.convolution_rules import (
    convolution_layer,
    linear_layer,
    transposed_layer,
)
from quarterturn._convert.equivariant_writer import EquivariantWriter, pointwise_layer
from quarterturn._convert.function_calls import node_of
from quarterturn._convert.initial_weights import per_feature
from quarterturn._convert.norm_rules import batch_norm, group_norm, instance_norm, layer_norm, of_heads
from quarterturn._convert.patch_rules import unfold
from quarterturn._convert.reduction_rules import check_summed
from quarterturn._convert.spatial_rules import (
    adaptive_pool,
    each_orientation,
    pad_layer,
    pixel_shuffle,
    spatial_pool,
    upsample,
)
from quarterturn._convert.tracked_value import TrackedValue, ordinary_tensor, result
from quarterturn._convert.widths import repeated
from quarterturn.graph import pointwise
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.writing import copied_module
from quarterturn.layers.norms import BatchNorm

Rule = Callable[[EquivariantWriter, str, Any, TrackedValue, Any], TrackedValue]


def is_dropout(module: nn.Module) -> bool:
    """Whether it is a kind of dropout, such as stochastic depth, by its name: what it does, it does in training."""
    name = type(module).__name__.lower()
    return ("drop" in name or "stochasticdepth" in name) and not any(True for _ in module.parameters())


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of the layer's type, if there is one; dropouts of other libraries treat every number alike."""
    if isinstance(module, BatchNorm):  # ours is one of torch's too, but no layer of an ordinary network
        return None
    if is_dropout(module):
        return pointwise_layer
    return next((rule for types, rule in LAYER_RULES if isinstance(module, types)), None)


def _prelu(w: EquivariantWriter, path: str, module: nn.PReLU, value: TrackedValue, example: Tensor) -> TrackedValue:
    if module.num_parameters == 1:
        return pointwise_layer(w, path, module, value, example)
    value = w.orientations_in_batch(value, path)
    features = value.features

    def make() -> nn.Module:
        twin = nn.PReLU(w.widths.of(features), device=module.weight.device, dtype=module.weight.dtype)
        old, sources = module.weight.detach(), w.widths.sources(features)
        twin.weight = nn.Parameter(per_feature(old, sources, w.group.order, w.init))
        return twin

    return result(value, w.layer(path, make, value.node), example)


def _channel_shuffle(
    w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor
) -> TrackedValue:
    value = w.orientations_in_batch(w.maps_with_features_first(value, path), path)
    shuffled = repeated(value.features.split(module.groups)[0], module.groups)
    axes = (value.axes[0], (shuffled,), *value.axes[2:])
    return result(value, w.layer(path, lambda: copy.deepcopy(module), value.node), example, axes=axes)


def rms_norm(w: EquivariantWriter, path: str, module: nn.RMSNorm, value: TrackedValue, example: Tensor) -> TrackedValue:
    value = w.orientations_in_batch(value, path)
    if len(module.normalized_shape) == 1 and any(isinstance(c, HeadFeatures) for c in value.axes[-1]):
        return of_heads(w, path, module, value, example, nn.RMSNorm)
    features = value.features
    if len(module.normalized_shape) != 1 or value.axes[-1] != (features,):
        raise Refusal("it normalises over other axes than the features")

    def make() -> nn.Module:
        twin = nn.RMSNorm(w.widths.of(features), module.eps, elementwise_affine=False)
        if module.weight is not None:
            scale = per_feature(module.weight.detach(), w.widths.sources(features), w.group.order, w.init)
            twin.register_parameter("weight", nn.Parameter(scale))
        return twin

    return result(value, w.layer(path, make, value.node), example)


def _flatten(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    return reshape(w, path, value, example)


def _glu(w: EquivariantWriter, path: str, module: nn.GLU, value: TrackedValue, example: Tensor) -> TrackedValue:
    return glu(w, path, value, module.dim, example)


def softmax(w: EquivariantWriter, path: str, module: Any, value: TrackedValue, example: Tensor) -> TrackedValue:
    dim = 1 if isinstance(module, nn.Softmax2d) else module.dim
    check_summed(w, value.axes[dim], "normalises over")
    value = w.orientations_in_batch(value, path)
    return result(value, w.layer(path, lambda: copy.deepcopy(module), value.node), example)


def copied_layer(w: EquivariantWriter, path: str, module: nn.Module, value: TrackedValue, example: Any) -> TrackedValue:
    """A layer on an ordinary tensor, as it is."""
    return ordinary_tensor(example, w.layer(path, lambda: copy.deepcopy(module), value.node))


def layer_on_constant(
    w: EquivariantWriter, path: str, module: nn.Module, value: TrackedValue, example: Any
) -> TrackedValue:
    """A layer that makes a table of positions, say, of constants alone: as it is."""
    if value.for_one is not None:
        example = module(value.example)
    if isinstance(module, nn.Embedding) and _counts_up(value.example, module.num_embeddings):
        name = f"{path}.weight"  # all of its rows, in their order
        table = w.model.get_parameter(name)
        return replace(value, node=lambda: w.constant(name), example=table, source=name, names=(name,))
    names = (*value.names, *(f"{path}.{name}" for name, _ in module.named_parameters()))

    def node() -> Any:
        w.check_same_use(path, ("on a constant",))
        given, learnt = node_of(value), next(iter(dict(module.named_parameters())), None)
        if learnt is not None and value.example.is_floating_point():  # also where the network becomes another type
            given = w.method("to", given, w.graph.get_attr(f"{path}.{learnt}"))
        return w.layer(path, lambda: copied_module(module), given)

    one = None if value.for_one is None else example
    return replace(value, node=node, example=example, source=None, names=names, computed=None, for_one=one)


def _counts_up(numbers: Tensor, count: int) -> bool:
    return numbers.flatten().tolist() == list(range(count))


LAYER_RULES: list[tuple[Any, Rule]] = [
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), transposed_layer),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution_layer),
    (nn.Linear, linear_layer),
    (nn.modules.batchnorm._BatchNorm, batch_norm),
    (nn.LayerNorm, layer_norm),
    (nn.GroupNorm, group_norm),
    (nn.modules.instancenorm._InstanceNorm, instance_norm),
    (nn.modules.pooling._MaxPoolNd, spatial_pool),
    (nn.modules.pooling._AvgPoolNd, spatial_pool),
    ((nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd), adaptive_pool),
    ((nn.modules.pooling._LPPoolNd, nn.LocalResponseNorm), each_orientation),
    (nn.Upsample, upsample),
    ((nn.PixelShuffle, nn.PixelUnshuffle), pixel_shuffle),
    (
        tuple(
            getattr(nn.modules.padding, f"_{kind}PadNd")
            for kind in ("Constant", "Reflection", "Replication", "Circular")
        ),
        pad_layer,
    ),
    ((nn.Flatten, nn.Unflatten), _flatten),
    (nn.GLU, _glu),
    (nn.Unfold, unfold),
    (nn.ChannelShuffle, _channel_shuffle),
    (nn.RMSNorm, rms_norm),
    ((nn.Softmax, nn.LogSoftmax, nn.Softmax2d), softmax),
    (nn.PReLU, _prelu),
    (pointwise.LAYERS, pointwise_layer),
]
