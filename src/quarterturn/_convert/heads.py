"""Which layers make the outputs of a network, and the step before them from orientations to ordinary numbers.

A last layer is a linear layer or a 1x1 convolution with nothing behind it but what treats all positions alike. It may
see what does not depend on the orientation of the input: then it is a plain layer, and so is all that follows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from quarterturn import trees
from quarterturn._convert.axes import Position, maps_of
from quarterturn._convert.carried_over import names_of_tied
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import asks_for_sizes
from quarterturn._convert.initial_weights import drawn, rearranged
from quarterturn._convert.tail_steps import Step, feature_axis, step_of
from quarterturn._convert.tracked_value import TrackedValue, ordinary_tensor
from quarterturn._convert.widths import channels, make_equal
from quarterturn.graph.capture import Captured
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import name_of, option
from quarterturn.layers.convolution import RollConv
from quarterturn.layers.invariants import Invariants
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.operations import Pool
from quarterturn.ops import PoolFunction

Head = Literal["auto", "pool", "max", "invariants", "hidden"]
HEADS = ("auto", "pool", "max", "invariants", "hidden")
LAYERS: dict[int, Any] = {2: nn.Linear, 3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}  # by the axes of the weight


# --- where they are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LastLayers:
    """The nodes of the last layers, those of what follows them, and how many outputs none of them makes."""

    nodes: frozenset[fx.Node] = frozenset()
    mean_first: frozenset[fx.Node] = frozenset()  # a mean may be taken before these layers: all behind them is affine
    tails: frozenset[fx.Node] = frozenset()
    other_outputs: int = 0


@dataclass
class _Output:
    """What makes one output: last layers, each with whether all behind it is affine, and the nodes behind them."""

    makers: dict[fx.Node, bool]
    tail: set[fx.Node]


def last_layers(captured: Captured, model: nn.Module, is_plain: Callable[[fx.Node], bool]) -> LastLayers:
    """The layers of which outputs of the network are made, and that make nothing else; none is in a plain part."""
    end = next(node for node in captured.graph.nodes if node.op == "output")
    wanted = [n for _, n in trees.leaves(end.args[0], fx.Node) if isinstance(captured.example(n), Tensor)]
    outputs = [output for node in wanted if (output := _output(captured, node, is_plain)) is not None]
    while True:
        nodes = {node for output in outputs for node in output.makers}
        tails = {node for output in outputs for node in output.tail}
        names = {_weight_name(captured, node) for node in nodes}
        kept = [o for o in outputs if _make_outputs_alone(captured, model, o, nodes, tails, names)]
        if len(kept) == len(outputs):
            break
        outputs = kept
    first = {node for node in nodes if all(output.makers.get(node, True) for output in outputs)}
    return LastLayers(frozenset(nodes), frozenset(first), frozenset(tails), len(wanted) - len(outputs))


def _output(captured: Captured, node: fx.Node, is_plain: Callable[[fx.Node], bool]) -> _Output | None:
    """What makes the output, or None if a part of it comes from elsewhere."""
    output = _Output({}, set())

    def is_maker(node: fx.Node) -> bool:
        return _weight_name(captured, node) is not None

    def follow(node: fx.Node, affine: bool) -> bool:
        example = captured.example(node)
        if not isinstance(example, Tensor):  # numbers go along; of several tensors it is not known which
            return not trees.leaves(example, Tensor)
        if node.op == "placeholder":
            return True
        if node.op == "call_module" and is_plain(node):
            return False
        if is_maker(node):
            output.makers[node] = output.makers.get(node, True) and affine
            return True
        inputs = [n for n in node.all_input_nodes if n.op != "get_attr"]
        before = [n for n in inputs if isinstance(captured.example(n), Tensor)]
        axis = feature_axis(captured, before[0], is_maker) if before else 1
        step = step_of(captured, node, axis)
        if step is None:
            return False
        output.tail.add(node)
        affine = step == Step.POOLS or (affine and step == Step.AFFINE)
        return all(follow(n, affine) for n in inputs)

    return output if follow(node, True) and output.makers else None


def _weight_name(captured: Captured, node: fx.Node) -> str | None:
    """The name of the weight, if the node is a linear layer or a 1x1 convolution."""
    if node.op == "call_module":
        module = captured.modules[str(node.target)]
        pointwise = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and (
            math.prod(module.kernel_size) == 1
            and math.prod(module.stride) == 1
            and module.groups == 1
            and (isinstance(module.padding, str) or not any(module.padding))
        )
        return f"{node.target}.weight" if pointwise or isinstance(module, nn.Linear) else None
    weight = option(node.args, node.kwargs, 1, "weight") if name_of(node.target) == "linear" else None
    return str(weight.target) if isinstance(weight, fx.Node) and weight.op == "get_attr" else None


def _make_outputs_alone(
    captured: Captured,
    model: nn.Module,
    output: _Output,
    nodes: set[fx.Node],
    tails: set[fx.Node],
    names: set[str | None],
) -> bool:
    """Whether nothing but outputs uses what these layers make, and every use of their weights makes outputs."""
    users = [user for node in (*output.makers, *output.tail) for user in node.users]
    if any(user not in tails and user.op != "output" and not asks_for_sizes(user) for user in users):
        return False
    mine = {_weight_name(captured, node) for node in output.makers}
    if any(_weight_name(captured, n) in mine for n in captured.graph.nodes if n not in nodes):
        return False
    return all(set(tied) <= names for tied in names_of_tied(model) if mine & set(tied))


# --- what they see ----------------------------------------------------------------------------------------------------


def sees_positions(value: TrackedValue) -> bool:
    """Whether a linear layer gets flattened maps: features and positions in one axis."""
    return len(value.axes[-1]) > 1 and any(isinstance(c, Position) and c.size > 1 for c in value.axes[-1])


def last_layer(
    w: EquivariantWriter, head: Head, path: str, weight: Tensor, bias: Tensor | None, value: TrackedValue, example: Any
) -> TrackedValue:
    """A plain layer on numbers that do not depend on the orientation."""
    is_linear = weight.dim() == 2
    value = (
        w.without_blocks(w.with_orientations(value, path), path)
        if is_linear
        else w.maps_with_features_first(value, path)
    )
    if is_linear and (sees_positions(value) or value.axes[-1][:1] != (value.features,)):
        raise Refusal(
            "features at several positions go into it, so orientations cannot be pooled before: use head='pool'"
        )
    value = w.whole_maps(w.maps(value, path), path) if value.positions else w.dense(value, path)
    features, _ = w.known.setdefault(w.tied(path), (value.features, None))
    make_equal(features, value.features)
    if head == "hidden":
        value = _hidden(w, path, weight, value)
    numbers = Invariants(w.group).numbers if head == "invariants" else 1
    fn: PoolFunction = "max" if head == "max" else w.pool

    def step() -> nn.Module:
        return Invariants(w.group, w.rotate) if head == "invariants" else Pool(w.group, fn, rotate=w.rotate)

    seen = w.without_orientations(
        value, w.helper(f"{path}.{'invariants' if numbers > 1 else 'pool'}", step, value.node)
    )

    def make() -> nn.Module:
        count = w.widths.of(features) * numbers
        where = " at each position" if value.positions else ""
        w.heads[path] = count
        w.notes.append(f"{path}: the last layer sees {count} numbers{where}, where it saw {weight.shape[1]}")
        options: Any = {"bias": bias is not None, "device": weight.device, "dtype": weight.dtype}
        kernel = [] if is_linear else [1]
        layer = LAYERS[weight.dim()](count, weight.shape[0], *kernel, **options)
        with torch.no_grad():
            layer.weight.copy_(_first_weights(w, layer.weight, weight, w.widths.sources(features), numbers))
            if bias is not None:
                layer.bias.copy_(bias)
        return layer

    axes = (
        (*value.axes[:-1], (channels(weight.shape[0]),)) if is_linear else maps_of(example, channels(weight.shape[0]))
    )
    return replace(ordinary_tensor(example, w.layer(path, make, seen.node)), axes=axes)


def _first_weights(
    w: EquivariantWriter, new: Tensor, old: Tensor, sources: Sequence[int | None], numbers: int
) -> Tensor:
    """Drawn anew, or for each feature the sum of the old weights of its orientations: what its mean was worth."""
    if w.init == "scratch" and old.requires_grad:
        return drawn(new, old, new.shape[1], old.shape[1])
    bank = rearranged(old.detach(), range(old.shape[0]), sources, 1, 1)
    sums = bank.unflatten(1, (-1, w.group.order)).sum(2)
    first = torch.zeros_like(new)
    first[:, ::numbers] = sums  # those of the mean, or of the only number
    return first


def _hidden(w: EquivariantWriter, path: str, weight: Tensor, value: TrackedValue) -> TrackedValue:
    """A rolled layer as wide as what comes in, and an activation."""
    features, positions = value.features, bool(value.positions)

    def make() -> nn.Module:
        count = w.widths.of(features)
        options: Any = {"rotate": w.rotate, "device": weight.device, "dtype": weight.dtype}
        layer: Any = (
            RollConv(w.group, count, count, 1, **options) if positions else RollLinear(w.group, count, count, **options)
        )
        with torch.no_grad():
            layer.bias.zero_()
            if w.init == "pretrained":  # there are no old weights: it passes on what is not negative
                layer.weight.zero_()
                layer.weight[range(count), range(0, count * w.group.order, w.group.order)] = 1
            else:
                layer.weight.normal_(std=math.sqrt(2 / layer.weight[0].numel()))
        return layer

    node = w.helper(f"{path}.hidden", make, value.node)
    return replace(value, node=w.helper(f"{path}.activation", nn.ReLU, node))
