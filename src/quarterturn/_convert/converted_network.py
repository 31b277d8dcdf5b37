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
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from quarterturn import trees
from quarterturn._convert.axes import Axis, Free, Position, Tokens
from quarterturn._convert.carried_over import carry_over, old_path
from quarterturn._convert.equivariant_writer import EquivariantWriter
from quarterturn._convert.example_input import example_inputs
from quarterturn._convert.heads import HEADS, Head
from quarterturn._convert.image_sizes import known_sizes, of_known_sizes
from quarterturn._convert.initial_weights import Init
from quarterturn._convert.layer_rules import is_dropout
from quarterturn._convert.matching import match_channels
from quarterturn._convert.plain_parts import check_examples_are_apart, layout_of
from quarterturn._convert.plain_search import PlainSearch
from quarterturn._convert.report import Conversion, kept_parts, rolled_share
from quarterturn._convert.rewriter import EquivariantRewriter, Output
from quarterturn._convert.tracked_value import TrackedValue, free_tokens
from quarterturn._convert.widths import Keep, Widths
from quarterturn.check import error_of_answers, in_eval_mode
from quarterturn.cost import Ours, total, work_of
from quarterturn.errors import ConversionError, OptionError, QuarterturnError
from quarterturn.errors import unknown as not_known
from quarterturn.filters import Rotate, check_options
from quarterturn.fused import with_chains
from quarterturn.graph.capture import Captured, capture, first_line
from quarterturn.graph.faithful import check_faithful, layers_of_training, outputs_read
from quarterturn.graph.first_run import as_it_was, run_once
from quarterturn.graph.lively import images_like, lively
from quarterturn.graph.refusal import RefusedParts
from quarterturn.graph.rewrite import rewrite
from quarterturn.graph.verify import error_beyond_rounding
from quarterturn.groups import Group
from quarterturn.layers.plain_part import as_maps
from quarterturn.ops import PoolFunction, pool_function

logger = logging.getLogger(__name__)
HINT = "; if it looks at the sizes of its maps, give an example input: convert(…, example=x)"
INSTEAD = "wrap() takes every network"
Unknown = Literal["plain", "refuse"]


class Converted(fx.GraphModule):
    """A converted network: torch's layers and ours, under the old names. `conversion` says what it costs.

    In eval mode without gradients, layers that follow each other run as one where they can (`fused.py`).
    """

    def recompile(self) -> Any:
        code = super().recompile()
        type(self).forward = of_known_sizes(with_chains(type(self).forward))  # torch.fx makes a class for each network
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
    plain: str | Sequence[str] = (),
    unknown: Unknown = "plain",
    output: Output = "pooled",
    method: str = "forward",
    head: Head = "auto",
    match: Tensor | None = None,
) -> Converted:
    """The same network with every convolution sharing its filters over orientations: exactly equivariant.

    What goes in and out stays: vectors come out invariant, maps turn with the input. The model itself is not changed;
    `conversion` of the result says what became of it, and what it costs. G is the order of the group.

    - `keep`: "width" keeps the number of maps and divides the parameters by about G, "parameters" keeps those and has
      about sqrt(G) times the maps.
    - `head`: what the last layer sees of the orientations of each feature. "pool": what `pool` makes of them; "max";
      "invariants": a few numbers more; "hidden": what is pooled after one more layer. "auto" takes invariants where the
      last layer sees vectors, and pools maps.
    - `init`: "scratch" starts from random weights, as strong as the old ones, or by He where those are torch's default.
      "pretrained" projects the old ones.
    - `match`: some hundred images, with which "pretrained" keeps much more: channels that respond alike to turned
      images become one feature.
    - `example`: an input. Needed where the network's code looks at the sizes of its maps.
    - `until`: the name of a layer. It and all after it stay as they are, on stacked orientations (section 4.4).
    - `plain`: names of submodules that run as they are in every orientation, as do those that cannot be followed:
      exact, but G times the work.
    - `unknown`: "refuse" raises an error that lists what cannot be followed, instead of running it so.
    - `output`: "stacked" returns orientations as channels instead of pooling them, for backbones.
    - `method`: another method than the forward, such as "forward_features".

    >>> from quarterturn import C4
    >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    >>> convert(net, C4)(torch.zeros(2, 3, 20, 30)).shape
    torch.Size([2, 10])
    """
    _check_model(model)
    _check_options(group, rotate, keep, pool, init, unknown, output)
    _check_head(head, until, output)
    if head == "auto" and (pool != "mean" or until is not None or output == "stacked"):
        head = "pool"  # as asked for, or with no last layer that sees orientations
    _check_until(model, until)
    _check_match(match, init, group)
    example = match[:2] if example is None and match is not None else example
    model = _with_method(model, method)
    search = PlainSearch(model, plain, automatic=unknown == "plain")
    with as_it_was(model):
        with in_eval_mode(model), torch.no_grad():
            inputs = example_inputs(model, group, example)
            run_once(model, inputs)
        reader = _Reader(model, inputs, search, may_decide=example is not None)
        while True:
            try:
                captured = reader.read()
                writer = EquivariantWriter(group, rotate, Widths(group.order, keep), init, pool, model)
                rewriter = EquivariantRewriter(captured, writer, until, search.parts, output, head, search.framed)
                values = rewrite(
                    captured, rewriter, f"these parts of the network cannot be converted to {group.name} ({INSTEAD})"
                )
                if match is not None:
                    match_channels(captured, values, group, match)
                converted = _finished(writer)
                writer.notes += carry_over(model, converted, writer.plain)
                _check_shapes(converted, inputs, captured, writer, may_round=output == "stacked")
                break
            except RefusedParts as error:
                search.add(error)
        _check_that_head_is_there(head, writer, search)
        _check_that_something_rolls(converted, writer, search)
        if until is None and all(x.dim() == 2 + group.dim for x in inputs):
            _verify(converted, group, inputs, writer.outputs, stacked=output == "stacked")
        converted.meta["conversion"] = _report(model, converted, writer, search, captured, inputs)
        converted.meta["sizes"] = known_sizes(writer, inputs)
        logger.info("converted to %s:\n%s", group.name, converted.conversion)
        return converted


def _check_that_head_is_there(head: str, writer: EquivariantWriter, search: PlainSearch) -> None:
    if head not in ("auto", "pool") and not writer.heads:
        parts = "".join(f"; {path} stays as it is: {why}" for path, why in search.parts.items())
        raise ConversionError(
            f"head={head!r} needs a last layer, a linear one or a 1x1 convolution that makes an output and does not "
            "see features at several positions, and this network has none: use head='pool', and quarterturn.Invariants "
            f"or Pool before a layer of your own{parts}"
        )


class _Reader:
    """Reads the network, with its plain parts as one node each, and checks that what is read is what runs."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...], search: PlainSearch, may_decide: bool) -> None:
        self.model, self.inputs, self.search, self.may_decide = model, inputs, search, may_decide
        self.is_faithful = False
        self.tried: set[str] = set()

    def read(self) -> Captured:
        hint = f"{'' if self.may_decide else HINT}. {INSTEAD}"
        with in_eval_mode(self.model), torch.no_grad():
            captured = capture(self.model, self._is_whole, self.inputs, self.may_decide, hint, write_out=True)
        called = [str(node.target) for node in captured.graph.nodes if node.op == "call_module"]
        self.search.check_used(called)
        check_examples_are_apart(captured, [path for path in self.search.parts if path not in self.tried])
        self.tried |= set(self.search.parts)
        if not self.is_faithful:  # fewer nodes change nothing
            check_faithful(captured, self.inputs, f", or wrap() it: {INSTEAD}")
            self.is_faithful = True
        return captured

    def _is_whole(self, module: nn.Module) -> bool:
        """Our layers, plain parts, and what acts otherwise in training: batch norms and dropouts."""
        ours = type(module).__module__.startswith("quarterturn.")
        acts = isinstance(module, nn.modules.batchnorm._BatchNorm) or is_dropout(module)
        return ours or acts or self.search.is_plain(module)


def _with_method(model: nn.Module, method: str) -> nn.Module:
    """The network with another method as its forward; its layers are the same."""
    if method == "forward":
        return model
    kind = type(model)
    if not callable(getattr(kind, method, None)):
        raise not_known("method", method, [name for name in dir(kind) if name.startswith("forward")])
    twin = copy.copy(model)
    vars(twin).pop("forward", None)
    twin.__class__ = type(kind.__name__, (kind,), {"forward": getattr(kind, method), "__module__": kind.__module__})
    return twin


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise OptionError(f"convert() needs a network, an nn.Module, got {model!r}: make it a module with layers")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise OptionError(
                f"{name!r} is on the meta device and has no numbers, so the network cannot be run: make the network on "
                'another device, or move it there with model.to_empty(device="cpu")'
            )


def _check_options(
    group: Group, rotate: str, keep: str, pool: PoolFunction, init: str, unknown: str, output: str
) -> None:
    check_options(group, rotate, spatial=True)
    pool_function(pool, "scalar")
    for name, value, known in (
        ("keep", keep, ("width", "parameters")),
        ("init", init, ("scratch", "pretrained")),
        ("unknown", unknown, ("plain", "refuse")),
        ("output", output, ("pooled", "stacked")),
    ):
        if value not in known:
            raise not_known(f"value of {name}", value, known)
    if init == "pretrained" and keep == "parameters":
        raise OptionError('init="pretrained" needs keep="width": wider layers have no old weights to begin with')


def _check_head(head: str, until: str | None, output: str) -> None:
    if head not in HEADS:
        raise not_known("value of head", head, HEADS)
    if head not in ("auto", "pool") and output == "stacked":
        raise OptionError(
            f"head={head!r} and output='stacked' do not go together: a head leaves no orientations to stack"
        )
    if head not in ("auto", "pool") and until is not None:
        raise OptionError(
            f"head={head!r} and until={until!r} do not go together: from {until!r} on the network stays as it is, and "
            "its last layer sees no orientations"
        )


def _check_match(match: Tensor | None, init: str, group: Group) -> None:
    if match is None:
        return
    if init != "pretrained":
        raise OptionError('match= is for init="pretrained": weights that are drawn anew have nothing to match')
    if not isinstance(match, Tensor) or match.dim() != 2 + group.dim or len(match) < 2:
        got = f"of shape {tuple(match.shape)}" if isinstance(match, Tensor) else type(match).__name__
        raise OptionError(
            f"match= needs a tensor of images with {2 + group.dim} axes, the more of them the better, got {got}"
        )


def _check_until(model: nn.Module, until: str | None) -> None:
    names = [name for name, _ in model.named_modules()]
    if until is not None and until not in names:
        raise not_known("layer", until, [name for name in names if name])


def _finished(writer: EquivariantWriter) -> Converted:
    """The network that was written, its layers made."""
    root, graph = writer.finish()
    converted = Converted(root, graph, "Converted")
    converted.graph.eliminate_dead_code()
    converted.delete_all_unused_submodules()
    converted.graph.lint()
    converted.recompile()
    converted.meta["rotate"] = writer.rotate
    return converted


def _check_shapes(
    converted: nn.Module,
    examples: Sequence[Tensor],
    captured: Captured,
    writer: EquivariantWriter,
    may_round: bool,
) -> None:
    """The network takes the example, and gives shapes as before; orientations as channels may be rounded up."""
    old = outputs_read(captured)
    entered: list[nn.Module] = []

    def leave(*_: Any) -> None:
        entered.pop()

    hooks = [
        nn.modules.module.register_module_forward_pre_hook(lambda module, _: entered.append(module)),
        nn.modules.module.register_module_forward_hook(leave),
    ]
    try:  # of an error in its code torch.fx prints where it was
        with in_eval_mode(converted), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            new = converted(*(x.clone() for x in examples))
    except (QuarterturnError, RuntimeError, ValueError, TypeError, IndexError) as error:
        paths = {module: old_path(path, writer.plain) for path, module in converted.named_modules()}
        inside = next((paths[module] for module in reversed(entered) if module in paths), "")
        while inside not in captured.modules:
            inside = inside.rpartition(".")[0]
        why = f"the converted network does not take the example: {error}"
        raise RefusedParts(f"{why}. {INSTEAD}", {inside: first_line(error)}, captured.callers) from error
    finally:
        for hook in hooks:
            hook.remove()
    before, after = (trees.leaves(tree, Tensor) for tree in (old, new))
    same = [path for path, _ in before] == [path for path, _ in after]
    if not same or not all(
        a.shape == b.shape or (may_round and _differ_in_one(a, b)) for (_, a), (_, b) in zip(before, after, strict=True)
    ):
        shapes = ([tuple(t.shape) for _, t in found] for found in (after, before))
        raise ConversionError(
            "the converted network gives {} where the old one gave {}: a fault of quarterturn, please report it; "
            "wrap() takes every network".format(*shapes)
        )


def _differ_in_one(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() and sum(n != m for n, m in zip(a.shape, b.shape, strict=True)) == 1


def _check_that_something_rolls(converted: nn.Module, writer: EquivariantWriter, search: PlainSearch) -> None:
    if writer.plain and not any(isinstance(module, Ours) for module in converted.modules()):
        why = "".join(f"\n- {path}: {search.parts.get(path, '')}" for path in dict.fromkeys(writer.plain))
        raise ConversionError(
            f"no layer of the network would share filters over orientations: wrap() it, which is the same here:{why}"
        )


def _report(
    model: nn.Module,
    converted: nn.Module,
    writer: EquivariantWriter,
    search: PlainSearch,
    captured: Captured,
    inputs: tuple[Tensor, ...],
) -> Conversion:
    works, batch = [work_of(net, inputs) for net in (model, converted)], inputs[0].shape[0]
    before, after = (total(net, work, inputs) for net, work in zip((model, converted), works, strict=True))
    left_out = layers_of_training(captured, inputs)
    notes = [*writer.notes, *([f"left out, because only training uses them: {left_out}"] if left_out else [])]
    notes += [*writer.notes_on_wide_layers(), *writer.notes_on_heads(), *writer.notes_on_frames()]
    kept = kept_parts(search.parts, captured.modules, works[1], batch, writer.plain)
    share, heads = rolled_share(model, works[0], converted, works[1], writer.heads), dict(writer.heads)
    return Conversion(writer.group, writer.widths.keep, before, after, tuple(dict.fromkeys(notes)), kept, share, heads)


def _verify(
    converted: nn.Module, group: Group, examples: Sequence[Tensor], outputs: dict[str, tuple[Axis, ...]], stacked: bool
) -> None:
    """Turned inputs give what they must: the proof, on the example."""
    trial, images = _to_be_tried(converted, group, examples)

    def error_in(dtype: torch.dtype) -> float:
        own = dtype == images[0].dtype
        net = trial if own else copy.deepcopy(trial).to(dtype)

        def run(*inputs: Tensor) -> Any:
            with in_eval_mode(net):
                return trees.mapped(net(*inputs), Tensor, lambda path, t: _as_checked(t, outputs.get(path), group.dim))

        inputs = tuple(x if own else x.to(dtype) for x in images)
        names = [f"{path}{part}".strip(".") for path in outputs for part in ("", ".free", ".placed")]
        return error_of_answers(run, group, inputs, names if stacked else ())

    found = error_beyond_rounding(error_in, images[0].dtype)
    if found is not None:
        raise ConversionError(
            f"the converted network is not equivariant: turned inputs give an error of {found:.3g} of the difference "
            "between two answers; a fault of quarterturn, please report it, and wrap() the network instead"
        )


def _as_checked(t: Tensor, axes: tuple[Axis, ...] | None, dim: int) -> Any:
    """An output as the checker takes it, features first, whatever axes the old network gave it."""
    if axes is None:
        return t
    at = next((i for i, axis in enumerate(axes) if any(isinstance(c, Tokens | Free) for c in axis)), None)
    if at is not None:  # those without a position are the first
        value, tokens = TrackedValue("oriented", axes=axes), t.movedim(at, 1)
        free, sides = free_tokens(value), [p.size for p in value.positions_in_order]
        placed = tokens[:, free:].mT.unflatten(2, sides) if len(set(sides)) == 1 else tokens[:, free:].sum(1)
        return {"free": tokens[:, :free].flatten(1), "placed": placed}
    sizes = {c.axis: c.size for axis in axes for c in axis if isinstance(c, Position)}
    joined = next((i for i, axis in enumerate(axes) if len(axis) > 1), None)
    if joined is not None and len(set(sizes.values())) > 1:  # turning exchanges the sides, which are not seen here
        return t.sum(joined)
    return as_maps(t, layout_of(axes), [sizes.get(i, 1) for i in range(dim)], dim)


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
