"""Any convolutional network in one call: its graph is read, and written again with filters shared over orientations.

Every tensor of the old network that depends on positions is followed under its old axes (`values`). `modules` has a
rule for each layer, `functions` one for each function. What is not known is refused, all of it at once.
"""

import copy
import inspect
import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn._convert import rules
from quarterturn._convert.calls import in_new, is_pointwise, leaves, mapped, name_of
from quarterturn._convert.capture import Captured, capture
from quarterturn._convert.functions import function
from quarterturn._convert.report import Conversion, cost
from quarterturn._convert.values import Form, Value, failed, maps_of, number, plain
from quarterturn._convert.weights import Init
from quarterturn._convert.widths import Keep, Refusal, Widths, channels
from quarterturn._convert.writer import Writer
from quarterturn.check import TOLERANCES, equivariance_error, in_eval_mode
from quarterturn.errors import ConversionError, OptionError, QuarterturnError, unknown
from quarterturn.filters import Rotate, check_options
from quarterturn.graph import pointwise
from quarterturn.groups import Group
from quarterturn.ops import PoolFunction, pool_function

logger = logging.getLogger(__name__)
VIEWS = {
    "getitem",
    "split",
    "chunk",
    "narrow",
    "view",
    "reshape",
    "permute",
    "transpose",
    "flatten",
    "unbind",
    "squeeze",
}


class Converted(fx.GraphModule):
    """A converted network: torch's layers and ours, under the old names. `conversion` says what it costs."""

    @property
    def conversion(self) -> Conversion:
        found: Conversion = self.meta["conversion"]
        return found

    def __reduce__(self) -> Any:
        return _rebuilt, (super().__reduce__(), self.meta)


def _rebuilt(reduced: Any, meta: dict[str, Any]) -> Converted:
    """A converted network from a file: torch keeps its code and layers, and we what it is."""
    make, arguments, *_ = reduced
    plain_module = make(*arguments)
    converted = Converted(plain_module, plain_module.graph, "Converted")
    converted.meta.update(meta)
    return converted.train(plain_module.training)


def convert(
    model: nn.Module,
    group: Group,
    rotate: Rotate = "filters",
    keep: Keep = "width",
    pool: PoolFunction = "mean",
    until: str | None = None,
    init: Init = "scratch",
    example: Tensor | tuple[Tensor, ...] | None = None,
) -> Converted:
    """The same network with every convolution sharing its filters over orientations: exactly equivariant.

    What goes in and out stays: vectors come out invariant, maps turn with the input. `keep="width"` keeps the number of
    feature maps and divides the parameters by about the order G of the group, `keep="parameters"` keeps those and has
    about sqrt(G) times the maps. Layers from `until` on stay as they are, on stacked orientations (section 4.4). With
    `init="scratch"` weights are drawn anew, as strong as the old ones; "pretrained" projects the old ones. An `example`
    input is needed where the network's code looks at the sizes of its maps. The model itself is not changed.

    >>> from quarterturn import C4
    >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    >>> convert(net, C4)(torch.zeros(2, 3, 20, 30)).shape
    torch.Size([2, 10])
    """
    _check_options(group, rotate, keep, pool, init)
    captured = capture(model, group.dim, example)
    writer = Writer(group, rotate, Widths(group.order, keep), init, pool, model)
    builder = _Builder(captured, writer, until)
    root, graph = builder.build()
    converted = Converted(root, graph, "Converted")
    converted.graph.eliminate_dead_code()
    converted.delete_all_unused_submodules()
    converted.graph.lint()
    converted.recompile()
    converted.train(model.training)
    converted.meta["rotate"] = rotate
    inputs = [n for n in captured.graph.nodes if n.op == "placeholder" and isinstance(captured.examples[n], Tensor)]
    examples = tuple(captured.examples[n] for n in inputs)
    _check_result(converted, group, examples, captured, exact=until is None)
    before, after = (cost(net, examples) for net in (model, converted))
    converted.meta["conversion"] = Conversion(group, keep, before, after, tuple(dict.fromkeys(writer.notes)))
    logger.info("converted to %s:\n%s", group.name, converted.conversion)
    return converted


def _check_options(group: Group, rotate: str, keep: str, pool: PoolFunction, init: str) -> None:
    check_options(group, rotate, spatial=True)
    pool_function(pool, "scalar")
    if keep not in ("width", "parameters"):
        raise unknown("value of keep", keep, ("width", "parameters"))
    if init not in ("scratch", "pretrained"):
        raise unknown("value of init", init, ("scratch", "pretrained"))
    if init == "pretrained" and keep == "parameters":
        raise OptionError('init="pretrained" needs keep="width": wider layers have no old weights to begin with')


@dataclass
class _Builder:
    """Walks the graph of the old network and writes the new one."""

    captured: Captured
    writer: Writer
    until: str | None

    def __post_init__(self) -> None:
        self.values: dict[fx.Node, Any] = {}
        self.problems: list[str] = []
        self.rest = False
        names = [name for name, _ in self.captured.model.named_modules()]
        if self.until is not None and self.until not in names:
            raise unknown("layer", self.until, [name for name in names if name])

    def build(self) -> tuple[nn.Module, fx.Graph]:
        for node in self.captured.graph.nodes:
            self.rest = self.rest or self.is_until(node)
            value = self.value_of(node)
            self.values[node] = value
            if self.works_in_place(node) and isinstance(node.args[0], fx.Node):
                before = self.values[node.args[0]]  # who uses this tensor from here on sees what became of it
                self.values.update((other, value) for other, v in self.values.items() if v is before)
        if not self.problems and self.until is not None and not self.rest:
            self.problems.append(f"{self.until!r} is not used by the network's forward")
        if self.problems:
            raise ConversionError(
                f"these parts of the network cannot be converted to {self.writer.group.name} "
                "(wrap() takes every network):\n" + "\n".join(f"- {problem}" for problem in self.problems)
            )
        try:
            return self.writer.finish()
        except QuarterturnError as error:
            raise ConversionError(f"the converted network cannot be built: {error}") from error

    def is_until(self, node: fx.Node) -> bool:
        owner = str(node.target) if node.op == "call_module" else self.captured.owners.get(node, "")
        return self.until is not None and f"{owner}.".startswith(f"{self.until}.")

    def works_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.captured.modules[str(node.target)], "inplace", False)) and bool(node.args)
        return bool(node.args) and (node.target in pointwise.NOT_IN_PLACE or bool(node.kwargs.get("inplace", False)))

    def reaches_further(self, node: fx.Node) -> bool:
        """Whether what works in place changes, through a view, a tensor that is still to be used."""
        before, order = node.args[0], {n: i for i, n in enumerate(self.captured.graph.nodes)}
        while isinstance(before, fx.Node) and name_of(before.target) in VIEWS:
            before = before.args[0]
            if isinstance(before, fx.Node) and any(order[user] > order[node] for user in before.users):
                return True
        return False

    def ends(self, node: fx.Node) -> bool:
        """Whether what the node makes goes to the output, and nowhere else, number by number."""
        return all(user.op == "output" or (is_pointwise(user.target) and self.ends(user)) for user in node.users)

    def value_of(self, node: fx.Node) -> Any:
        args = fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        example = self.captured.examples.get(node)
        if node.op == "get_attr":
            example = operator.attrgetter(str(node.target))(self.captured.model)
        if any(v.kind == "failed" for v in leaves([args, kwargs])):
            self.list_unknown(node)
            return self.stand_in(example)
        try:
            if not self.rest and self.works_in_place(node) and self.reaches_further(node):
                raise Refusal("it works in place on a part of a tensor that is used as a whole afterwards")
            match node.op:
                case "placeholder":
                    return self.placeholder(node, example)
                case "get_attr":
                    return self.constant(str(node.target), example)
                case "output":
                    self.writer.graph.output(mapped(args[0], lambda v: self.finished(node, v)))
                    return None
                case _ if self.rest:
                    return self.kept(node, args, kwargs, example)
                case "call_module":
                    return self.layer(node, str(node.target), args, kwargs, example)
                case _:
                    return self.function(node, args, kwargs, example)
        except (Refusal, QuarterturnError) as why:
            self.refuse(node, str(why))
            return self.stand_in(example)

    def stand_in(self, example: Any) -> Value:
        """Something to go on with after a refusal, so that all that stands in the way is listed."""
        rank = example.dim() if isinstance(example, Tensor) else 0
        if self.rest or rank not in (2, 2 + self.writer.group.dim):
            return failed()
        node = self.writer.graph.placeholder("refused")
        form: Form = "dense" if rank == 2 else "maps"
        return Value("oriented", node, example, maps_of(example, channels(example.shape[1])), form)

    def placeholder(self, node: fx.Node, example: Any) -> Value:
        default = node.args[0] if node.args else inspect.Signature.empty
        new = self.writer.graph.placeholder(str(node.target), default_value=default)
        return plain(example, new) if isinstance(example, Tensor) else number(example, new)

    def constant(self, path: str, example: Any) -> Value:
        return Value("constant", lambda: self.writer.constant(path), example, source=path)

    def layer(self, node: fx.Node, path: str, args: Any, kwargs: Any, example: Any) -> Any:
        module = self.captured.modules[path]
        if len(args) != 1 or kwargs or not isinstance(args[0], Value):
            raise Refusal("layers with several inputs are not known")
        value = args[0]
        rule = rules.rule_for(module)
        if value.kind == "plain" and (len(value.shape) <= 2 or isinstance(module, pointwise.LAYERS)):
            return rules.ordinary(self.writer, path, module, value, example)
        if rule is None:
            raise Refusal("this layer is not known")
        if rule is rules.softmax and value.kind == "oriented" and self.ends(node):
            pooled = self.writer.pooled(value, path)
            return rules.ordinary(self.writer, path, module, pooled, example)
        return rule(self.writer, path, module, value, example)

    def function(self, node: fx.Node, args: Any, kwargs: Any, example: Any) -> Any:
        if getattr(node.target, "__name__", "") == "getitem" and not isinstance(args[0], Value):
            return args[0][_plain_index(args[1])]
        path = f"{self.captured.owners.get(node, '')}.{node.name}".strip(".")
        return function(self.writer, node, path, args, kwargs, example, self.ends(node))

    def kept(self, node: fx.Node, args: Any, kwargs: Any, example: Any) -> Any:
        """Beyond `until` the network stays as it is."""
        w = self.writer
        if getattr(node.target, "__name__", "") == "getitem" and not isinstance(args[0], Value):
            return args[0][_plain_index(args[1])]

        def ready(value: Value) -> Any:
            if value.kind == "oriented":
                return w.stacked(value, "until").node
            return in_new(value)

        old, named = mapped([args, kwargs], ready)
        if node.op == "call_module":
            path = str(node.target)
            module = self.captured.modules[path]
            new = w.layer(path, lambda: copy.deepcopy(module), *old)
            new.kwargs = named
        else:
            new = w.graph.create_node(node.op, node.target, tuple(old), named)
        return plain(example, new) if isinstance(example, Tensor) else number(example, new)

    def finished(self, node: fx.Node, value: Value) -> Any:
        if value.kind == "oriented":
            return self.writer.pooled(value, "output").node
        return in_new(value)

    def refuse(self, node: fx.Node, why: str) -> None:
        if node.op == "call_module":
            what = f"{node.target} ({type(self.captured.modules[str(node.target)]).__name__})"
        else:
            owner = self.captured.owners.get(node, "")
            name = getattr(node.target, "__name__", node.target)
            what = f"{owner or 'forward'} ({name})" if node.op != "output" else "output"
        if (problem := f"{what}: {why}") not in self.problems:
            self.problems.append(problem)

    def list_unknown(self, node: fx.Node) -> None:
        """Layers that are not known are listed also where nothing reaches them any more."""
        if node.op == "call_module" and not self.rest:
            module = self.captured.modules[str(node.target)]
            if rules.rule_for(module) is None:
                self.refuse(node, "this layer is not known")


def _plain_index(index: Any) -> Any:
    return index.example if isinstance(index, Value) else index


def _check_result(
    converted: nn.Module, group: Group, examples: Sequence[Tensor], captured: Captured, exact: bool
) -> None:
    """Shapes as before, and turned inputs give what they must: the proof, on the example."""
    output = next(n for n in captured.graph.nodes if n.op == "output")
    old = fx.node.map_arg(output.args[0], lambda n: captured.examples[n])
    with in_eval_mode(converted), torch.no_grad():
        try:
            new = converted(*examples)
        except (QuarterturnError, RuntimeError) as error:
            raise ConversionError(f"the converted network does not take the example: {error}") from error
    before, after = ([tuple(t.shape) for t in _tensors(tree)] for tree in (old, new))
    if before != after:
        raise ConversionError(
            f"the converted network gives {after} where the old one gave {before}: a fault of quarterturn, report it"
        )
    turnable = [x for x in examples if x.dim() == 2 + group.dim]
    if not exact or len(turnable) != len(examples):
        return
    found = equivariance_error(converted, group, tuple(examples))
    if found.relative[found.worst] <= TOLERANCES.get(examples[0].dtype, 1e-4):
        return
    # a network may amplify rounding, as long as it has learnt nothing: then it is exact in float64
    found = equivariance_error(copy.deepcopy(converted).double(), group, tuple(x.double() for x in examples))
    if not found.relative[found.worst] <= 1e-6:
        raise ConversionError(
            f"the converted network is not equivariant: element {group.elements[found.worst]} gives an error of "
            f"{found.relative[found.worst]:.3g} of the largest output; a fault of quarterturn, please report it"
        )


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    torch.utils._pytree.tree_map_only(Tensor, found.append, tree)
    return found
