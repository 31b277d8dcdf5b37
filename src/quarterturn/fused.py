"""Layers that follow each other as one: convolution, batch norm, a sum and an activation, in eval without gradients.

`with_chains` gives a network of torch.fx a forward pass in which such chains are one call each. Nothing is kept: the
norm becomes a scale and a shift anew in every call, so what changes in place counts at once. Each chain looks at its
layers when it runs. Where one has hooks, is in training mode or is another kind of layer by now, they run one by one.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from quarterturn import kernel
from quarterturn.kernel import Finish
from quarterturn.layers.convolution import DepthwiseConv, PathConv, RollConv, SliceConv
from quarterturn.layers.norms import BatchNorm
from quarterturn.layers.tokens import TokenConv

CONVOLUTIONS = (SliceConv, RollConv, PathConv, DepthwiseConv, TokenConv)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
ACTIVATIONS: dict[object, str] = {
    kind: name
    for name, kinds in {
        "relu": (nn.ReLU, F.relu, torch.relu),
        "relu6": (nn.ReLU6, F.relu6),
        "sigmoid": (nn.Sigmoid, torch.sigmoid),
        "hardsigmoid": (nn.Hardsigmoid, F.hardsigmoid),
        "silu": (nn.SiLU, F.silu),
        "hardswish": (nn.Hardswish, F.hardswish),
        "gelu": (nn.GELU, F.gelu),
    }.items()
    for kind in kinds
}
SUMS = (operator.add, operator.iadd, torch.add)
PRECISIONS = (torch.float32, torch.float64)  # half floats would lose more with scaled filters

Forward = Callable[..., Any]


class Chain(NamedTuple):
    """Nodes of a graph that one call does; `head` is a convolution or a norm."""

    head: fx.Node
    norm: fx.Node | None
    dropout: fx.Node | None  # it does nothing in eval mode
    sum: fx.Node | None
    other: fx.Node | None  # what is added
    activation: fx.Node | None

    @property
    def nodes(self) -> list[fx.Node]:
        return [node for node in (self.head, self.norm, self.dropout, self.sum, self.activation) if node is not None]


def with_chains(forward: Forward) -> Forward:
    """The forward pass of a `torch.fx.GraphModule`, with chains wherever they may run."""
    quick: Forward | None = None

    @functools.wraps(forward)  # tracers look at its arguments
    def run(self: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        nonlocal quick
        if not _may_run(self, args):
            return forward(self, *args, **kwargs)
        if quick is None:
            quick = _compiled(chained(self))
        return quick(self, *args, **kwargs)

    return run


def _may_run(net: nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether nothing but the numbers matters: eval mode, no gradients, no tracer, compiler or transform."""
    if net.training or torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.jit.is_tracing():
        return False
    if torch.onnx.is_in_onnx_export() or kernel.dispatch_modes() or torch._C._len_torch_function_stack():
        return False
    if nn.modules.module._has_any_global_hook():
        return False
    tensors = [x for x in args if type(x) is Tensor]
    return bool(tensors) and kernel.outside_transforms(*tensors)


def _compiled(graph: fx.Graph) -> Forward:
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<chains of a converted network>", "exec"), names)
    found: Forward = names["forward"]
    return found


# --- the graph --------------------------------------------------------------------------------------------------------


def chained(net: fx.GraphModule) -> fx.Graph:
    """The graph of a network with each chain as one call of `run_chain`."""
    chains = find_chains(net)
    ends = {chain.nodes[-1]: chain for chain in chains}
    inside = {node for chain in chains for node in chain.nodes[:-1]}
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in net.graph.nodes:
        if node in ends:
            new[node] = graph.call_function(run_chain, _arguments(graph, ends[node], new))
        elif node not in inside:
            new[node] = graph.node_copy(node, lambda old: new[old])
    return graph


def _arguments(graph: fx.Graph, chain: Chain, new: dict[fx.Node, fx.Node]) -> tuple[Any, ...]:
    layers = [
        None if node is None else graph.get_attr(str(node.target)) for node in (chain.head, chain.norm, chain.dropout)
    ]
    other = None if chain.other is None else new[chain.other]
    activation: Any = None
    if chain.activation is not None:
        target = chain.activation.target
        is_layer = chain.activation.op == "call_module"
        activation = graph.get_attr(str(target)) if is_layer else ACTIVATIONS[target]
    return new[chain.head.args[0]], *layers, other, activation  # type: ignore[index]


def find_chains(net: fx.GraphModule) -> list[Chain]:
    """The chains of a network's graph: each longer than one node, no node in two of them."""
    taken: set[fx.Node] = set()
    found = []
    for node in net.graph.nodes:
        if node in taken or not _is_layer(net, node, (*CONVOLUTIONS, BatchNorm)):
            continue
        chain = _chain_from(net, node, taken)
        if len(chain.nodes) > 1:
            found.append(chain)
            taken.update(chain.nodes)
    return found


def _chain_from(net: fx.GraphModule, head: fx.Node, taken: set[fx.Node]) -> Chain:
    norm = dropout = sum_ = other = activation = None
    last, following = head, _only_user(head, taken)
    if following is not None and _is_layer(net, following, (BatchNorm,)) and not _is_layer(net, head, (BatchNorm,)):
        norm, last, following = following, following, _only_user(following, taken)
    if following is not None and _is_layer(net, following, DROPOUTS):
        dropout, last, following = following, following, _only_user(following, taken)
    if following is not None and _is_sum(following):
        first, second = following.args
        sum_, other = following, second if first is last else first
        last, following = following, _only_user(following, taken)
    if following is not None and _is_activation(net, following):
        activation = following
    return Chain(head, norm, dropout, sum_, other, activation)  # type: ignore[arg-type]


def _only_user(node: fx.Node, taken: set[fx.Node]) -> fx.Node | None:
    """The node that alone reads this one, if it is free."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return None if user in taken else user


def _is_layer(net: fx.GraphModule, node: fx.Node, kinds: tuple[type, ...]) -> bool:
    """Whether it calls a layer of exactly one of these types with a tensor alone."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
        return False
    return type(net.get_submodule(str(node.target))) in kinds


def _is_sum(node: fx.Node) -> bool:
    plain = node.op == "call_function" and node.target in SUMS and len(node.args) == 2 and not node.kwargs
    return plain and all(isinstance(arg, fx.Node) for arg in node.args) and node.args[0] is not node.args[1]


def _is_activation(net: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_function":
        plain = len(node.args) == 1 and all(name == "inplace" for name in node.kwargs)
        return plain and node.target in ACTIVATIONS
    kinds = tuple(kind for kind in ACTIVATIONS if isinstance(kind, type))
    return _is_layer(net, node, kinds) and _name_of(net.get_submodule(str(node.target))) is not None


# --- a chain ----------------------------------------------------------------------------------------------------------


def run_chain(
    x: Tensor,
    head: nn.Module,
    norm: nn.Module | None,
    dropout: nn.Module | None,
    other: Tensor | None,
    activation: nn.Module | str | None,
) -> Tensor:
    """activation(dropout(norm(head(x))) + other), in as few passes as these layers allow.

    Functions are given by their names.

    >>> from quarterturn import C4
    >>> conv, norm = RollConv(C4, 8, 8, 3, rotate="filters"), BatchNorm(C4, 8, rotate="filters").eval()
    >>> x = torch.randn(2, 32, 9, 9)
    >>> with torch.no_grad():
    ...     torch.testing.assert_close(run_chain(x, conv, norm, None, None, nn.ReLU()), norm(conv(x)).relu())
    """
    name = _name_of(activation)
    layers = [layer for layer in (head, norm, dropout, activation) if isinstance(layer, nn.Module)]
    idle = dropout is None or (type(dropout) in DROPOUTS and not dropout.training)
    if name is None or not idle or any(map(_has_hooks, layers)) or not _are_plain(x, head, norm, other):
        y = head(x) if norm is None else norm(head(x))
        y = y if dropout is None else dropout(y)
        y = y if other is None else y + other
        if isinstance(activation, nn.Module):
            return activation(y)
        return y if activation is None else kernel.finish_in_place(y.clone(), None, activation)
    if type(head) is BatchNorm:
        return kernel.finish_in_place(head(x), other, name)
    bias, scale = _bias_and_scale(head.bias, norm)  # type: ignore[arg-type]
    return head.finished(x, Finish(bias, scale, other, name))  # type: ignore[operator]


def _bias_and_scale(bias: Tensor | None, norm: nn.Module | None) -> tuple[Tensor | None, Tensor | None]:
    """What a norm in eval mode does to the sums of a convolution with this bias."""
    if not isinstance(norm, BatchNorm) or norm.running_mean is None or norm.running_var is None:
        return bias, None
    scale = norm.running_var.add(norm.eps).rsqrt_()
    if norm.weight is not None:
        scale *= norm.weight
    shift = -scale * norm.running_mean if bias is None else (bias - norm.running_mean) * scale
    return shift if norm.bias is None else shift + norm.bias, scale


def _are_plain(x: Tensor, head: nn.Module, norm: nn.Module | None, other: Tensor | None) -> bool:
    """Whether the head is a layer of ours in one precision with all else, and the norm has statistics to use."""
    if type(head) not in (*CONVOLUTIONS, BatchNorm) or not (norm is None or type(norm) is BatchNorm):
        return False
    if torch.is_autocast_enabled("cpu") or x.device.type != "cpu" or x.dtype not in PRECISIONS:
        return False
    norms = [layer for layer in (head, norm) if isinstance(layer, BatchNorm)]
    if any(layer.training or layer.running_mean is None or layer.running_mean.dtype is not x.dtype for layer in norms):
        return False
    return other is None or other.dtype is x.dtype


def _name_of(activation: nn.Module | str | None) -> str | None:
    """The name of an activation; None if it is another layer."""
    if not isinstance(activation, nn.Module):
        return activation or "none"
    if isinstance(activation, nn.GELU) and activation.approximate != "none":
        return None
    return ACTIVATIONS.get(type(activation))


def _has_hooks(layer: nn.Module) -> bool:
    """Whether someone wants to be told of its calls, or has put a function in its place."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks) or "forward" in layer.__dict__
