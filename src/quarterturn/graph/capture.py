"""The graph of a network, as `torch.fx` traces it, with the value of every node for an example input.

Tracing runs the network's Python code once. Where an example is given every step is carried out on it as well, so that
the code may ask for numbers of axes and, where it is allowed to, decide by sizes.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn.errors import ConversionError

FACTS = ("ndim", "dtype", "device", "is_cuda", "layout", "is_sparse", "requires_grad")  # nothing to do with sizes
FACT_METHODS = ("dim", "ndimension", "is_contiguous", "is_floating_point", "get_device")


class Captured:
    """A traced network: its graph, its layers by their paths, and for each node what the tracer knows."""

    def __init__(self, model: nn.Module, graph: fx.Graph, tracer: "_Tracer") -> None:
        self.model, self.graph = model, graph
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.owners: dict[fx.Node, str] = tracer.owners  # the path of the module whose code made the node
        self.is_leaf = tracer.is_leaf_module  # whether a module, by its path, is one node
        self._examples = tracer.examples

    def example(self, node: fx.Node) -> Any:
        """What the node is for the example input; None without one."""
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.model)
        return self._examples.get(node)

    def described(self, node: fx.Node) -> str:
        """A node as messages name it: the path and type of a layer, or in whose code which function is called."""
        if node.op == "call_module":
            return f"{node.target} ({type(self.modules[str(node.target)]).__name__})"
        if node.op == "output":
            return "output"
        return f"{self.owners.get(node) or 'forward'} ({getattr(node.target, '__name__', node.target)})"


def capture(
    model: nn.Module,
    is_whole: Callable[[nn.Module], bool],
    inputs: Sequence[Tensor] | None = None,
    may_decide: bool = False,
    hint: str = "",
) -> Captured:
    """Trace the network, in the mode that it is in.

    Layers of torch, and those that are `is_whole`, are one node each. With `may_decide` the network's code may decide
    by the sizes of the inputs. `hint` ends the message for code that cannot be followed.
    """
    tracer = _Tracer(is_whole, None if inputs is None else [x.clone() for x in inputs], may_decide)
    try:
        graph = tracer.trace(model)
    except (fx.proxy.TraceError, TypeError, RuntimeError, AssertionError, ValueError, AttributeError) as error:
        raise ConversionError(f"torch.fx cannot follow the network's forward: {first_line(error)}{hint}") from error
    if tracer.inputs:
        raise ConversionError(f"{len(inputs or ())} example inputs were given, and the network takes fewer")
    return Captured(model, graph, tracer)


class _Example(fx.Proxy):
    """A proxy that knows the example's value."""

    def __getattr__(self, name: str) -> Any:
        if name in FACTS and isinstance(self.value, Tensor):
            return getattr(self.value, name)
        return (
            fx.proxy.Attribute(self, name)
            if name != "shape"
            else self.tracer.create_proxy("call_function", getattr, (self, "shape"), {})
        )

    @property
    def value(self) -> Any:
        return self.tracer.examples[self.node]  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.value, int | float):
            raise TypeError("a number cannot be iterated over")
        items: Any = self
        return (items[i] for i in range(len(self.value)))

    def __bool__(self) -> bool:
        return bool(self._decided())

    def __int__(self) -> int:
        return int(self._decided())

    def __float__(self) -> float:
        return float(self._decided())

    def __index__(self) -> int:
        return operator.index(self._decided())

    def _decided(self) -> Any:
        tracer: Any = self.tracer
        if not tracer.may_decide or isinstance(self.value, Tensor):
            what = "values of tensors" if isinstance(self.value, Tensor) else "sizes"
            raise fx.proxy.TraceError(f"it decides by {what}")
        return self.value


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # buffers change, as parameters do, so they are read like these

    def __init__(self, is_whole: Callable[[nn.Module], bool], inputs: list[Tensor] | None, may_decide: bool) -> None:
        super().__init__()
        self.is_whole, self.inputs, self.may_decide = is_whole, inputs, may_decide
        self.examples: dict[fx.Node, Any] = {}
        self.owners: dict[fx.Node, str] = {}
        self.inside: list[str] = [""]
        self.running = False  # a step on the example: not to be traced

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.is_whole(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.running:
            return forward(*args, **kwargs)
        self.inside.append(self.path_of_module(m))
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self.inside.pop()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return super().proxy(node) if self.inputs is None else _Example(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
        proxy_factory_fn: Any = None,
    ) -> Any:
        result = None if self.inputs is None else self.carried_out(kind, target, args, kwargs)
        if self.inputs is not None and _is_fact(kind, target, args):
            return result
        if kind == "call_function" and target is torch._assert:
            return None
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        self.owners[proxy.node] = self.inside[-1]
        if self.inputs is not None:
            self.examples[proxy.node] = result
        return proxy

    def carried_out(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        """The step on the example."""
        args, kwargs = fx.node.map_aggregate((args, kwargs), _value)
        self.running = True
        try:
            return self.run(kind, target, args, kwargs)
        finally:
            self.running = False

    def run(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        match kind:
            case "placeholder":
                return self.inputs.pop(0) if self.inputs else (args[0] if args else None)
            case "get_attr":
                return operator.attrgetter(target)(self.root)
            case "call_module":
                return operator.attrgetter(target)(self.root)(*args, **kwargs)
            case "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            case "output":
                return args[0]
            case _:
                return target(*args, **kwargs)


def _is_fact(kind: str, target: Any, args: tuple[Any, ...]) -> bool:
    """Whether it asks for something that holds for tensors of every size."""
    return (kind == "call_method" and target in FACT_METHODS) or (target is getattr and args[1] in FACTS)


def _value(item: Any) -> Any:
    return item.value if isinstance(item, _Example) else item


def first_line(error: Exception) -> str:
    """What an error says, without what follows in further lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
