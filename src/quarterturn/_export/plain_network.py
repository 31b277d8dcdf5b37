"""An equivariant network as an ordinary torch module, with the filters of all orientations stacked once (section 4.5).

`capture` reads the graph of the network, and `rewrite` goes over it with a `PlainRewriter`, which has a rule for each
layer (`layer_rules`). Every tensor that held pathways in the batch is carried as a stacked one instead, so that both
modes, and mixtures of them, end in the same network: slicing repeats features, rolling rearranges them, and both
disappear into the filters of the convolution that follows. What comes out consists of torch's own layers and functions
and needs nothing of quarterturn to run or to be unpickled.
"""

import copy

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from quarterturn._export.plain_writer import PlainWriter
from quarterturn._export.rewriter import PlainRewriter
from quarterturn.check import in_eval_mode, largest_difference
from quarterturn.errors import ConversionError, ShapeError
from quarterturn.graph.capture import capture, without_new_attributes
from quarterturn.graph.rewrite import rewrite
from quarterturn.graph.verify import error_beyond_rounding

HINT = (
    "; write it without decisions on shapes or values, and with layers, such as quarterturn.Slice, instead of our "
    "functions"
)


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
    with in_eval_mode(model), torch.no_grad(), without_new_attributes(model):
        inputs = None if example is None else (example,)
        if example is not None:
            _check_that_it_takes(model, example)
        captured = capture(model, _is_whole, inputs, hint=HINT)
        writer = PlainWriter(dynamic)
        rewrite(captured, PlainRewriter(captured, writer), "these parts of the network cannot be converted")
        plain = writer.finish()
        if fold:
            _fold_norms(plain)
        if example is not None:
            _verify(model, plain, example)
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


def _is_whole(module: nn.Module) -> bool:
    """Our layers are one node of the graph each, but for those of converted networks alone: they call torch's."""
    home = type(module).__module__
    return home.startswith("quarterturn.") and not home.startswith("quarterturn._convert.")


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


def _check_that_it_takes(model: nn.Module, example: Tensor) -> None:
    try:
        model(example.clone())
    except (RuntimeError, ValueError) as error:
        raise ShapeError(f"the example input {tuple(example.shape)} does not fit the network: {error}") from error


def _verify(model: nn.Module, plain: nn.Module, example: Tensor) -> None:
    """The plain network gives what the other does: the proof, on the example."""

    def error_in(dtype: torch.dtype) -> float:
        own = dtype == example.dtype
        nets = [net if own else copy.deepcopy(net).to(dtype) for net in (model, plain)]
        gap, size = largest_difference(*(net(example.to(dtype, copy=True)) for net in nets))
        return gap / size if gap else gap

    error = error_beyond_rounding(error_in, example.dtype)
    if error is not None:
        raise ConversionError(
            f"the plain network differs from the original by {error:.3g} of its largest output; this is a fault of "
            "quarterturn, please report it"
        )
