"""What may stand between a last layer and an output, on ordinary tensors: it treats all positions alike."""

import math
import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from quarterturn._convert.layer_rules import is_dropout
from quarterturn.graph import pointwise
from quarterturn.graph.capture import Captured
from quarterturn.graph.pointwise import is_pointwise
from quarterturn.graph.torch_functions import AS_LAYERS, NOT_IN_PLACE, PERMUTATIONS, name_of, option, permutation
from quarterturn.layers.upsample import is_symmetric

RESHAPES = {"flatten", "reshape", "view", "squeeze", "unsqueeze", "unflatten"}
SUMS: set[Any] = {operator.add, operator.sub, operator.neg, torch.add, torch.sub, torch.neg, "add", "sub", "neg"}
COPIES = {"contiguous", "clone", "detach", "float", "half", "double", "type", "to"}
PRODUCTS: set[Any] = {operator.mul, torch.mul, "mul"}
QUOTIENTS: set[Any] = {operator.truediv, torch.div, "div"}
ADAPTIVE = {function for function in AS_LAYERS if function.__name__.startswith("adaptive")}


class Step(Enum):
    """What a mean over orientations makes of a step: it may be taken before, or it is taken there, or not before."""

    AFFINE = "affine"
    POOLS = "pools"
    OTHER = "other"


def step_of(captured: Captured, node: fx.Node, axis: int) -> Step | None:
    """What the call of a layer or function is, or None if it may not stand there; features come in along `axis`."""
    shape = _shape(captured, node)
    if node.op == "call_module":
        return _of_layer(captured.modules[str(node.target)], node, shape, axis)
    if is_pointwise(node.target):
        return _of_pointwise(captured, node, axis)
    name = name_of(node.target)
    if name in PERMUTATIONS:
        return Step.AFFINE
    if name in ("softmax", "log_softmax", "normalize"):
        return _along(option(node.args, node.kwargs, 2 if name == "normalize" else 1, "dim"), node, shape, axis)
    if name in RESHAPES:
        return Step.AFFINE if _has_one_position(shape, axis) else None
    if name in ("mean", "amax"):
        dims = option(node.args, node.kwargs, 1, "dim")
        whole = isinstance(dims, list | tuple) and {0, axis, *(d % len(shape) for d in dims)} == set(range(len(shape)))
        alone = whole and not {0, axis} & {d % len(shape) for d in dims}
        return (Step.AFFINE if name == "mean" else Step.OTHER) if alone else None
    if node.target is F.interpolate:
        return _of_interpolation(captured, node, shape, axis)
    if node.target in ADAPTIVE and not any(isinstance(a, fx.Node) for a in (*node.args[1:], *node.kwargs.values())):
        return _of_layer(AS_LAYERS[node.target](*node.args[1:], **node.kwargs), node, shape, axis)
    return None


def feature_axis(captured: Captured, node: fx.Node, makers: Callable[[fx.Node], bool]) -> int:
    """Along which axis a tensor behind last layers has its features."""
    rank = captured.example(node).dim()
    if makers(node):
        is_linear = name_of(node.target) == "linear" or isinstance(captured.modules.get(str(node.target)), nn.Linear)
        return rank - 1 if is_linear else 1
    before = [n for n in node.all_input_nodes if n.op.startswith("call_") and isinstance(captured.example(n), Tensor)]
    if not before:
        return 1
    axis = feature_axis(captured, before[0], makers)
    name = name_of(node.target) if node.op != "call_module" else None
    if name in PERMUTATIONS:
        order = permutation(str(name), rank, node.args[1:], node.kwargs)
        return order.index(axis)
    return axis if rank == captured.example(before[0]).dim() else 1


def _shape(captured: Captured, node: fx.Node) -> Sequence[int]:
    """That of the first tensor that comes in."""
    tensors = [captured.example(n) for n in node.all_input_nodes]
    return next((t.shape for t in tensors if isinstance(t, Tensor)), ())


def _has_one_position(shape: Sequence[int], axis: int) -> bool:
    return math.prod(shape[i] for i in range(1, len(shape)) if i != axis) == 1


def _of_layer(module: nn.Module, node: fx.Node, shape: Sequence[int], axis: int) -> Step | None:
    if is_dropout(module) or isinstance(module, nn.Identity):
        return Step.AFFINE
    if isinstance(module, pointwise.LAYERS):
        return Step.OTHER
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmax2d):
        return _along(1 if isinstance(module, nn.Softmax2d) else module.dim, node, shape, axis)
    if isinstance(module, nn.Flatten):
        return Step.AFFINE if _has_one_position(shape, axis) else None
    if axis != 1:
        return None
    if isinstance(module, nn.modules.pooling._AdaptiveAvgPoolNd | nn.modules.pooling._AdaptiveMaxPoolNd):
        size: Any = module.output_size
        if math.prod(size if isinstance(size, tuple | list) else (size,)) != 1 or getattr(
            module, "return_indices", False
        ):
            return None
        return Step.AFFINE if isinstance(module, nn.modules.pooling._AdaptiveAvgPoolNd) else Step.OTHER
    if isinstance(module, nn.Upsample):
        how = (module.size, module.scale_factor, module.mode, module.align_corners)
        return Step.AFFINE if is_symmetric((None,) * (len(shape) - 2), *how) else None
    return None


def _of_interpolation(captured: Captured, node: fx.Node, shape: Sequence[int], axis: int) -> Step | None:
    names = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
    given: dict[str, Any] = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    mode = given.get("mode", "nearest")
    if axis != 1 or mode.startswith("nearest") or given.get("recompute_scale_factor") or given.get("antialias"):
        return None
    if isinstance(given.get("scale_factor"), fx.Node):
        return None
    size = None if given.get("size") is None else tuple(captured.example(node).shape[2:])
    whole = is_symmetric(shape[2:], size, given.get("scale_factor"), mode, given.get("align_corners"))
    return Step.AFFINE if whole else None


def _along(dim: Any, node: fx.Node, shape: Sequence[int], axis: int) -> Step | None:
    """Along the features: orientations were pooled before it if it ends the network."""
    if not isinstance(dim, int) or dim % len(shape) != axis:
        return None
    return Step.POOLS if ends(node) else Step.OTHER


def _of_pointwise(captured: Captured, node: fx.Node, axis: int) -> Step | None:
    if name_of(node.target) == "dropout":  # the function becomes a layer elsewhere, so that it acts in training
        return None
    rank = captured.example(node).dim()
    for table in (captured.example(n) for n in node.all_input_nodes if n.op == "get_attr"):
        if any(n > 1 and i - table.dim() + rank != axis for i, n in enumerate(table.shape)):
            return None  # a number for each position
    target = NOT_IN_PLACE.get(node.target, node.target)
    if is_sum(node) or target in COPIES:
        return Step.AFFINE
    changing = [a for a in node.args if isinstance(a, fx.Node) and a.op != "get_attr"]
    scaled = target in PRODUCTS or (target in QUOTIENTS and node.args[:1] == tuple(changing))
    return Step.AFFINE if scaled and len(changing) == 1 else Step.OTHER


def is_sum(node: fx.Node) -> bool:
    """Whether the node adds or subtracts."""
    return NOT_IN_PLACE.get(node.target, node.target) in SUMS


def ends(node: fx.Node) -> bool:
    """Whether what the node makes goes to the output, and nowhere else, number by number."""
    return all(user.op == "output" or (is_pointwise(user.target) and ends(user)) for user in node.users)
