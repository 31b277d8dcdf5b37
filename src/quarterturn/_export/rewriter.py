"""How `to_plain` rewrites the inputs, constants, layers, functions and outputs of a network."""

import copy
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn

from quarterturn import trees
from quarterturn._export.layer_rules import UNKNOWN_LAYER, is_torchs, rule_for, without_rule
from quarterturn._export.plain_tensor import PlainTensor, apply_flatten, apply_pending
from quarterturn._export.plain_writer import PlainWriter
from quarterturn._export.turned_batch import are_alike, in_turned_batch, stacked
from quarterturn.graph.capture import Captured
from quarterturn.graph.in_place import refuse_changed_views, repeat_call
from quarterturn.graph.pointwise import is_pointwise
from quarterturn.graph.refusal import Refusal
from quarterturn.graph.rewrite import Failed
from quarterturn.graph.torch_functions import AS_LAYERS, name_of, option
from quarterturn.layers.plain_part import PlainPart

CONCATENATIONS = ("cat", "concat")


class PlainRewriter:
    """Writes the plain network. Its values are `PlainTensor`; see `quarterturn.graph.rewrite`."""

    def __init__(self, captured: Captured, writer: PlainWriter) -> None:
        self.captured, self.writer = captured, writer

    def input(self, node: fx.Node) -> PlainTensor:
        proxy = self.writer.proxy(self.writer.graph.placeholder(str(node.target)))
        return self.with_sizes(node, PlainTensor(proxy))

    def constant(self, node: fx.Node) -> PlainTensor:
        constant = PlainTensor(self.writer.constant(str(node.target), self.captured.example(node)))
        return self.with_sizes(node, constant)

    def call(self, node: fx.Node, args: Any, kwargs: Any) -> PlainTensor:
        refuse_changed_views(node, self.captured.modules)
        if node.op == "call_module" and self.is_part(str(node.target)):
            out = self.part(str(node.target), args, kwargs)
        elif node.op == "call_module":
            path = str(node.target)
            out = self.layer(path, self.captured.modules[path], args, kwargs, node)
        else:
            out = self.function(node, args, kwargs)
        return self.with_sizes(node, out)

    def with_sizes(self, node: fx.Node, tensor: PlainTensor) -> PlainTensor:
        """The tensor with the sizes of the example's maps, unless the network must take any size."""
        example = self.captured.example(node)
        if not isinstance(example, Tensor):
            return tensor
        if example.dim() <= 2:
            return replace(tensor, dense=not tensor.flat)
        return tensor if self.writer.dynamic else replace(tensor, sizes=tuple(example.shape[2:]))

    def output(self, node: fx.Node, result: Any) -> None:
        def finished(_: str, tensor: PlainTensor) -> fx.Node:
            tensor = stacked(tensor)
            if tensor.group is not None:
                raise Refusal("the network ends with pathways in the batch: finish it with a Pool or a Stack")
            found: fx.Node = apply_flatten(tensor).proxy.node
            return found

        self.writer.graph.output(trees.mapped(result, PlainTensor, finished))

    def stand_in(self, node: fx.Node, args: Any) -> Any:
        """After an unsupported layer, go on with its input, so that later layers are checked too."""
        unknown = node.op == "call_module" and rule_for(self.captured.modules[str(node.target)]) is None
        return args[0] if unknown and args else Failed()

    def refused_anyway(self, node: fx.Node) -> str | None:
        if node.op != "call_module":
            return None
        if self.is_part(str(node.target)):
            return None
        module = self.captured.modules[str(node.target)]
        return None if rule_for(module) or is_torchs(module) else UNKNOWN_LAYER

    # --- layers and functions -----------------------------------------------------------------------------------------

    def is_part(self, path: str) -> bool:
        """Whether it is a part of an ordinary network, which runs in every pathway as it is."""
        outer, _, name = path.rpartition(".")
        return name == "part" and isinstance(self.captured.modules[outer], PlainPart)

    def part(self, path: str, args: Any, kwargs: Any) -> PlainTensor:
        """The same call of the part for each pathway: one layer, called several times."""
        w = self.writer
        name = w.parts.setdefault(path, w.free_name(path))
        if not hasattr(w.root, name):
            w.root.add_module(name, copy.deepcopy(self.captured.modules[path]))
        args, kwargs = trees.mapped((args, kwargs), PlainTensor, lambda _, tensor: apply_flatten(tensor).proxy.node)
        return PlainTensor(w.proxy(w.graph.call_module(name, args, kwargs)))

    def layer(self, path: str, module: nn.Module, args: Any, kwargs: Any, node: fx.Node | None = None) -> PlainTensor:
        if len(args) != 1 or kwargs or not isinstance(args[0], PlainTensor):
            raise Refusal("layers with several inputs are not supported")
        found = in_turned_batch(self.writer, self.captured, node, path, module, args[0])
        rule = rule_for(module) or without_rule
        return rule(self.writer, path, module, stacked(args[0])) if found is None else found

    def function(self, node: fx.Node, args: Any, kwargs: Any) -> PlainTensor:
        tensors = [tensor for _, tensor in trees.leaves((args, kwargs), PlainTensor)]
        name = name_of(node.target)
        by_number = is_pointwise(node.target) or name in CONCATENATIONS
        if not are_alike(tensors) or not (by_number or tensors[0].pathways):
            args, kwargs = trees.mapped((args, kwargs), PlainTensor, lambda _, tensor: stacked(tensor))
            tensors = [stacked(tensor) for tensor in tensors]
        if name == "flatten" and _flattens_all(args, kwargs):
            return replace(tensors[0], flat=True)
        if all(tensor.group is None for tensor in tensors):
            return self.same_call(node, args, kwargs, PlainTensor(None))
        if node.target in AS_LAYERS:
            options = {key: given for key, given in kwargs.items() if given is not None}
            return self.layer(node.name, AS_LAYERS[node.target](*args[1:], **options), args[:1], {})
        if is_pointwise(node.target) or (name in CONCATENATIONS and option(args, kwargs, 1, "dim", 0) == 1):
            return self.pointwise(node, args, kwargs, tensors)
        if name == "mean" and _over_all_positions(args, kwargs, tensors[0]):
            return self.same_call(node, args, kwargs, replace(tensors[0], sizes=None))
        raise Refusal("this function is not supported on pathways")

    def pointwise(self, node: fx.Node, args: Any, kwargs: Any, tensors: list[PlainTensor]) -> PlainTensor:
        """Pointwise functions stay the same on stacked tensors, and may be applied before a pending roll."""
        if any(tensor.group is None for tensor in tensors):
            raise Refusal("it mixes pathways with a plain tensor")
        if len({(tensor.pending, tensor.flat) for tensor in tensors}) > 1:
            tensors = [apply_pending(self.writer, apply_flatten(tensor)) for tensor in tensors]
            known = iter(tensors)
            args, kwargs = trees.mapped((args, kwargs), PlainTensor, lambda *_: next(known))
        like = tensors[0]
        if name_of(node.target) in CONCATENATIONS:
            features = [tensor.features for tensor in tensors]
            like = replace(like, features=None if None in features else sum(f for f in features if f is not None))
        return self.same_call(node, args, kwargs, like)

    def same_call(self, node: fx.Node, args: Any, kwargs: Any, like: PlainTensor) -> PlainTensor:
        """Repeat the call on the plain network's tensors; the result has the properties of `like`."""

        def found(_: str, tensor: PlainTensor) -> fx.Node:
            ready: fx.Node = (apply_flatten(tensor) if tensor.group is None else tensor).proxy.node
            return ready

        args, kwargs = trees.mapped((args, kwargs), PlainTensor, found)
        return replace(like, proxy=self.writer.proxy(repeat_call(self.writer.graph, node, args, kwargs)))


def _flattens_all(args: Any, kwargs: Any) -> bool:
    return option(args, kwargs, 1, "start_dim", 0) == 1 and option(args, kwargs, 2, "end_dim", -1) == -1


def _over_all_positions(args: Any, kwargs: Any, tensor: PlainTensor) -> bool:
    assert tensor.group is not None
    axes = option(args, kwargs, 1, "dim")
    rank = 2 + tensor.group.dim
    return isinstance(axes, list | tuple) and sorted(a % rank for a in axes) == list(range(2, rank))
