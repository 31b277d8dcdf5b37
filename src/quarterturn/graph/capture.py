"""The graph of a network, as `torch.fx` traces it, with the value of every node for an example input.

Tracing runs the network's Python code once. Where an example is given every step is carried out on it as well, so that
the code may ask for numbers of axes and, where it is allowed to, decide by sizes.
"""

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn

from quarterturn.errors import ConversionError
from quarterturn.graph.refusal import RefusedParts
from quarterturn.graph.written_out import FOLLOWED, WRITTEN_OUT, with_part

OF_SIZES = ("shape", "nbytes")  # what else a tensor says of itself holds for every size
# Attributes of tensors of real numbers that are tensors, as the methods that give the same.
VIEWS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("mT", "mH"), lambda x: x.transpose(-2, -1)),
    **dict.fromkeys(("T", "H"), lambda x: x.permute(*reversed(range(x.dim())))),
    "data": lambda x: x.detach(),
    "real": lambda x: x,
}
# Methods that give a tensor itself another shape: the example of what it was before keeps its own.
RESHAPING = {f"{name}_": name for name in ("unsqueeze", "squeeze", "transpose", "t")}
NEW_TENSOR = "makes a tensor or an array of the values of another, as torch.tensor(x) and numpy.asarray(x) do"
FACT_METHODS = (
    "dim", "ndimension", "is_contiguous", "is_floating_point", "is_complex", "is_signed", "element_size", "get_device",
)  # fmt: skip
FACT_FUNCTIONS = (torch.is_floating_point, torch.is_complex)


class Captured:
    """A traced network: its graph, its layers by their paths, and for each node what the tracer knows."""

    def __init__(self, model: nn.Module, graph: fx.Graph, tracer: "_Tracer") -> None:
        self.model, self.graph = model, graph
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.owners: dict[fx.Node, str] = tracer.owners  # the path of the module whose code made the node
        self.is_leaf = tracer.is_leaf_module  # whether a module, by its path, is one node
        self.callers: dict[str, str] = tracer.callers  # in the code of which module each one is called
        self.changing: set[fx.Node] = tracer.changing  # calls of layers that changed what they were given
        self.outputs = [(stack, fx.node.map_aggregate(tree, _value)) for stack, tree in tracer.outputs]
        self._examples = tracer.examples

    def example(self, node: fx.Node) -> Any:
        """What the node is for the example input; None without one."""
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.model)
        return self._examples.get(node)

    def part(self, node: fx.Node) -> str:
        """The path of the innermost module that a node belongs to: the layer itself, or whose code makes it."""
        if node.op == "output":  # whoever made what is returned
            return next(map(self.part, node.all_input_nodes), "")
        return str(node.target) if node.op == "call_module" else self.owners.get(node, "")

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
    write_out: bool = False,
) -> Captured:
    """Trace the network, in the mode that it is in.

    Layers of torch, and those that are `is_whole`, are one node each; with `write_out`, those that are made of other
    layers are not. With `may_decide` the network's code may decide by the sizes of the inputs. `hint` ends the message
    for code that cannot be followed.
    """
    tracer = _Tracer(is_whole, None if inputs is None else [x.clone() for x in inputs], may_decide, write_out)
    try:
        with _without_stand_ins(model), _types_of_examples():
            graph = tracer.trace(model)
    except ConversionError:
        raise
    except Exception as error:  # the network's own code runs here
        if inputs is not None:
            _check_that_it_runs(model, inputs)
        inside = tracer.failed_in or ""
        where = f" in {inside} ({type(model.get_submodule(inside)).__name__})" if inside else ""
        message = f"torch.fx cannot follow the network's forward{where}: {first_line(error)}{hint}"
        if isinstance(error, DecidesBySizes) and not may_decide:
            raise ConversionError(message) from error
        raise RefusedParts(
            message, {inside: f"torch.fx cannot follow it: {first_line(error)}"}, tracer.callers
        ) from error
    return Captured(model, graph, tracer)


@contextmanager
def _without_stand_ins(model: nn.Module) -> Iterator[None]:
    """Take back what the code of modules keeps while it is traced, as in caches: stand-ins, no tensors."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    buffers = [(held, dict(held)) for module in model.modules() if isinstance(held := module._buffers, dict)]
    contents = [
        (value, value.copy())
        for _, attributes in before
        for name, value in attributes.items()
        if type(value) in (dict, list, set) and not name.startswith("_")
    ]
    for _, attributes in before:  # what was kept is computed again, of parameters that learn
        for name, value in attributes.items():
            if "cache" in name and type(value) is dict and not name.startswith("_"):
                value.clear()
    try:
        yield
    finally:
        for value, copy in contents:
            value.clear()
            value.extend(copy) if isinstance(value, list) else value.update(copy)
        for held, tensors in buffers:
            held.update((name, tensor) for name, tensor in tensors.items() if isinstance(held[name], fx.Proxy))
        for module, attributes in before:
            for name in [n for n, v in vars(module).items() if isinstance(v, fx.Proxy)]:
                if name in attributes:
                    vars(module)[name] = attributes[name]
                else:
                    del vars(module)[name]


@contextmanager
def _types_of_examples() -> Iterator[None]:
    """Let libraries that ask for the type of a stand-in hear that of its example: `torch.jit.isinstance` and einops."""
    asked = torch.jit.isinstance
    torch.jit.isinstance = lambda obj, target_type: asked(fx.node.map_aggregate(obj, _value), target_type)
    einops: Any = sys.modules.get("einops._backends")
    known = getattr(einops, "_type2backend", {})  # by type, where it has been asked for it
    if hasattr(einops, "TorchBackend"):
        known[_Example] = einops.TorchBackend()
    try:
        yield
    finally:
        torch.jit.isinstance = asked
        known.pop(_Example, None)


def _check_that_it_runs(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    try:
        model(*(x.clone() for x in inputs))
    except Exception as error:
        shapes = " and ".join(f"{tuple(x.shape)} of {x.dtype} on {x.device}" for x in inputs)
        raise ConversionError(f"the network does not take the example input {shapes}: {first_line(error)}") from error


class DecidesBySizes(fx.proxy.TraceError):
    """The network's code decides by sizes, which may be done for an example of the user's alone."""


class _Example(fx.Proxy):
    """A proxy that knows the example's value."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which numpy and others ask for, to see what it is
            raise AttributeError(name)
        found = getattr(self.value, name)
        if callable(found) and not isinstance(found, Tensor):
            return fx.proxy.Attribute(self, name)  # a method, perhaps to be called
        if isinstance(self.value, Tensor) and name in VIEWS and not self.value.is_complex():
            return VIEWS[name](self)
        if isinstance(self.value, Tensor) and name not in OF_SIZES and not isinstance(found, Tensor):
            return found
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    @property
    def value(self) -> Any:
        return self.tracer.examples[self.node]  # type: ignore[attr-defined]

    def __len__(self) -> int:
        if isinstance(self.value, int | float):
            raise fx.proxy.TraceError("it makes a tensor or an array of sizes, as torch.tensor(x.shape[2]) does")
        if isinstance(self.value, Tensor) and self.value.dim() == 0:
            raise fx.proxy.TraceError(f"it takes a tensor of one number apart, or {NEW_TENSOR}")
        return len(self.value)

    def __setitem__(self, key: Any, value: Any) -> None:
        """From here on the name stands for a copy with other numbers there; the faithfulness check finds the rest."""
        self.node = self.tracer.create_proxy("call_function", with_part, (self, key, value), {}).node

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.value, Tensor):
            raise fx.proxy.TraceError(f"it {NEW_TENSOR}")
        return numpy.asarray(self._decided(), *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        items: Any = self
        return (items[i] for i in range(len(self)))

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
            if isinstance(self.value, Tensor):
                raise fx.proxy.TraceError("it decides by values of tensors")
            raise DecidesBySizes("it decides by sizes")
        return self.value


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # buffers change, as parameters do, so they are read like these

    def __init__(
        self,
        is_whole: Callable[[nn.Module], bool],
        inputs: list[Tensor] | None,
        may_decide: bool,
        write_out: bool = False,
    ) -> None:
        super().__init__()
        self.is_whole, self.inputs, self.may_decide, self.write_out = is_whole, inputs, may_decide, write_out
        self.examples: dict[fx.Node, Any] = {}
        self.owners: dict[fx.Node, str] = {}
        self.inside: list[str] = [""]
        self.callers: dict[str, str] = {}
        self.outputs: list[tuple[tuple[str, ...], Any]] = []  # of every call of a module: where, and what it gave
        self.failed_in: str | None = None  # the path of the innermost module whose code could not be followed
        self.changing: set[fx.Node] = set()
        self.running = False  # a step on the example: not to be traced

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self.is_whole(m):
            return True
        if self.write_out and isinstance(m, (*FOLLOWED, *WRITTEN_OUT)):
            return False
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.running:
            return forward(*args, **kwargs)
        path = self.path_of_module(m)
        written = next((code for kind, code in WRITTEN_OUT.items() if isinstance(m, kind)), None)
        if written is not None and not self.is_leaf_module(m, path):
            forward = functools.partial(written, m)
        self.callers.setdefault(path, self.inside[-1])
        self.inside.append(path)
        try:
            result = super().call_module(m, forward, args, kwargs)
            self.outputs.append((tuple(self.inside), result))
            return result
        except Exception:
            self.failed_in = self.inside[-1] if self.failed_in is None else self.failed_in
            raise
        finally:
            self.inside.pop()

    def create_args_for_root(self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None) -> Any:
        """The arguments of the forward: one for each example input. The others keep their defaults."""
        if self.inputs is None:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        names = _argument_names(root_fn, len(self.inputs))
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def create_arg(self, a: Any) -> Any:
        """As torch.fx has it; a named tuple is a call like any other, of its type."""
        if isinstance(a, tuple) and hasattr(a, "_fields") and self.inputs is not None:
            return self.create_proxy("call_function", type(a), tuple(a), {}).node
        return super().create_arg(a)

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
        given = _tensors_in((args, kwargs)) if kind == "call_module" and self.inputs is not None else []
        versions = [t._version for t in given]
        result = None if self.inputs is None else self.carried_out(kind, target, args, kwargs)
        if self.inputs is not None and (target in FACT_FUNCTIONS or (kind == "call_method" and target in FACT_METHODS)):
            return result
        if kind == "call_function" and target is torch._assert:
            return None
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        self.owners[proxy.node] = self.inside[-1]
        if [t._version for t in given] != versions:
            self.changing.add(proxy.node)
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
                return self.inputs.pop(0) if self.inputs else None
            case "get_attr":
                return operator.attrgetter(target)(self.root)
            case "call_module":
                return operator.attrgetter(target)(self.root)(*args, **kwargs)
            case "call_method":
                return getattr(args[0], RESHAPING.get(target, target))(*args[1:], **kwargs)
            case "output":
                return args[0]
            case _:
                return target(*args, **kwargs)


def _argument_names(forward: Callable[..., Any], count: int) -> list[str]:
    """The names under which a forward takes so many inputs."""
    signature = inspect.signature(forward)
    try:
        given = signature.bind(None, *range(count)).arguments
    except TypeError as error:
        few = "fewer" if "too many" in str(error) else "more"
        inputs = "1 example input was" if count == 1 else f"{count} example inputs were"
        raise ConversionError(
            f"{inputs} given, and the network takes {few}: forward{signature}. Give several as a tuple, example=(x, y)"
        ) from error
    names: list[str] = []
    for name, value in list(given.items())[1:] or given.items():
        names += [f"{name}_{i}" for i in range(len(value))] if isinstance(value, tuple) else [name]
    return names[:count]


def _tensors_in(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    fx.node.map_aggregate(tree, lambda item: found.append(v) if isinstance(v := _value(item), Tensor) else None)
    return found


def _value(item: Any) -> Any:
    if isinstance(item, _Example | fx.proxy.Attribute):
        return item.tracer.examples[item.node]  # type: ignore[attr-defined]
    return item


def first_line(error: Exception) -> str:
    """What an error says, without what follows in further lines."""
    try:
        said = str(error)
    except Exception:  # it names a stand-in that has no value
        said = ""
    return (said.strip().splitlines() or [type(error).__name__])[0]
