"""Layers and functions of torch that treat every number, or every map, alike: a turned input turns their output."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from quarterturn.graph.torch_functions import NOT_IN_PLACE

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
    torch.where, torch.neg, torch.reciprocal, torch.sign, torch.sin, torch.cos, torch.erf, torch.log1p, torch.expm1,
    torch.floor, torch.ceil, torch.round, torch.zeros_like, torch.ones_like, torch.detach,
    operator.gt, operator.ge, operator.lt, operator.le, torch.gt, torch.ge, torch.lt, torch.le,
    F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.sigmoid, F.tanh, F.hardtanh,
    F.hardswish, F.hardsigmoid, F.softplus, F.softsign, F.logsigmoid, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d,
    F.alpha_dropout, F.threshold, F.relu_, F.elu_, F.leaky_relu_,
}  # fmt: skip
METHODS = {
    "relu", "sigmoid", "tanh", "abs", "square", "sqrt", "rsqrt", "exp", "log", "neg", "pow", "add", "sub", "mul",
    "div", "clamp", "clamp_min", "clamp_max", "contiguous", "clone", "detach", "float", "half", "double", "type", "to",
    "reciprocal", "addcmul", "hardswish", "silu", "sign", "sin", "cos", "erf", "log1p", "expm1", "floor", "ceil",
    "round", "type_as", "gt", "ge", "lt", "le",
}  # fmt: skip


def is_pointwise(target: Any) -> bool:
    """Whether a function or method is among them, in place or not.

    >>> is_pointwise(torch.relu), is_pointwise("relu_"), is_pointwise(torch.cumsum)
    (True, True, False)
    """
    target = NOT_IN_PLACE.get(target, target)
    return target in FUNCTIONS or (isinstance(target, str) and target in METHODS)
