"""How `convert` rewrites a network: what becomes of inputs, constants, layers, functions and outputs."""

import inspect
import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, fx

from quarterturn import trees
from quarterturn._convert.axes import Axis, Blocks, maps_of
from quarterturn._convert.block_moves import chain_of_blocks, rearranged
from quarterturn._convert.convolution_rules import check_parametrized
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.frame_rules import in_own_frame, rule_in_frames, sees_maps
from quarterturn._convert.function_calls import asks_for_sizes, node_of
from quarterturn._convert.function_rules import value_of_call
from quarterturn._convert.heads import (
    Head,
    LastLayers,
    last_convolution,
    last_layer,
    last_layers,
    looks_around,
    sees_positions,
)
from quarterturn._convert.layer_rules import copied_layer, layer_on_constant, rule_for, softmax
from quarterturn._convert.plain_parts import number_as_before, plain_part
from quarterturn._convert.tail_steps import ends
from quarterturn._convert.token_rules import is_learnt_token, learnt_tokens
from quarterturn._convert.tracked_value import Form, TrackedValue, number, ordinary_tensor, values_in
from quarterturn._convert.widths import channels
from quarterturn.errors import ConversionError
from quarterturn.graph import pointwise
from quarterturn.graph.capture import Captured
from quarterturn.graph.in_place import refuse_changed_views
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.rewrite import Failed
from quarterturn.graph.torch_functions import PERMUTATIONS, name_of, option, permutation
from quarterturn.graph.writing import copied_module

UNKNOWN_LAYER = "this layer is not known"
Output = Literal["pooled", "stacked"]


class EquivariantRewriter:
    """Writes the equivariant network. Its values are `TrackedValue`; see `quarterturn.graph.rewrite`."""

    def __init__(
        self,
        captured: Captured,
        writer: EquivariantWriter,
        until: str | None,
        plain: Collection[str] = (),
        output: Output = "pooled",
        head: Head = "pool",
        framed: Collection[str] = (),
    ) -> None:
        self.captured, self.writer, self.plain, self.output_kind = captured, writer, plain, output
        self.head, self.framed = head, framed
        self.whole: dict[int, tuple[TrackedValue, TrackedValue]] = {}  # values that have left their own frames
        self.moved: dict[fx.Node, TrackedValue] = {}  # the values of chains that move blocks
        self.copied: set[str] = set()  # layers from `until` on
        self.unchanged = frozenset(_nodes_from(captured, until))  # from `until` on
        pools = output == "pooled" and not self.unchanged
        around = writer.group if head in ("auto", "pool") and writer.pool == "mean" else None
        self.last = last_layers(captured, writer.model, self.is_plain, around) if pools else LastLayers()

    def input(self, node: fx.Node) -> TrackedValue:
        default = node.args[0] if node.args else inspect.Signature.empty
        new = self.writer.graph.placeholder(str(node.target), default_value=default)
        return _unoriented(self.captured.example(node), new)

    def constant(self, node: fx.Node) -> TrackedValue:
        path = str(node.target)
        example = self.captured.example(node)
        return TrackedValue("constant", lambda: self.writer.constant(path), example, source=path, names=(path,))

    def call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        self.writer.own = self.is_framed(node)
        value = self.in_frames(node, args, kwargs) if self.writer.own else self.in_one_frame(node, args, kwargs)
        if isinstance(value, TrackedValue) and value.kind == "oriented" and value.form != "in_batch":
            self.writer.like = value.node
        return value

    def is_framed(self, node: fx.Node) -> bool:
        """Whether the node belongs to a module whose code runs in each orientation's own frame."""
        part = self.captured.part(node)
        return any(f"{part}.".startswith(f"{path}.") for path in self.framed)

    def in_one_frame(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The value of a node whose arguments are in the input's frame; sizes are the same everywhere."""
        if asks_for_sizes(node):
            return self.value(node, args, kwargs)
        return self.value(node, *trees.mapped((args, kwargs), TrackedValue, lambda _, v: self.left_frames(v)))

    def in_frames(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The value of a node in each orientation's own frame, unless it can be had without."""
        if any(v.is_framed for v in values_in([args, kwargs])) and not sees_maps(node) and not asks_for_sizes(node):
            return self.in_own_frames(node, args, kwargs)
        try:
            return self.in_one_frame(node, args, kwargs)
        except Refusal as refusal:
            if self.is_plain(node):
                raise
            try:
                return self.in_own_frames(node, args, kwargs)
            except Refusal:
                raise refusal from None

    def in_own_frames(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The value of a node all of whose arguments are in their own frames."""
        path = self.path_of(node)
        own = trees.mapped((args, kwargs), TrackedValue, lambda _, v: in_own_frame(self.writer, path, v))
        module = self.captured.modules.get(str(node.target)) if node.op == "call_module" else None
        rule = rule_in_frames(module, own[0])
        if rule is not None:
            return rule(self.writer, str(node.target), module, own[0][0], self.captured.example(node))
        return self.value(node, *own)

    def left_frames(self, value: TrackedValue) -> TrackedValue:
        """The value in the input's frame; each is turned once."""
        if not value.is_framed:
            return value
        if id(value) not in self.whole:
            self.whole[id(value)] = (value, self.writer.in_network_layout(value, "frames"))
        return self.whole[id(value)][1]

    def value(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.target is operator.getitem and not isinstance(args[0], TrackedValue):  # from several values
            return args[0][args[1].example if isinstance(args[1], TrackedValue) else args[1]]
        if node.target is getattr and not isinstance(args[0], TrackedValue):
            return _attribute(self.captured.example(node.all_input_nodes[0]), args[0], args[1])
        if isinstance(node.target, type) and hasattr(node.target, "_fields"):
            return node.target(*args)
        if node in self.last.sums and {v.kind for v in values_in(args)} >= {"ordinary", "oriented"}:
            pooled = self.writer.pooled
            args = trees.mapped(
                args, TrackedValue, lambda _, v: pooled(v, self.path_of(node)) if v.kind == "oriented" else v
            )
        if self.is_behind_head(node, args, kwargs):
            return self.behind_head(node, args, kwargs)
        if node in self.unchanged:
            return self.unchanged_call(node, args, kwargs)
        refuse_changed_views(node, self.captured.modules)
        if node in self.moved or self.moves_blocks(node, args):
            return self.moved[node]
        example = self.captured.example(node)
        if node.op == "call_module" and self.is_plain(node):
            return plain_part(self.writer, self.captured, node, args, kwargs)
        if self.is_head(node, args):
            return self.last_layer(node, args, kwargs, example)
        if node.op == "call_module":
            return self.layer(node, args, kwargs, example)
        return value_of_call(self.writer, node, self.path_of(node), args, kwargs, example, ends(node))

    def moves_blocks(self, node: fx.Node, args: Any) -> bool:
        """Whether the call begins a chain that moves blocks of positions to features, or back: it becomes one layer."""
        if not args or not isinstance(args[0], TrackedValue):
            return False
        found = chain_of_blocks(self.writer, self.captured, node, args[0])
        if found is None:
            return False
        *between, end = found.chain
        self.moved.update(dict.fromkeys(between, number(None)))
        self.moved[end] = rearranged(self.writer, self.path_of(node), found, args[0], self.captured.example(end))
        return True

    def path_of(self, node: fx.Node) -> str:
        """Where a function is called, as a path for layers that stand for it."""
        return f"{self.captured.owners.get(node, '')}.{node.name}".strip(".")

    def is_behind_head(self, node: fx.Node, args: Any, kwargs: Any) -> bool:
        """Whether the call treats what last layers made, without orientations: it stays as it is."""
        values = values_in([args, kwargs])
        return node in self.last.tails and all(v.kind != "oriented" and v.node is not None for v in values)

    def behind_head(self, node: fx.Node, args: Any, kwargs: Any) -> TrackedValue:
        """The same call, and what its axes hold, where these are the same ones."""
        new, before = self.unchanged_call(node, args, kwargs), args[0] if args else None
        if not isinstance(before, TrackedValue) or before.kind != "ordinary":
            return new
        axes: tuple[Axis, ...] = before.axes if new.example.shape == before.example.shape else ()
        if node.op != "call_module" and name_of(node.target) in PERMUTATIONS and before.axes:
            order = permutation(str(name_of(node.target)), len(before.axes), node.args[1:], node.kwargs)
            axes = tuple(before.axes[i] for i in order)
        return replace(new, axes=axes)

    def is_head(self, node: fx.Node, args: Any) -> bool:
        """Whether orientations end before this layer: with head="pool" only where that makes no difference."""
        if node not in self.last.nodes or args[0].kind != "oriented" or sees_positions(args[0]):
            return False
        first = self.head_of(args[0]) if not looks_around(self.captured, node, self.writer.group) else "pool"
        return first != "pool" or (self.writer.pool == "mean" and node in self.last.mean_first)

    def head_of(self, value: TrackedValue) -> Head:
        """What the last layer sees. Invariants of whole maps cost time and gain nothing that was measured."""
        if self.head != "auto":
            return self.head
        return "pool" if any(position.size > 1 for position in value.positions) else "invariants"

    def last_layer(self, node: fx.Node, args: Any, kwargs: Any, example: Any) -> TrackedValue:
        if looks_around(self.captured, node, self.writer.group):
            path = str(node.target)
            return last_convolution(self.writer, path, self.captured.modules[path], args[0], example)
        if node.op == "call_module":
            path, layer = str(node.target), self.captured.modules[str(node.target)]
            check_parametrized(layer)
            weight, bias = layer.weight, layer.bias
        else:
            given = option(args, kwargs, 1, "weight"), option(args, kwargs, 2, "bias")
            path = given[0].source.removesuffix(".weight")
            weight, bias = (None if value is None else value.example for value in given)
        return last_layer(self.writer, self.head_of(args[0]), path, weight, bias, args[0], example)

    def is_plain(self, node: fx.Node) -> bool:
        """Whether the node calls a module that is not followed."""
        module = self.captured.modules.get(str(node.target))
        return any(module is self.captured.modules[path] for path in self.plain)

    def layer(self, node: fx.Node, args: Any, kwargs: Any, example: Any) -> TrackedValue:
        if len(args) != 1 or kwargs or not isinstance(args[0], TrackedValue):
            raise Refusal("layers with several inputs are not known")
        path, value = str(node.target), args[0]
        module = self.captured.modules[path]
        rule = rule_for(module)
        if value.kind == "constant" and is_learnt_token(self.writer, value):
            value = learnt_tokens(self.writer, value)
        if value.kind == "constant":
            return layer_on_constant(self.writer, path, module, value, example)
        if value.kind == "ordinary" and (len(value.shape) <= 2 or isinstance(module, pointwise.LAYERS)):
            return copied_layer(self.writer, path, module, value, example)
        if rule is None:
            raise Refusal(UNKNOWN_LAYER)
        if rule is softmax and value.kind == "oriented" and ends(node):
            return copied_layer(self.writer, path, module, self.writer.pooled(value, path), example)
        return rule(self.writer, path, module, value, example)

    def unchanged_call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The same layer or function on the stacked orientations."""
        w = self.writer
        if asks_for_sizes(node) and args[0].kind == "constant":  # nothing else of it is needed
            example = self.captured.example(node)
            return number(example, example) if isinstance(example, int) else tuple(number(n, n) for n in example)

        def found(_: str, value: TrackedValue) -> Any:
            if value.kind == "number" and not isinstance(value.node, fx.Node):
                return number_as_before(value, self.captured)
            return w.orientations_as_channels(value, "until").node if value.kind == "oriented" else node_of(value)

        old, named = trees.mapped((args, kwargs), TrackedValue, found)
        path = str(node.target)
        if node.op == "call_module":
            if path in w.makers and path not in self.copied:
                raise Refusal("it is called before until and after it, and cannot be converted and stay as it is")
            self.copied.add(path)
            module = self.captured.modules[path]
            new = w.layer(path, lambda: copied_module(module), *old)
            new.kwargs = named
        else:
            new = w.graph.create_node(node.op, node.target, old, named)
        return _unoriented(self.captured.example(node), new)

    def output(self, node: fx.Node, result: Any) -> None:
        if self.head not in ("auto", "pool") and self.last.other_outputs:
            self.writer.notes.append(
                f"{self.last.other_outputs} outputs have no last layer, and are pooled as they are"
            )

        def found(path: str, value: TrackedValue) -> Any:
            value = self.left_frames(value)
            if value.kind != "oriented":
                if value.axes:  # behind a last layer
                    self.writer.outputs[path] = value.axes
                return node_of(value)
            if value.has_each_axis_once() and not any(isinstance(c, Blocks) for c in value.components):
                self.writer.outputs[path] = value.axes
            make = self.writer.pooled if self.output_kind == "pooled" else self.writer.stacked
            return make(value, "output").node

        self.writer.graph.output(trees.mapped(result, TrackedValue, found))

    def stand_in(self, node: fx.Node, args: Any) -> TrackedValue | Failed:
        """A tensor with orientations of the right shape, where one can be told from the example."""
        example = self.captured.example(node)
        rank = example.dim() if isinstance(example, Tensor) else 0
        if node in self.unchanged or rank not in (2, 2 + self.writer.group.dim):
            return Failed()
        new = self.writer.graph.placeholder("refused")
        form: Form = "dense" if rank == 2 else "maps"
        return TrackedValue("oriented", new, example, maps_of(example, channels(example.shape[1])), form)

    def refused_anyway(self, node: fx.Node) -> str | None:
        if node.op != "call_module" or node in self.unchanged or self.is_plain(node):
            return None
        return None if rule_for(self.captured.modules[str(node.target)]) else UNKNOWN_LAYER


def _nodes_from(captured: Captured, until: str | None) -> Sequence[fx.Node]:
    """The nodes from the first on that belongs to this layer."""
    if until is None:
        return []
    nodes = list(captured.graph.nodes)
    for i, node in enumerate(nodes):
        owner = str(node.target) if node.op == "call_module" else captured.owners.get(node, "")
        if f"{owner}.".startswith(f"{until}."):
            return nodes[i:]
    raise ConversionError(f"until={until!r} is not used by the network's forward: name a layer that is")


def _attribute(example: Any, values: Any, name: str) -> Any:
    """One of several values, by its name; in a tuple whose parts have names, such as that of `max`, by its place."""
    if isinstance(example, tuple):
        return next(value for value, part in zip(values, example, strict=True) if part is getattr(example, name))
    return getattr(values, name)


def _unoriented(example: Any, node: fx.Node) -> TrackedValue:
    return ordinary_tensor(example, node) if isinstance(example, Tensor) else number(example, node)
