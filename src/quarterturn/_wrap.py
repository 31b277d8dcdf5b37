"""Make any model equivariant in one call: slice, the unchanged model, pool."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quarterturn import ops, trees
from quarterturn.errors import OptionError, ShapeError, unknown
from quarterturn.filters import check_options, is_whole
from quarterturn.groups import Group, groups_for
from quarterturn.ops import PoolFunction

Treatment = Literal["scalar", "vector", "fixed"]
TREATMENTS = ("scalar", "vector", "fixed")
Treatments = Treatment | Mapping[str, Treatment]


class Wrapped(nn.Module):
    """A model that runs on all orientations of its input and pools its realigned outputs; see `wrap`."""

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        pool: PoolFunction = "mean",
        inputs: Treatments | None = None,
        outputs: Treatments | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise OptionError(f"wrap() needs a model, an nn.Module, got {model!r}: make it a module")
        check_options(group)
        ops.pool_function(pool)
        for treatments in (inputs, outputs):
            for treatment in treatments.values() if isinstance(treatments, Mapping) else [treatments]:
                if treatment is not None and treatment not in TREATMENTS:
                    raise unknown("treatment", treatment, TREATMENTS)
        if chunk is not None and not is_whole(chunk, least=1):
            raise OptionError(f"chunk must be a whole number of at least 1, got {chunk!r}")
        self.model, self.group, self.pool, self.chunk = model, group, pool, chunk
        self.inputs, self.outputs = inputs, outputs
        parameters = inspect.signature(model.forward).parameters.values()
        self.argument_names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        names = [*self.argument_names, *(str(i) for i in range(len(self.argument_names), len(args)))][: len(args)]
        given = {**dict(zip(names, args, strict=True)), **kwargs}
        _check_names(self.inputs, given, "inputs")
        self._check_that_something_turns(given)
        pathways = [self._turned(given, g) for g in range(self.group.order)]
        batches = list(self._batches(pathways))
        if len(batches) > 1:
            _refuse_batch_statistics(self.model)
        results: dict[int, Any] = {}
        for batch in batches:
            joined = trees.joined([pathways[g] for g in batch], Tensor, _together)
            out = self.model(*(joined[name] for name in names), **{name: joined[name] for name in kwargs})
            results.update(zip(batch, _split(out, len(batch)), strict=True))
        ordered = [results[g] for g in range(self.group.order)]
        _check_names(self.outputs, dict(trees.leaves(ordered[0], Tensor)), "outputs")
        return trees.joined(ordered, Tensor, self._pooled)

    def _turned(self, given: dict[str, Any], g: int) -> dict[str, Any]:
        def turned(path: str, x: Tensor) -> Tensor:
            treatment = _treatment(self.inputs, path, x, self.group)
            return x if treatment == "fixed" else ops.act(x, self.group, g, treatment)

        return trees.mapped(given, Tensor, turned)

    def _check_that_something_turns(self, given: dict[str, Any]) -> None:
        tensors = trees.leaves(given, Tensor)
        if all(_treatment(self.inputs, path, x, self.group) == "fixed" for path, x in tensors):
            shapes = " and ".join(str(tuple(x.shape)) for _, x in tensors) or "no tensors"
            axes = max((x.dim() - 2 for _, x in tensors), default=0)
            hint = f"{groups_for(axes)}, " if axes > 0 else ""
            raise ShapeError(
                f"nothing would be turned: {self.group.name} turns {self.group.dim} spatial axes, so one of the inputs "
                f"must be maps with {2 + self.group.dim} axes, got {shapes}; {hint}or say which "
                'inputs to turn, as inputs={"name": "scalar"}'
            )

    def _batches(self, pathways: list[Any]) -> Iterator[list[int]]:
        """Pathways that run together: they have the same shapes, and there are at most `chunk` of them."""
        shapes = [tuple(tuple(x.shape) for _, x in trees.leaves(pathway, Tensor)) for pathway in pathways]
        for shape in dict.fromkeys(shapes):
            same = [g for g in range(self.group.order) if shapes[g] == shape]
            size = self.chunk or len(same)
            yield from (same[i : i + size] for i in range(0, len(same), size))

    def _pooled(self, path: str, parts: list[Tensor]) -> Tensor:
        treatment = _treatment(self.outputs, path, parts[0], self.group)
        if treatment != "fixed":
            parts = [ops.act(part, self.group, self.group.inverse[g], treatment) for g, part in enumerate(parts)]
        if not (parts[0].is_floating_point() or parts[0].is_complex()) and self.pool != "max":
            raise OptionError(
                f"the output {path or 'of the model'} holds {parts[0].dtype} values, which have no {self.pool}: wrap "
                "only the part of the model that returns scores"
            )
        kind: ops.Kind = "vector" if treatment == "vector" else "scalar"
        return ops.reduce_pathways(ops.pool_function(self.pool, kind), torch.stack(parts))

    def extra_repr(self) -> str:
        return f"{self.group.name}, pool={self.pool!r}" + (f", chunk={self.chunk}" if self.chunk else "")


def wrap(
    model: nn.Module,
    group: Group,
    pool: PoolFunction = "mean",
    inputs: Treatments | None = None,
    outputs: Treatments | None = None,
    chunk: int | None = None,
) -> Wrapped:
    """Make any model invariant, or same-equivariant, and keep its weights: slice, the model, pool (section 4.2).

    This is test-time averaging over turns, exact and trainable. Inputs and outputs may be tensors, or tuples, lists,
    dicts and dataclasses of them. Tensors with 2 + group.dim axes are turned as inputs and realigned as outputs; other
    tensors are repeated. All outputs are pooled. Maps that are not square run in two batches.

    - `inputs`, `outputs`: what to do instead, for all tensors or by name: {"heads.mask": "fixed"}. "scalar": turn;
      "vector": directions, whose components turn too; "fixed": do not turn.
    - `chunk`: to save memory, run that many pathways at a time. In training mode this raises if the model has batch
      norms.

    >>> from quarterturn import D4
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.Flatten(), nn.LazyLinear(10))
    >>> wrap(model, D4)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    return Wrapped(model, group, pool, inputs, outputs, chunk)


def _together(_: str, parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts[0].dim() else parts[0]


def _treatment(treatments: Treatments | None, path: str, x: Tensor, group: Group) -> Treatment:
    if isinstance(treatments, str):
        return treatments
    if treatments is not None and path in treatments:
        return treatments[path]
    return "scalar" if x.dim() == 2 + group.dim else "fixed"


def _check_names(treatments: Treatments | None, there: Mapping[str, Any], what: str) -> None:
    if isinstance(treatments, Mapping):
        known = {*there, *(path for path, _ in trees.leaves(there, Tensor))}
        for name in treatments:
            if name not in known:
                raise unknown(f"name in {what}", name, sorted(known))


def _refuse_batch_statistics(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or not module.track_running_stats):
            raise OptionError(
                f"{path!r} ({type(module).__name__}) takes statistics over the batch, and pathways in separate batches "
                "would not share them: use eval mode, or square maps without chunk="
            )


def _split(out: Any, count: int) -> list[Any]:
    """Split the outputs of a batch of pathways into those of each pathway."""

    def check(path: str, x: Tensor) -> Tensor:
        if x.dim() == 0 or x.shape[0] % count:
            raise ShapeError(
                f"the output {path or 'of the model'} has shape {tuple(x.shape)}, and its first axis does not hold the "
                f"{count} pathways of the input: wrap() needs models that keep the batch as the first axis"
            )
        return x.unflatten(0, (count, x.shape[0] // count))

    pathways = trees.mapped(out, Tensor, check)
    return [trees.mapped(pathways, Tensor, lambda _, x, i=i: x[i]) for i in range(count)]  # type: ignore[misc]
