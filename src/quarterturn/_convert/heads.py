"""Which layers make the outputs of a network, and the step before them from orientations to ordinary numbers.

A last layer is a linear layer or a 1x1 convolution with nothing behind it but what treats all positions alike. It may
see what does not depend on the orientation of the input: then it is a plain layer, and so is all that follows.

A convolution with larger windows is one too, where its outputs are averaged over orientations, and only sums and the
like stand between. It makes that mean at once (`PoolConv`): a layer for all orientations of each output would cost as
many times as much, and give no other function. What a network adds to its output, as a residual block does, is averaged
there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from quarterturn import trees
from quarterturn._convert.axes import Position, maps_of
from quarterturn._convert.carried_over import names_of_tied
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.function_calls import asks_for_sizes
from quarterturn._convert.initial_weights import drawn, projected, rearranged
from quarterturn._convert.tail_steps import Step, feature_axis, is_sum, step_of
from quarterturn._convert.tracked_value import TrackedValue, ordinary_tensor
from quarterturn._convert.widths import channels, make_equal
from quarterturn.graph.capture import Captured
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import name_of, option
from quarterturn.groups import Group
from quarterturn.layers.convolution import PoolConv, RollConv, are_centred, turned_inputs
from quarterturn.layers.invariants import Invariants
from quarterturn.layers.linear import RollLinear
from quarterturn.layers.operations import Pool
from quarterturn.ops import PoolFunction
from quarterturn.windows import windows_for

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
    sums: frozenset[fx.Node] = frozenset()  # of tails: what still has orientations there may be averaged before them
    other_outputs: int = 0


@dataclass
class _Output:
    """What makes one output: last layers and the nodes behind them, and whether all that follows is affine."""

    makers: dict[fx.Node, bool] = field(default_factory=dict)
    tail: set[fx.Node] = field(default_factory=set)
    sums: dict[fx.Node, bool] = field(default_factory=dict)  # of the nodes behind them

    def with_(self, other: "_Output") -> "_Output":
        """Both together: behind a node all is affine if it is so on every way to the output."""
        return _Output(_both(self.makers, other.makers), self.tail | other.tail, _both(self.sums, other.sums))


def _both(one: dict[fx.Node, bool], other: dict[fx.Node, bool]) -> dict[fx.Node, bool]:
    return one | {node: one.get(node, True) and affine for node, affine in other.items()}


def last_layers(
    captured: Captured, model: nn.Module, is_plain: Callable[[fx.Node], bool], around: Group | None = None
) -> LastLayers:
    """The layers of which outputs of the network are made, and that make nothing else; none is in a plain part.

    Those that look around are among them only where outputs are averaged over `around`.
    """
    end = next(node for node in captured.graph.nodes if node.op == "output")
    wanted = [n for _, n in trees.leaves(end.args[0], fx.Node) if isinstance(captured.example(n), Tensor)]
    outputs = [output for node in wanted if (output := _output(captured, node, is_plain, around)) is not None]
    while True:
        nodes = {node for output in outputs for node in output.makers}
        tails = {node for output in outputs for node in output.tail}
        names = {_weight_name(captured, node, around) for node in nodes}
        kept = [o for o in outputs if _make_outputs_alone(captured, model, o, nodes, tails, names, around)]
        if len(kept) == len(outputs):
            break
        outputs = kept
    first = {node for node in nodes if all(output.makers.get(node, True) for output in outputs)}
    sums = {node for output in outputs for node in output.sums}
    averaged = {node for node in sums if all(output.sums.get(node, True) for output in outputs)}
    others = len(wanted) - len(outputs)
    return LastLayers(frozenset(nodes), frozenset(first), frozenset(tails), frozenset(averaged), others)


def _output(
    captured: Captured, node: fx.Node, is_plain: Callable[[fx.Node], bool], around: Group | None
) -> _Output | None:
    """What makes the output, or None if a part of it comes from elsewhere."""

    def is_maker(node: fx.Node) -> bool:
        return _weight_name(captured, node, around) is not None

    def follow(node: fx.Node, affine: bool) -> _Output | None:
        example = captured.example(node)
        if not isinstance(example, Tensor):  # numbers go along; of several tensors it is not known which
            return None if trees.leaves(example, Tensor) else _Output()
        if node.op == "placeholder":
            return _Output()
        if node.op == "call_module" and is_plain(node):
            return None
        if is_maker(node):
            return _Output({node: affine}) if affine or not looks_around(captured, node, around) else None
        inputs = [n for n in node.all_input_nodes if n.op != "get_attr"]
        before = [n for n in inputs if isinstance(captured.example(n), Tensor)]
        axis = feature_axis(captured, before[0], is_maker) if before else 1
        step = step_of(captured, node, axis)
        if step is None:
            return None
        affine = step == Step.POOLS or (affine and step == Step.AFFINE)
        may_add = affine and around is not None and is_sum(node) and example.dim() == 2 + around.dim
        found = _Output(tail={node}, sums={node: may_add} if is_sum(node) else {})
        for each in inputs:
            part = follow(each, affine) or (_Output() if may_add else None)
            if part is None:
                return None
            found = found.with_(part)
        return found

    output = follow(node, True)
    return output if output is not None and output.makers else None


def looks_around(captured: Captured, node: fx.Node, group: Group | None) -> bool:
    """Whether the node is a convolution that may average over orientations: see `PoolConv`."""
    module = captured.modules.get(str(node.target)) if node.op == "call_module" else None
    if group is None or not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) or module.groups != 1:
        return False
    if (
        len(module.kernel_size) != group.dim
        or math.prod(module.kernel_size) == 1
        or parametrize.is_parametrized(module)
    ):
        return False
    return are_centred(group, windows_for(group, module.kernel_size, module.stride, module.padding, module.dilation))


def _weight_name(captured: Captured, node: fx.Node, around: Group | None) -> str | None:
    """The name of the weight, if the node is a linear layer, a 1x1 convolution, or one that may look around."""
    if looks_around(captured, node, around):
        return f"{node.target}.weight"
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
    around: Group | None,
) -> bool:
    """Whether nothing but outputs uses what these layers make, and every use of their weights makes outputs."""
    users = [user for node in (*output.makers, *output.tail) for user in node.users]
    if any(user not in tails and user.op != "output" and not asks_for_sizes(user) for user in users):
        return False
    mine = {_weight_name(captured, node, around) for node in output.makers}
    if any(_weight_name(captured, n, around) in mine for n in captured.graph.nodes if n not in nodes):
        return False
    weights = [n for n in captured.graph.nodes if n.op == "get_attr" and str(n.target) in mine]
    if any(user not in nodes for weight in weights for user in weight.users):  # as F.conv2d(x, self.last.weight) does
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


def last_convolution(
    w: EquivariantWriter, path: str, old: nn.Module, value: TrackedValue, example: Any
) -> TrackedValue:
    """A convolution that averages over orientations, with one filter for each output and feature."""
    layer: Any = old
    value = w.whole_maps(w.maps_with_features_first(value, path), path)
    features, _ = w.known.setdefault(w.tied(path), (value.features, None))
    make_equal(features, value.features)

    def make() -> nn.Module:
        names = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        options: Any = {name: getattr(layer, name) for name in names}
        options |= {"device": layer.weight.device, "dtype": layer.weight.dtype, "bias": layer.bias is not None}
        count, outs = w.widths.of(features), layer.weight.shape[0]
        w.notes.append(f"{path}: the last layer makes the mean over orientations of what it gives")
        new: Any = PoolConv(w.group, count, outs, rotate=w.rotate, **options)
        with torch.no_grad():
            if w.init == "scratch" and layer.weight.requires_grad:
                new.weight.copy_(drawn(new.weight, layer.weight, new.weight[0].numel(), layer.weight[0].numel()))
            else:
                bank = rearranged(layer.weight.detach(), range(outs), w.widths.sources(features), 1, 1)
                mean = projected(new.weight.shape, bank, lambda t: turned_inputs(t, w.group))
                new.weight.copy_(mean * w.group.order)  # of which the layer takes the mean
            if layer.bias is not None:
                new.bias.copy_(layer.bias)
        new.weight.requires_grad_(layer.weight.requires_grad)
        return new

    node = w.layer(path, make, value.node)
    return replace(ordinary_tensor(example, node), axes=maps_of(example, channels(layer.weight.shape[0])))


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
