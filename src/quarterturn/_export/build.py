"""Out again: an equivariant network as an ordinary torch module, with the filters stacked once (section 4.5).

The network is traced, and every tensor that held pathways in the batch is carried as a stacked one instead, so that
both modes, and mixtures of them, end in the same network: slicing repeats features, rolling rearranges them, and both
disappear into the filters of the convolution that follows. What comes out consists of torch's own layers and functions
and needs nothing of quarterturn to run or to be unpickled. `rules` has one for each layer.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from quarterturn._export.rules import has_rule, rule_for
from quarterturn._export.values import Refusal, Value, Writer, stacked, unflattened
from quarterturn.check import TOLERANCES, in_eval_mode, largest_difference
from quarterturn.errors import ConversionError, ShapeError
from quarterturn.graph import pointwise


def to_plain(
    model: nn.Module, example: Tensor | None = None, dynamic: bool = False, fold: bool = False
) -> fx.GraphModule:
    """An ordinary torch module that does what the equivariant one does in eval mode, to rounding.

    With an `example` input and without `dynamic` the network is made for maps of that size: where a strided layer lies
    on a symmetric grid, one convolution does for all orientations. Else every strided layer takes the form that is
    right at any size. `fold=True` folds batch norms into the convolutions before them. What it does not know is
    refused, all of it at once.

    >>> from quarterturn import C4, SliceConv, Pool
    >>> net = nn.Sequential(SliceConv(C4, 1, 2, 3, rotate="filters"), nn.ReLU(), Pool(C4, rotate="filters"))
    >>> to_plain(net)(torch.zeros(1, 1, 5, 8)).shape
    torch.Size([1, 2, 3, 6])
    """
    model = _turning_filters(model)
    with in_eval_mode(model), torch.no_grad():
        try:
            graph = _Tracer().trace(model)
        except (fx.proxy.TraceError, TypeError) as error:
            raise ConversionError(
                f"torch.fx cannot follow the network's forward: {error}; write it without decisions on shapes or "
                "values, and with layers, such as quarterturn.Slice, instead of our functions"
            ) from error
        shapes = {} if example is None else _shapes(model, graph, example)
        plain = _Builder(model, graph, {} if dynamic else shapes, dynamic).build()
        if fold:
            _fold_norms(plain)
        if example is not None:
            _check_that_it_agrees(model, plain, example)
    return plain


def _turning_filters(model: nn.Module) -> nn.Module:
    """A converted network consists of layers that have both executions: turned filters are nearer to plain ones."""
    if getattr(model, "meta", {}).get("rotate") != "maps":
        return model
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if hasattr(module, "rotate"):
            vars(module)["rotate"] = "filters"
    return twin


class _Tracer(fx.Tracer):
    """Sees our layers as wholes, as it does torch's; those of converted networks alone consist of torch's functions."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        home = type(m).__module__
        ours = home.startswith("quarterturn.") and not home.startswith("quarterturn._convert.")
        return ours or super().is_leaf_module(m, module_qualified_name)


class _Builder:
    """Walks the traced network and writes the plain one, value by value."""

    def __init__(self, model: nn.Module, graph: fx.Graph, shapes: dict[str, torch.Size], dynamic: bool) -> None:
        self.modules = dict(model.named_modules())
        self.model, self.old, self.shapes = model, graph, shapes
        self.writer = Writer(dynamic)
        self.values: dict[fx.Node, Any] = {}
        self.problems: list[str] = []

    def build(self) -> fx.GraphModule:
        for node in self.old.nodes:
            value = self.value_of(node)
            shape = self.shapes.get(node.name)
            if isinstance(value, Value) and shape is not None and len(shape) > 2:
                value = replace(value, sizes=tuple(shape[2:]))
            self.values[node] = value
            if self.works_in_place(node) and isinstance(node.args[0], fx.Node):
                before = self.values[node.args[0]]  # who uses this tensor from here on sees what became of it
                self.values.update((other, value) for other, v in self.values.items() if v is before)
        if self.problems:
            raise ConversionError(
                "these parts of the network cannot be converted:\n" + "\n".join(f"- {p}" for p in self.problems)
            )
        self.writer.graph.lint()
        return fx.GraphModule(self.writer.root, self.writer.graph, "Plain").eval()

    def works_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.modules[str(node.target)], "inplace", False)) and bool(node.args)
        return bool(node.args) and (node.target in pointwise.NOT_IN_PLACE or bool(node.kwargs.get("inplace", False)))

    def value_of(self, node: fx.Node) -> Any:
        args = fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        if any(v.failed for v in _leaves([args, kwargs])):
            return Value(None, failed=True)
        try:
            match node.op:
                case "placeholder":
                    return Value(self.writer.proxy(self.writer.graph.placeholder(str(node.target))))
                case "get_attr":
                    tensor = operator.attrgetter(str(node.target))(self.model)
                    return Value(self.writer.constant(str(node.target), tensor))
                case "output":
                    self.writer.graph.output(self.output(args[0]))
                    return None
                case "call_module":
                    return self.apply(str(node.target), self.modules[str(node.target)], args, kwargs)
                case _:
                    return self.function(node, args, kwargs)
        except Refusal as why:
            self.refuse(node, str(why))
            unknown = node.op == "call_module" and not has_rule(self.modules[str(node.target)])
            return args[0] if unknown and args else Value(None, failed=True)  # so that all unknown layers are listed

    def refuse(self, node: fx.Node, why: str) -> None:
        if node.op == "call_module":
            what = f"{node.target!r} ({type(self.modules[str(node.target)]).__name__})"
        else:
            what = f"{node.name!r} ({getattr(node.target, '__name__', node.target)})"
        self.problems.append(f"{what}: {why}")

    def output(self, value: Any) -> Any:
        def finished(v: Any) -> Any:
            if isinstance(v, Value):
                if v.group is not None:
                    raise Refusal("the network ends with pathways in the batch: finish it with a Pool or a Stack")
                return unflattened(v).proxy.node
            if isinstance(v, list | tuple):
                return type(v)(map(finished, v))
            return {key: finished(item) for key, item in v.items()} if isinstance(v, dict) else v

        return finished(value)

    # --- layers and functions -----------------------------------------------------------------------------------------

    def apply(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Value:
        if len(args) != 1 or kwargs or not isinstance(args[0], Value):
            values = [v for v in [*args, *kwargs.values()] if isinstance(v, Value)]
            if all(v.group is None for v in values) and type(module).__module__.startswith("torch."):
                raise Refusal("layers with several inputs are not known")
            raise Refusal("a layer with one input is needed")
        return rule_for(module)(self.writer, path, module, args[0])

    def function(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        values = [v for v in _leaves([args, kwargs]) if isinstance(v, Value)]
        target = pointwise.NOT_IN_PLACE.get(node.target, node.target)
        if target in (torch.flatten, "flatten") and _flattens_all(args, kwargs):
            return replace(values[0], flat=True)
        if all(v.group is None for v in values):
            return self.record(node, args, kwargs, Value(None))
        if target in pointwise.AS_LAYERS:
            layer = pointwise.AS_LAYERS[target](*args[1:], **{k: v for k, v in kwargs.items() if v is not None})
            return self.apply(node.name, layer, args[:1], {})
        if (
            target in pointwise.FUNCTIONS
            or target in pointwise.METHODS
            or (target is torch.cat and _along_features(args, kwargs))
        ):
            return self.pointwise(node, args, kwargs, values)
        if target in (torch.mean, "mean") and _over_all_positions(args, kwargs, values[0]):
            return self.record(node, args, kwargs, replace(values[0], sizes=None))
        raise Refusal("this function is not known on pathways")

    def pointwise(self, node: fx.Node, args: Any, kwargs: Any, values: list[Value]) -> Value:
        """Functions that treat features alike work on stacked tensors as they are, and before a roll as after it."""
        if any(v.group is None for v in values):
            raise Refusal("it mixes pathways with an ordinary tensor")
        if len({(v.pending, v.flat) for v in values}) > 1:
            values = [stacked(self.writer, unflattened(v)) for v in values]
            known = iter(values)
            args, kwargs = _mapped([args, kwargs], lambda _: next(known))
        like = values[0]
        if node.target is torch.cat:
            features = [v.features for v in values]
            like = replace(like, features=None if None in features else sum(f for f in features if f is not None))
        return self.record(node, args, kwargs, like)

    def record(self, node: fx.Node, args: Any, kwargs: Any, like: Value) -> Any:
        """The same call on the plain network's tensors."""
        args, kwargs = _mapped([args, kwargs], lambda v: unflattened(v).proxy if v.group is None else v.proxy)
        target = pointwise.NOT_IN_PLACE.get(node.target, node.target)
        if kwargs.get("inplace"):
            kwargs = {**kwargs, "inplace": False}
        if node.op == "call_method":
            result = getattr(args[0], str(target))(*args[1:], **kwargs)
        else:
            nodes = fx.node.map_aggregate((tuple(args), kwargs), lambda a: getattr(a, "node", a))
            result = self.writer.proxy(self.writer.graph.create_node("call_function", target, *nodes))
        return replace(like, proxy=result)


# --- small questions --------------------------------------------------------------------------------------------------


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(tree, lambda v: found.append(v))
    return found


def _mapped(tree: Any, change: Callable[[Value], Any]) -> Any:
    """The arguments of a call, with every value changed."""
    if isinstance(tree, Value):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(item, change) for item in tree)
    return {key: _mapped(item, change) for key, item in tree.items()} if isinstance(tree, dict) else tree


def _option(args: Any, kwargs: Any, place: int, name: str, default: Any) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def _flattens_all(args: Any, kwargs: Any) -> bool:
    return _option(args, kwargs, 1, "start_dim", 0) == 1 and _option(args, kwargs, 2, "end_dim", -1) in (-1,)


def _along_features(args: Any, kwargs: Any) -> bool:
    return _option(args, kwargs, 1, "dim", 0) == 1


def _over_all_positions(args: Any, kwargs: Any, value: Value) -> bool:
    assert value.group is not None
    axes = _option(args, kwargs, 1, "dim", None)
    rank = 2 + value.group.dim
    return isinstance(axes, list | tuple) and sorted(a % rank for a in axes) == list(range(2, rank))


def _shapes(model: nn.Module, graph: fx.Graph, example: Tensor) -> dict[str, torch.Size]:
    """The shape of every tensor of the network for the example."""
    shapes: dict[str, torch.Size] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, Tensor):
                shapes[n.name] = result.shape
            return result

    try:
        Recorder(fx.GraphModule(model, graph)).run(example)
    except (RuntimeError, ValueError) as error:
        raise ShapeError(f"the example input {tuple(example.shape)} does not fit the network: {error}") from error
    return shapes


def _fold_norms(plain: fx.GraphModule) -> None:
    """Batch norms that follow a convolution and nothing else does go into its weights."""
    modules = dict(plain.named_modules())
    for node in list(plain.graph.nodes):
        norm = modules.get(node.target) if node.op == "call_module" else None
        source = node.args[0] if node.args else None
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) or not isinstance(source, fx.Node):
            continue
        before = modules.get(source.target) if source.op == "call_module" else None
        if isinstance(before, nn.Conv1d | nn.Conv2d | nn.Conv3d) and len(source.users) == 1:
            setattr(plain, str(source.target), fuse_conv_bn_eval(before, norm))
            node.replace_all_uses_with(source)
            plain.graph.erase_node(node)
            delattr(plain, node.target)
    plain.recompile()


def _check_that_it_agrees(model: nn.Module, plain: nn.Module, example: Tensor) -> None:
    gap, size = largest_difference(model(example), plain(example))
    if gap <= TOLERANCES.get(example.dtype, 1e-4) * size:
        return
    # a network may amplify rounding, as long as it has learnt nothing: then they agree in float64
    twins = [copy.deepcopy(net).double() for net in (model, plain)]
    gap, size = largest_difference(*(net(example.double()) for net in twins))
    if not gap <= 1e-6 * size:
        raise ConversionError(
            f"the plain network differs from the original by {gap:.3g} on outputs of size {size:.3g}; this is a fault "
            "of quarterturn, please report it"
        )
