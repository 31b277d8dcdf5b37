"""Layers and functions of torch that treat every number, or every map, alike: they turn with it as they are.

What goes in and out of quarterturn, `convert` and `to_plain`, reads these tables.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

LAYERS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink,
    nn.Hardshrink, nn.Threshold, nn.RReLU, nn.Identity, nn.Dropout, nn.AlphaDropout, nn.Dropout1d, nn.Dropout2d,
    nn.Dropout3d, nn.FeatureAlphaDropout,
)  # fmt: skip
FUNCTIONS: set[Callable[..., Any]] = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow, operator.iadd,
    operator.isub, operator.imul, operator.itruediv,
    torch.add, torch.sub, torch.mul, torch.div, torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.square,
    torch.sqrt, torch.rsqrt, torch.exp, torch.log, torch.pow, torch.clamp, torch.maximum, torch.minimum, torch.addcmul,
    torch.where, torch.neg, torch.reciprocal,
    F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.sigmoid, F.tanh, F.hardtanh,
    F.hardswish, F.hardsigmoid, F.softplus, F.softsign, F.logsigmoid, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d,
    F.alpha_dropout, F.threshold, F.relu_, F.elu_, F.leaky_relu_,
}  # fmt: skip
METHODS = {
    "relu", "sigmoid", "tanh", "abs", "square", "sqrt", "rsqrt", "exp", "log", "neg", "pow", "add", "sub", "mul",
    "div", "clamp", "clamp_min", "clamp_max", "contiguous", "clone", "detach", "float", "half", "double", "type", "to",
    "reciprocal", "addcmul", "hardswish", "silu",
}  # fmt: skip
# Of what works in place, the twin that does not. Several names for one tensor, or turned copies of it, may be about.
NOT_IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, F.relu_: F.relu, F.elu_: F.elu, F.leaky_relu_: F.leaky_relu,
    **{f"{name}_": name for name in ("relu", "sigmoid", "tanh", "add", "sub", "mul", "div", "clamp", "square")},
}  # fmt: skip
# Functions that are a layer without a name: the layer's own rule serves.
AS_LAYERS: dict[Callable[..., Any], Callable[..., nn.Module]] = {
    F.max_pool1d: nn.MaxPool1d, F.max_pool2d: nn.MaxPool2d, F.max_pool3d: nn.MaxPool3d,
    F.avg_pool1d: nn.AvgPool1d, F.avg_pool2d: nn.AvgPool2d, F.avg_pool3d: nn.AvgPool3d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d, F.adaptive_max_pool1d: nn.AdaptiveMaxPool1d,
    F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d, F.adaptive_max_pool3d: nn.AdaptiveMaxPool3d,
    F.interpolate: nn.Upsample,
}  # fmt: skip
