"""Filters that the old network computes from its parameters, as weight standardisation does.

The new layer computes its filters in the same way from parameters of the new shape: a mean over what an old filter saw
becomes one over all that the new filter sees. The code is the old one, but for the sizes in its reshapes.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn.graph.refusal import Refusal
from quarterturn.graph.torch_functions import REDUCTIONS, RESHAPES, name_of, option

NOT_FOLLOWED = "its filters are computed in a way that cannot be followed"


@dataclass(frozen=True)
class Size:
    """A size in the old network, and what becomes of it."""

    old: int
    new: int


Axes = tuple[tuple[Size, ...], ...]  # for each axis the sizes that it is a product of; none for an axis of one


@dataclass(frozen=True)
class Computed:
    """How filters are computed: the nodes of the old graph, and the parameters and buffers that they begin with."""

    nodes: tuple[fx.Node, ...]  # the last is the filters
    filters: str  # the parameter that has the shape of the filters
    others: tuple[str, ...]  # those with a number for each filter, or one for all
    code: str = ""  # the same as Python

    def written_for(self, tensors: dict[str, Tensor], new: dict[str, Tensor]) -> fx.GraphModule:
        """The code for parameters of the new shapes, which it takes in the order of `filters` and `others`."""
        graph = fx.Graph()
        places = {name: graph.placeholder(name.rpartition(".")[2]) for name in (self.filters, *self.others)}
        copies: dict[fx.Node, Any] = {}
        before: dict[fx.Node, Any] = {}
        after: dict[fx.Node, Any] = {}
        axes: dict[fx.Node, Axes] = {}
        for node in self.nodes:
            if node.op == "get_attr":
                name = str(node.target)
                copies[node], before[node], after[node] = places[name], tensors[name], new[name]
                axes[node] = _axes_of(before[node], after[node], tensors[self.filters], new[self.filters])
                continue
            before[node] = _run(node, before)
            if name_of(node.target) in RESHAPES:
                source: Any = node.args[0]
                axes[node] = _grouped(axes[source], before[node].shape)
                shape = [math.prod(size.new for size in axis) for axis in axes[node]]
                copies[node] = graph.call_method("reshape", (copies[source], shape))
                after[node] = after[source].reshape(shape)
                continue
            copies[node], after[node] = graph.node_copy(node, lambda n: copies[n]), _run(node, after)
            if isinstance(before[node], Tensor | tuple) and not isinstance(before[node], torch.Size):
                axes[node] = _followed(node, before, axes)
                _check(after[node], axes[node])
        if after[self.nodes[-1]].shape != new[self.filters].shape:
            raise Refusal(NOT_FOLLOWED)
        graph.output(copies[self.nodes[-1]])
        return fx.GraphModule(nn.Module(), graph, "ComputedFilters")


def computed_filters(model: nn.Module, filters: fx.Node) -> Computed:
    """How a node of the old graph, which depends on parameters and buffers alone, is computed from them."""
    wanted = {filters}
    for node in reversed(filters.graph.nodes):
        wanted.update(node.all_input_nodes if node in wanted else ())
    nodes = tuple(node for node in filters.graph.nodes if node in wanted)
    names = dict.fromkeys(str(node.target) for node in nodes if node.op == "get_attr")
    tensors = {name: operator.attrgetter(name)(model) for name in names}
    results: dict[fx.Node, Any] = {}
    for node in nodes:
        results[node] = tensors[str(node.target)] if node.op == "get_attr" else _run(node, results)
    shape = results[filters].shape
    whole = [name for name, t in tensors.items() if t.shape == shape and isinstance(t, nn.Parameter)]
    if len(whole) != 1:
        raise Refusal("its filters are not computed from one parameter of their shape")
    others = tuple(name for name in tensors if name != whole[0])
    for name in others:
        if tensors[name].numel() not in (1, shape[0]):
            raise Refusal(f"its filters are computed with {name!r}, which has other numbers than one for each filter")
    computed = Computed(nodes, whole[0], others)
    return replace(computed, code=computed.written_for(tensors, tensors).code)  # may refuse


def _run(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
    with torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_function" and callable(node.target):
            return node.target(*args, **kwargs)
    raise Refusal(NOT_FOLLOWED)


def _axes_of(old: Tensor, new: Tensor, filters: Tensor, new_filters: Tensor) -> Axes:
    """The axes of a parameter: those of the filters, or one with a number for each filter."""
    if old.shape == filters.shape:
        return tuple((Size(a, b),) for a, b in zip(filters.shape, new_filters.shape, strict=True))
    return tuple(() if n == 1 else (Size(n, m),) for n, m in zip(old.shape, new.shape, strict=True))


def _picked(axes: Axes, given: Any) -> Axes:
    """The axes after Python's own indexing: one of an axis, or an axis more."""
    rest = list(axes)
    found: list[tuple[Size, ...]] = []
    for item in given if isinstance(given, tuple) else (given,):
        if item is None:
            found.append(())
        elif item == slice(None):
            found.append(rest.pop(0))
        elif isinstance(item, int):
            rest.pop(0)
        else:
            raise Refusal(NOT_FOLLOWED)
    return (*found, *rest)


def _check(found: Any, axes: Axes) -> None:
    shape = tuple(math.prod(size.new for size in axis) for axis in axes)
    if any(tuple(t.shape) != shape for t in (found if isinstance(found, tuple) else (found,))):
        raise Refusal(NOT_FOLLOWED)


def _grouped(axes: Axes, shape: Sequence[int]) -> Axes:
    """The axes after the old tensor was given another shape."""
    rest = [size for axis in axes for size in axis]
    found: list[tuple[Size, ...]] = []
    for wanted in shape:
        mine: list[Size] = []
        while math.prod(size.old for size in mine) < wanted and rest:
            mine.append(rest.pop(0))
        if math.prod(size.old for size in mine) != wanted:
            raise Refusal(NOT_FOLLOWED)
        found.append(tuple(mine))
    if any(size.old != 1 for size in rest):
        raise Refusal(NOT_FOLLOWED)
    if rest and found:  # filters of one channel: their axis of one went with the one before
        found[-1] = (*found[-1], *rest)
    return tuple(found)


def _followed(node: fx.Node, before: dict[fx.Node, Any], axes: dict[fx.Node, Axes]) -> Axes:
    """The axes of what a function makes: those of the tensors that it takes, without those that it reduces."""
    taken = [axes[n] for n in node.all_input_nodes if n in axes]
    rank = max(map(len, taken), default=0)
    aligned = [(*[()] * (rank - len(t)), *t) for t in taken]
    whole = tuple(next((t[i] for t in aligned if t[i]), ()) for i in range(rank))
    if node.target is operator.getitem:
        if isinstance(before[node.all_input_nodes[0]], tuple):  # one of several results
            return whole
        return _picked(whole, node.args[1])
    name = name_of(node.target)
    if name not in REDUCTIONS and node.target not in (torch.var_mean, torch.std_mean):
        return whole
    dims = option(node.args, node.kwargs, 2 if name == "norm" else 1, "dim")
    if not isinstance(dims, int | tuple | list):
        return ()
    gone = {d % rank for d in ([dims] if isinstance(dims, int) else dims)}
    result = before[node][0] if isinstance(before[node], tuple) else before[node]
    keep = result.dim() == rank
    return tuple(() if i in gone else axis for i, axis in enumerate(whole) if keep or i not in gone)
