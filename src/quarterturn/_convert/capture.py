"""The graph of a network, with the value of every node for an example.

Tracing by `torch.fx` runs the network's Python code once. Here every step is carried out on the example as well, so
that the code may ask for numbers of axes and, where an example was given, decide by sizes.
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn.check import in_eval_mode
from quarterturn.errors import ConversionError

SIZES = {1: (64, 128, 32, 256, 1024), 2: (64, 96, 32, 28, 128, 224, 256, 299, 331), 3: (16, 32, 24, 48, 64)}
FACTS = ("ndim", "dtype", "device", "is_cuda", "layout", "is_sparse", "requires_grad")  # nothing to do with sizes
FACT_METHODS = ("dim", "ndimension", "is_contiguous", "is_floating_point", "get_device")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_dropout(module: nn.Module) -> bool:
    """Whether it is a kind of dropout, such as stochastic depth, by its name: what it does, it does in training."""
    name = type(module).__name__.lower()
    return ("drop" in name or "stochasticdepth" in name) and not any(True for _ in module.parameters())


class Captured:
    """A traced network: its graph, the example's value at every node, and the module whose code made it."""

    def __init__(self, model: nn.Module, graph: fx.Graph, tracer: "_Tracer") -> None:
        self.model, self.graph = model, graph
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.examples: dict[fx.Node, Any] = tracer.examples
        self.owners: dict[fx.Node, str] = tracer.owners


def capture(model: nn.Module, dim: int, example: Tensor | tuple[Tensor, ...] | None) -> Captured:
    """Trace the network in eval mode. Without an example one is made up, and decisions by sizes are refused."""
    given = example is not None
    with in_eval_mode(model), torch.no_grad():
        inputs = _several(example) if example is not None else (_made_up_example(model, dim),)
        tracer = _Tracer(inputs, decides=given)
        try:
            graph = tracer.trace(model)
        except (fx.proxy.TraceError, TypeError, RuntimeError, AssertionError, ValueError, AttributeError) as error:
            hint = (
                "" if given else "; if it looks at the sizes of its maps, give an example input: convert(…, example=x)"
            )
            raise ConversionError(
                f"torch.fx cannot follow the network's forward: {_first_line(error)}{hint}"
            ) from error
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
        if not tracer.decides or isinstance(self.value, Tensor):
            what = "values of tensors" if isinstance(self.value, Tensor) else "sizes"
            raise fx.proxy.TraceError(f"it decides by {what}")
        return self.value


class _Tracer(fx.Tracer):
    def __init__(self, inputs: Sequence[Tensor], decides: bool) -> None:
        super().__init__()
        self.inputs, self.decides = list(inputs), decides
        self.examples: dict[fx.Node, Any] = {}
        self.owners: dict[fx.Node, str] = {}
        self.inside: list[str] = [""]
        self.running = False  # a step on the example: not to be traced

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """What torch and we have, and what acts otherwise in training: batch norms and dropouts of other libraries."""
        if isinstance(m, nn.modules.batchnorm._BatchNorm) or type(m).__module__.startswith("quarterturn."):
            return True
        return is_dropout(m) or super().is_leaf_module(m, module_qualified_name)

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
        return _Example(node, self)

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
        values, named = fx.node.map_aggregate((args, kwargs), _value)
        self.running = True
        try:
            result = self.carry_out(kind, target, values, named)
        finally:
            self.running = False
        is_fact = kind == "call_method" and target in FACT_METHODS
        if is_fact or (target is getattr and args[1] in FACTS):
            return result
        if kind == "call_function" and target is torch._assert:
            return None
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        self.examples[proxy.node], self.owners[proxy.node] = result, self.inside[-1]
        return proxy

    def carry_out(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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


def _value(item: Any) -> Any:
    return item.value if isinstance(item, _Example) else item


def _several(example: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs, with more than one example, so that their axis can be told from axes of one."""
    inputs = example if isinstance(example, tuple) else (example,)
    return tuple(torch.cat([x, x]) if x.dim() and x.shape[0] == 1 else x for x in inputs)


def _made_up_example(model: nn.Module, dim: int) -> Tensor:
    first = next((m for m in model.modules() if isinstance(m, CONVOLUTIONS[dim - 1])), None)
    if first is None:
        raise ConversionError(
            f"the network has no {CONVOLUTIONS[dim - 1].__name__}, so nothing of it shares filters over orientations: "
            "wrap() it, or give an example input"
        )
    seed = torch.Generator().manual_seed(0)
    errors = []
    for channels, size in itertools.product(dict.fromkeys((first.in_channels, 3, 1)), SIZES[dim]):
        shape = (2, channels, *[size] * dim)
        example = torch.randn(shape, generator=seed).to(first.weight.device, first.weight.dtype)
        try:
            model(example)
        except (RuntimeError, ValueError, AssertionError, TypeError, IndexError) as error:
            errors.append(f"{tuple(shape)}: {_first_line(error)}")
            continue
        return example
    raise ConversionError(
        f"the network took none of the inputs that were tried: {'; '.join(errors[:2])}; … Give one that it takes: "
        "convert(…, example=x)"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
