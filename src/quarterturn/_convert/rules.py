"""What becomes of each layer: one rule for each type, from a layer and a value to a value."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from quarterturn._convert.capture import is_dropout
from quarterturn._convert.convolutions import (
    CONV_DIMS,
    TRANSPOSED_DIMS,
    convolution_layer,
    linear_layer,
    transposed_layer,
)
from quarterturn._convert.norms import batch_norm, group_norm, instance_norm, layer_norm
from quarterturn._convert.positions import (
    adaptive_pool,
    each_orientation,
    pad_layer,
    pixel_shuffle,
    spatial_pool,
    upsample,
)
from quarterturn._convert.shapes import glu, reshape
from quarterturn._convert.values import Extra, Value, plain, result
from quarterturn._convert.weights import per_feature
from quarterturn._convert.widths import Features, Refusal, repeated
from quarterturn._convert.writer import Writer, kept
from quarterturn.graph import pointwise
from quarterturn.layers.norms import BatchNorm

Rule = Callable[[Writer, str, Any, Value, Any], Value]


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of the layer's type, if there is one; dropouts of other libraries treat every number alike."""
    if isinstance(module, BatchNorm):  # ours is one of torch's too, but no layer of an ordinary network
        return None
    if is_dropout(module):
        return kept
    return next((rule for types, rule in RULES if isinstance(module, types)), None)


def _prelu(w: Writer, path: str, module: nn.PReLU, value: Value, example: Tensor) -> Value:
    if module.num_parameters == 1:
        return kept(w, path, module, value, example)
    value = w.beside(value, path)
    features = value.features

    def make() -> nn.Module:
        twin = nn.PReLU(w.widths.of(features), device=module.weight.device, dtype=module.weight.dtype)
        old, sources = module.weight.detach(), w.widths.sources(features)
        twin.weight = nn.Parameter(per_feature(old, sources, w.group.order, w.init))
        return twin

    return result(value, w.layer(path, make, value.node), example)


def _channel_shuffle(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    value = w.beside(w.maps_first(value, path), path)
    shuffled = repeated(value.features.split(module.groups)[0], module.groups)
    axes = (value.axes[0], (shuffled,), *value.axes[2:])
    return result(value, w.layer(path, lambda: copy.deepcopy(module), value.node), example, axes=axes)


def _rms_norm(w: Writer, path: str, module: nn.RMSNorm, value: Value, example: Tensor) -> Value:
    value = w.beside(value, path)
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


def _flatten(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    return reshape(w, path, value, example)


def _glu(w: Writer, path: str, module: nn.GLU, value: Value, example: Tensor) -> Value:
    return glu(w, path, value, module.dim, example)


def softmax(w: Writer, path: str, module: Any, value: Value, example: Tensor) -> Value:
    dim = 1 if isinstance(module, nn.Softmax2d) else module.dim
    if value.axes[dim] and all(isinstance(c, Features | Extra) for c in value.axes[dim]):
        value = w.beside(value, path)
        return result(value, w.layer(path, lambda: copy.deepcopy(module), value.node), example)
    raise Refusal("it normalises over other axes than features")


def ordinary(w: Writer, path: str, module: nn.Module, value: Value, example: Any) -> Value:
    """A layer on an ordinary tensor, as it is."""
    return plain(example, w.layer(path, lambda: copy.deepcopy(module), value.node))


RULES: list[tuple[Any, Rule]] = [
    (tuple(TRANSPOSED_DIMS), transposed_layer),
    (tuple(CONV_DIMS), convolution_layer),
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
    (nn.ChannelShuffle, _channel_shuffle),
    (nn.RMSNorm, _rms_norm),
    ((nn.Softmax, nn.LogSoftmax, nn.Softmax2d), softmax),
    (nn.PReLU, _prelu),
    (pointwise.LAYERS, kept),
]
