"""Any convolutional network in one call: its graph is read, and written again with filters shared over orientations.

`capture` reads the graph, with the tensors of an example. `rewrite` goes over it with an `EquivariantRewriter`, which
has a rule for each layer (`layer_rules`) and function (`function_rules`) and tracks every tensor under its old axes
(`tracked_value`). Then the new layers are made, because only then are their widths known, and the result is verified.
"""

import contextlib
import copy
import io
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from quarterturn import trees
from quarterturn._convert.carried_over import carry_over
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.example_input import example_inputs
from quarterturn._convert.initial_weights import Init
from quarterturn._convert.layer_rules import is_dropout
from quarterturn._convert.report import Conversion
from quarterturn._convert.rewriter import EquivariantRewriter
from quarterturn._convert.widths import Keep, Widths
from quarterturn.check import error_of_answers, in_eval_mode
from quarterturn.cost import cost
from quarterturn.errors import ConversionError, OptionError, QuarterturnError, unknown
from quarterturn.filters import Rotate, check_options
from quarterturn.fused import with_chains
from quarterturn.graph.capture import Captured, capture, without_new_attributes
from quarterturn.graph.faithful import check_faithful, layers_of_training, outputs_read
from quarterturn.graph.lively import images_like, lively
from quarterturn.graph.rewrite import rewrite
from quarterturn.graph.verify import error_beyond_rounding
from quarterturn.groups import Group
from quarterturn.ops import PoolFunction, pool_function

logger = logging.getLogger(__name__)
HINT = "; if it looks at the sizes of its maps, give an example input: convert(…, example=x)"
INSTEAD = "wrap() takes every network"


class Converted(fx.GraphModule):
    """A converted network: torch's layers and ours, under the old names. `conversion` says what it costs.

    In eval mode without gradients, layers that follow each other run as one where they can (`fused.py`).
    """

    def recompile(self) -> Any:
        code = super().recompile()
        type(self).forward = with_chains(type(self).forward)  # torch.fx makes a class for each network
        return code

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
    return converted


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
    _check_model(model)
    _check_options(group, rotate, keep, pool, init)
    _check_until(model, until)
    with without_new_attributes(model):
        with in_eval_mode(model), torch.no_grad():
            inputs, given = example_inputs(model, group.dim, example), example is not None
            captured = capture(model, _is_whole, inputs, may_decide=given, hint=f"{'' if given else HINT}. {INSTEAD}")
        check_faithful(captured, inputs, f", or wrap() it: {INSTEAD}")
        writer = EquivariantWriter(group, rotate, Widths(group.order, keep), init, pool, model)
        rewriter = EquivariantRewriter(captured, writer, until)
        rewrite(captured, rewriter, f"these parts of the network cannot be converted to {group.name} ({INSTEAD})")
        converted = _finished(writer)
        writer.notes += carry_over(model, converted)
        _verify(converted, group, inputs, captured, exact=until is None)
        before, after = (cost(net, inputs) for net in (model, converted))
        left_out = layers_of_training(captured, inputs)
        notes = [*writer.notes, *([f"left out, because only training uses them: {left_out}"] if left_out else [])]
        converted.meta["conversion"] = Conversion(group, keep, before, after, tuple(dict.fromkeys(notes)))
        logger.info("converted to %s:\n%s", group.name, converted.conversion)
        return converted


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise OptionError(f"convert() needs a network, an nn.Module, got {model!r}: make it a module with layers")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise OptionError(
                f"{name!r} is on the meta device and has no numbers, so the network cannot be run: make the network on "
                'another device, or move it there with model.to_empty(device="cpu")'
            )


def _check_options(group: Group, rotate: str, keep: str, pool: PoolFunction, init: str) -> None:
    check_options(group, rotate, spatial=True)
    pool_function(pool, "scalar")
    if keep not in ("width", "parameters"):
        raise unknown("value of keep", keep, ("width", "parameters"))
    if init not in ("scratch", "pretrained"):
        raise unknown("value of init", init, ("scratch", "pretrained"))
    if init == "pretrained" and keep == "parameters":
        raise OptionError('init="pretrained" needs keep="width": wider layers have no old weights to begin with')


def _check_until(model: nn.Module, until: str | None) -> None:
    names = [name for name, _ in model.named_modules()]
    if until is not None and until not in names:
        raise unknown("layer", until, [name for name in names if name])


def _is_whole(module: nn.Module) -> bool:
    """Our layers are one node of the graph, and what acts otherwise in training: batch norms and dropouts."""
    ours = type(module).__module__.startswith("quarterturn.")
    return ours or isinstance(module, nn.modules.batchnorm._BatchNorm) or is_dropout(module)


def _finished(writer: EquivariantWriter) -> Converted:
    """The network that was written, its layers made."""
    try:
        root, graph = writer.finish()
    except QuarterturnError as error:
        raise ConversionError(f"the converted network cannot be built: {error}") from error
    converted = Converted(root, graph, "Converted")
    converted.graph.eliminate_dead_code()
    converted.delete_all_unused_submodules()
    converted.graph.lint()
    converted.recompile()
    converted.meta["rotate"] = writer.rotate
    return converted


def _verify(converted: nn.Module, group: Group, examples: Sequence[Tensor], captured: Captured, exact: bool) -> None:
    """Shapes as before, and turned inputs give what they must: the proof, on the example."""
    old = outputs_read(captured)
    with in_eval_mode(converted), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        try:  # of an error in its code torch.fx prints where it was
            new = converted(*examples)
        except (QuarterturnError, RuntimeError) as error:
            raise ConversionError(f"the converted network does not take the example: {error}") from error
    before, after = ([tuple(t.shape) for _, t in trees.leaves(tree, Tensor)] for tree in (old, new))
    if before != after:
        raise ConversionError(
            f"the converted network gives {after} where the old one gave {before}: a fault of quarterturn, report it"
        )
    if not exact or any(x.dim() != 2 + group.dim for x in examples):
        return
    trial, images = _to_be_tried(converted, group, examples)

    def error_in(dtype: torch.dtype) -> float:
        own = dtype == images[0].dtype
        net = trial if own else copy.deepcopy(trial).to(dtype)
        return error_of_answers(net, group, tuple(x if own else x.to(dtype) for x in images))

    found = error_beyond_rounding(error_in, images[0].dtype)
    if found is not None:
        raise ConversionError(
            f"the converted network is not equivariant: turned inputs give an error of {found:.3g} of the difference "
            "between two answers; a fault of quarterturn, please report it"
        )


def _to_be_tried(
    converted: nn.Module, group: Group, examples: Sequence[Tensor]
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network as if it had learnt, and images; or both as they are, where it has no answer to that."""
    images = images_like(examples, group.dim)
    try:
        trial = lively(converted, images)
        with torch.no_grad():
            answers = [t for _, t in trees.leaves(trial(*images), Tensor)]
    except (QuarterturnError, RuntimeError, ValueError):
        answers = []
    if answers and all(t.isfinite().all() for t in answers):
        return trial, images
    return converted, tuple(examples)
