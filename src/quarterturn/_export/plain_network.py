"""Turn an equivariant network into an ordinary torch module with stacked filters of all orientations (section 4.5).

`capture` reads the graph of the network. `rewrite` visits its nodes with a `PlainRewriter`, which applies the rule of
each layer (`layer_rules`). Tensors with pathways in the batch become stacked tensors, so both layouts, and mixtures of
them, give the same network. Slices (which repeat features) and rolls (which rearrange them) disappear into the filters
of the next convolution. The result consists of torch's own layers and functions. It does not need quarterturn to run or
to be unpickled.
"""

import copy

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from quarterturn._export.plain_wrapped import plain_wrapped
from quarterturn._export.plain_writer import PlainWriter
from quarterturn._export.rewriter import PlainRewriter
from quarterturn._wrap import Wrapped
from quarterturn.check import in_eval_mode, largest_difference
from quarterturn.errors import ConversionError, ShapeError
from quarterturn.graph.capture import capture
from quarterturn.graph.first_run import as_it_was
from quarterturn.graph.rewrite import rewrite
from quarterturn.graph.verify import error_beyond_rounding
from quarterturn.layers.plain_part import PlainPart
from quarterturn.layers.token_mixing import TokenMixing

HINT = (
    "; write it without branches on shapes or values, and with layers such as quarterturn.Slice instead of functions "
    "such as quarterturn.slice"
)


def to_plain(
    model: nn.Module, example: Tensor | None = None, dynamic: bool = False, fold: bool = False
) -> fx.GraphModule:
    """Turn an equivariant network into an ordinary torch module with the same outputs in eval mode, to rounding.

    With an `example` input and without `dynamic`, the module is made for maps of that size: on a symmetric grid, one
    convolution serves all orientations of a strided layer. Otherwise strided layers take a form that is right at any
    size. `fold=True` folds batch norms into the convolutions before them. Anything that is not supported raises one
    ConversionError that lists every such layer and the reason.

    >>> from quarterturn import C4, SliceConv, Pool
    >>> net = nn.Sequential(SliceConv(C4, 1, 2, 3, rotate="filters"), nn.ReLU(), Pool(C4, rotate="filters"))
    >>> to_plain(net)(torch.zeros(1, 1, 5, 8)).shape
    torch.Size([1, 2, 3, 6])
    """
    if isinstance(model, Wrapped):
        return _of_wrapped(model, example, dynamic, fold)
    model = _turning_filters(model)
    with in_eval_mode(model), torch.no_grad(), as_it_was(model):
        inputs = None if example is None else (example,)
        if example is not None:
            _check_that_it_takes(model, example)
        parts = {module.part for module in model.modules() if isinstance(module, PlainPart)}
        written = isinstance(model, fx.GraphModule) and not dynamic  # what decides there are functions of sizes alone
        captured = capture(model, lambda module: module in parts or _is_whole(module), inputs, written, HINT)
        writer = PlainWriter(dynamic, next((p.dtype for p in model.parameters()), torch.get_default_dtype()))
        rewrite(captured, PlainRewriter(captured, writer), "these parts of the network cannot be converted")
        plain = writer.finish().to(next((p.device for p in model.parameters()), "cpu"))
        if fold:
            _fold_norms(plain)
        if example is not None:
            _verify(model, plain, example)
    return plain


def _of_wrapped(wrapped: Wrapped, example: Tensor | None, dynamic: bool, fold: bool) -> fx.GraphModule:
    """A wrapped model stays as it is, if it has no layers of ours, and turns of the maps come before and after it."""
    ours = any(type(module).__module__.startswith("quarterturn.") for module in wrapped.model.modules())
    inner = to_plain(wrapped.model, example, dynamic, fold) if ours else copy.deepcopy(wrapped.model).eval()
    with in_eval_mode(wrapped), torch.no_grad():
        plain = plain_wrapped(wrapped, inner, example, dynamic)
        assert example is not None
        _verify(wrapped, plain, example)
    return plain


def _turning_filters(model: nn.Module) -> nn.Module:
    """A copy of a converted network with `rotate="filters"`, which is closer to plain layers; others unchanged."""
    if getattr(model, "meta", {}).get("rotate") != "maps":
        return model
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if hasattr(module, "rotate"):
            vars(module)["rotate"] = "filters"
    return twin


def _is_whole(module: nn.Module) -> bool:
    """Whether a layer is one node of the graph: ours are, except plain parts and those of `convert` alone."""
    home = type(module).__module__
    traced = home.startswith("quarterturn._convert.") or isinstance(module, PlainPart | TokenMixing)
    return home.startswith("quarterturn.") and not traced


def _fold_norms(plain: fx.GraphModule) -> None:
    """Fold batch norms into the convolution before them, if nothing else uses its output."""
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
    """Raise unless the plain network gives the original's output on the example."""

    def error_in(dtype: torch.dtype) -> float:
        own = dtype == example.dtype
        nets = [net if own else copy.deepcopy(net).to(dtype) for net in (model, plain)]
        gap, size = largest_difference(*(net(example.to(dtype, copy=True)) for net in nets))
        return gap / size if gap else gap

    error = error_beyond_rounding(error_in, example.dtype)
    if error is not None:
        raise ConversionError(
            f"the plain network differs from the original by {error:.3g} of its largest output; this is a bug in "
            "quarterturn, please report it"
        )
