"""Train a converted network on the answers and features of the network it came from, from images without labels."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quarterturn import trees
from quarterturn._wrap import Wrapped
from quarterturn.check import in_eval_mode
from quarterturn.errors import OptionError, ShapeError, unknown
from quarterturn.filters import is_whole
from quarterturn.layers.convolution import SliceConv
from quarterturn.layers.linear import RollLinear

WARM_UP = 20  # steps
WEIGHT = 0.1  # of the features' error beside that of the outputs
COMPARED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Pairs = Mapping[str, tuple[nn.Module, nn.Module]]  # a layer of the teacher and one of the student, by their name


def distil(
    teacher: nn.Module,
    student: nn.Module,
    batches: Iterable[Any],
    steps: int | None = None,
    epochs: int | None = None,
    rate: float = 3e-3,
    features: Literal["all"] | Sequence[str] = (),
    progress: Callable[[int, int, float], None] | None = None,
) -> list[float]:
    """Train the `student` to answer as the `teacher` does, on images without labels; the loss of every step.

    `batches` holds tensors, or tuples whose first item is the images, as a `DataLoader` does. It is gone through
    `epochs` times, or for as many `steps`. The loss is the squared error of the outputs, relative to how much those of
    the teacher vary. `features` names layers that both networks have, or "all" convolutions and linear layers, to learn
    from what goes into them too: means over positions and orientations, through a linear map that is learnt as well.
    The optimiser is AdamW, its learning rate rises to `rate` and falls along a cosine. `progress` is called with the
    step, the number of steps and the loss. The teacher runs in eval mode and is not changed; the student runs in
    training mode.

    >>> from quarterturn import C4, convert, wrap
    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    >>> len(distil(wrap(model, C4), convert(model, C4), [torch.randn(4, 1, 9, 9)], steps=5))
    5
    """
    _check_networks(teacher, student)
    if not rate > 0:
        raise OptionError(f"rate must be above 0, got {rate!r}")
    count = _number_of_steps(batches, steps, epochs)
    pairs = _shared_layers(teacher, student, features)
    trained = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    errors, losses = _Errors(pairs), []
    with in_eval_mode(teacher), _in_training_mode(student), errors.watching():
        for step, images in zip(range(count), _images(batches, count), strict=False):
            images = images.to(next(student.parameters()).device)
            with torch.no_grad():
                wanted = teacher(images)
            loss = errors.of_outputs(student(images), wanted)
            if pairs:
                loss = loss + WEIGHT * errors.of_features(len(images), optimizer)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise OptionError(f"the loss became {losses[-1]} in step {step}: use a rate below {rate:g}")
            for group in optimizer.param_groups:
                group["lr"] = rate * _schedule(step, count)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)  # one odd batch must not slow down all that follow
            optimizer.step()
            if progress is not None:
                progress(step + 1, count, losses[-1])
    return losses


class _Errors:
    """Squared errors, each relative to the variance of what is wanted, of which it keeps the mean over steps."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.maps: dict[str, nn.Linear] = {}
        self.variances: dict[str, tuple[int, Tensor]] = {}
        self.seen: dict[str, tuple[list[Tensor], list[Tensor]]] = {name: ([], []) for name in pairs}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what goes into the layers."""
        handles = []
        for name, layers in self.pairs.items():
            for layer, kept in zip(layers, self.seen[name], strict=True):
                handles.append(layer.register_forward_pre_hook(lambda m, x, k=kept: k.append(_over_positions(m, x[0]))))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def of_outputs(self, given: Any, wanted: Any) -> Tensor:
        ours, theirs = (dict(trees.leaves(tree, Tensor)) for tree in (given, wanted))
        shapes = [{path: tuple(t.shape) for path, t in tensors.items()} for tensors in (ours, theirs)]
        if shapes[0] != shapes[1] or not ours:
            raise ShapeError(
                f"the student gives {_told(shapes[0])} and the teacher {_told(shapes[1])}: convert the network that is "
                "the teacher, or give both the same outputs"
            )
        numbers = [path for path, t in theirs.items() if t.is_floating_point()]
        if not numbers:
            raise OptionError("the teacher's outputs are whole numbers, which teach nothing: let it return scores")
        return torch.stack([self._relative(f"output {path}", ours[path], theirs[path]) for path in numbers]).mean()

    def of_features(self, examples: int, optimizer: torch.optim.Optimizer) -> Tensor:
        found = []
        for name, kept in self.seen.items():
            if not all(kept):
                raise OptionError(f"features: {name!r} is not called by both networks, choose others or features=()")
            theirs, ours = (_over_pathways(each, examples) for each in kept)
            if name not in self.maps:
                self.maps[name] = nn.Linear(ours.shape[1], theirs.shape[1], device=ours.device, dtype=ours.dtype)
                optimizer.add_param_group({"params": list(self.maps[name].parameters())})
            found.append(self._relative(f"features {name}", self.maps[name](ours), theirs.detach()))
            for each in kept:
                each.clear()
        return torch.stack(found).mean()

    def _relative(self, name: str, given: Tensor, wanted: Tensor) -> Tensor:
        around = wanted.mean([i for i in range(wanted.dim()) if i != 1], keepdim=True)
        variance = (wanted - around).square().mean()
        variance = torch.maximum(variance, 0.01 * wanted.square().mean())  # a single example does not vary
        count, mean = self.variances.get(name, (0, variance))
        mean = mean + (variance - mean) / (count + 1)
        self.variances[name] = count + 1, mean
        return (given - wanted).square().mean() / mean.clamp(min=torch.finfo(mean.dtype).tiny)


def _over_positions(layer: nn.Module, x: Tensor) -> Tensor:
    """What goes into a layer, as means over positions, and over orientations where they are features."""
    x = x if isinstance(layer, nn.Linear | RollLinear) else x.movedim(1, -1)
    if getattr(layer, "rotate", None) == "filters":
        x = x.unflatten(-1, (-1, layer.group.order)).mean(-1)  # type: ignore[union-attr]
    return x.flatten(1, -2).mean(1) if x.dim() > 2 else x


def _over_pathways(parts: list[Tensor], examples: int) -> Tensor:
    """Means over orientations that lie in the batch, pathway by pathway, and over all calls of a layer."""
    return torch.cat(parts).unflatten(0, (-1, examples)).mean(0)


def _shared_layers(teacher: nn.Module, student: nn.Module, features: Literal["all"] | Sequence[str]) -> Pairs:
    """The layers to compare: those that both networks have, and that do not see the images themselves."""
    inner = teacher.model if isinstance(teacher, Wrapped) else teacher
    theirs = {name: layer for name, layer in inner.named_modules() if isinstance(layer, COMPARED)}
    ours = {
        name: layer
        for name, layer in student.named_modules()
        if isinstance(layer, COMPARED) or (hasattr(layer, "group") and not isinstance(layer, SliceConv))
    }
    shared = {name: (theirs[name], ours[name]) for name in theirs if name in ours}
    if features == "all":
        return shared
    for name in features:
        if name not in shared:
            raise unknown("layer in features", name, shared)
    return {name: shared[name] for name in features}


def _check_networks(teacher: nn.Module, student: nn.Module) -> None:
    for role, net in (("teacher", teacher), ("student", student)):
        if not isinstance(net, nn.Module):
            raise OptionError(f"the {role} must be a network, an nn.Module, got {net!r}")
    if not any(p.requires_grad for p in student.parameters()):
        raise OptionError("the student has no parameters to train: unfreeze some with requires_grad_(True)")
    if {id(p) for p in teacher.parameters()} & {id(p) for p in student.parameters()}:
        raise OptionError("teacher and student share parameters, and the teacher would change: give copy.deepcopy(…)")


def _number_of_steps(batches: Iterable[Any], steps: int | None, epochs: int | None) -> int:
    if (steps is None) == (epochs is None):
        raise OptionError("say how long to train: steps=1000, or epochs=10, and not both")
    for name, value in (("steps", steps), ("epochs", epochs)):
        if value is not None and not is_whole(value, least=0):
            raise OptionError(f"{name} must be a whole number of at least 0, got {value!r}")
    if steps is not None:
        return steps
    try:
        return (epochs or 0) * len(batches)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError("these batches have no length: say how many steps=, or give a DataLoader or a list") from None


def _images(batches: Iterable[Any], count: int) -> Iterator[Tensor]:
    """The images of batch after batch, from the beginning again where they end."""
    done = 0
    while done < count:
        before = done
        for batch in batches:
            images = batch[0] if isinstance(batch, tuple | list) and batch else batch
            if not isinstance(images, Tensor):
                raise OptionError(
                    f"a batch must be a tensor of images, or a tuple that begins with one, got {type(images).__name__}"
                )
            yield images
            done += 1
        if done == before:
            raise OptionError(f"the batches ended after {done} of {count} steps: give a DataLoader or a list of them")


def _schedule(step: int, count: int) -> float:
    """The learning rate of a step, of its largest: a short rise, then a cosine."""
    return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / count))


@contextmanager
def _in_training_mode(model: nn.Module) -> Iterator[None]:
    with in_eval_mode(model):  # which gives every module its own mode again
        model.train()
        yield


def _told(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return " and ".join(f"{path} {shape}".strip() for path, shape in shapes.items()) or "no tensor"
