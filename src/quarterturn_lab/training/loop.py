"""The training loop, reproducible even if it is interrupted and resumed.

Image order depends only on (seed, epoch), augmentation on (seed, epoch, draw) and dropout on (seed, step, part, rank).
So several processes take the steps of one, to rounding, if there is no dropout; with it, its masks are others.
"""

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from quarterturn import sync_batch_norm
from quarterturn_lab import ranks
from quarterturn_lab.data.dataset import Data
from quarterturn_lab.errors import ConfigError, Diverged
from quarterturn_lab.evaluation.score import evaluate
from quarterturn_lab.evaluation.tasks import TASKS, Task
from quarterturn_lab.seeds import key
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training.average import Average
from quarterturn_lab.training.batches import Batches, Sized, shares
from quarterturn_lab.training.fabric import fabric_for
from quarterturn_lab.training.optimizer import optimizer_for
from quarterturn_lab.training.schedule import learning_rate, scored_epochs

REMEDY = "Lower --lr, or clip the gradient with --clip 1"
Replan = Callable[[Config, "State"], Config]  # the settings to go on with, at the end of an epoch


@dataclass(frozen=True)
class Loss:
    """The loss of a task: a sum over labels, divided by what they weigh."""

    total: Callable[[Tensor, Tensor], Tensor]
    weight: Callable[[Tensor], Any]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.total(outputs, labels) / self.weight(labels)


@dataclass
class Best:
    """The weights with the best validation score so far."""

    epoch: int
    score: float
    weights: dict[str, Tensor]


@dataclass
class State:
    """The state of a run: everything a checkpoint holds, and what runs it."""

    fabric: Fabric
    net: nn.Module
    run: Any  # the network as Fabric calls it
    optimizer: Any  # Fabric's, around torch's
    average: Average | None = None
    best: Best | None = None
    step: int = 0
    loss_sum: float = 0.0  # over the images of the epoch so far
    images_seen: int = 0  # in the epoch so far
    first_loss: float | None = None
    recent_loss: float | None = None
    worse: int = 0  # scores in a row that are not better than the best
    stopped: bool = False  # by patience
    seconds: dict[str, float] = field(
        default_factory=lambda: {"wall": 0.0, "cpu": 0.0, "waiting": 0.0, "scoring": 0.0, "setup": 0.0}
    )

    @property
    def scored(self) -> nn.Module:
        """The network that is scored: the one with averaged weights, if there is one."""
        return self.average.net if self.average else self.net


@dataclass(frozen=True)
class Step:
    """The result of one step: the loss of its batch and, at the end of an epoch, the epoch's record."""

    step: int
    total: int  # steps of the run, as planned now
    loss: float
    images: int
    record: dict[str, Any] | None


def new_state(config: Config, net: nn.Module, device: torch.device) -> State:
    """The state of a run before its first step."""
    fabric = fabric_for(config, device)
    if ranks.world() > 1:
        sync_batch_norm(net)
    wanted: Any = torch.compile(net) if config.compile else net
    run, optimizer = fabric.setup(wanted, optimizer_for(config, net))
    return State(fabric, net, run, optimizer, Average(net, config.ema) if config.ema else None)


def train(config: Config, data: Data, state: State, replan: Replan | None = None) -> Generator[Step, None, None]:
    """Train from the given state to the end. Yields after every step, when the state may be saved.

    `replan` is asked at the end of each epoch, and may change the number of epochs.
    """
    before: Config | None = None
    while config != before:
        before = config
        for step in _train(config, data, state):
            yield step
            if step.record and (config := ranks.agreed(replan(before, state) if replan else before)) != before:
                break


def _train(config: Config, data: Data, state: State) -> Generator[Step, None, None]:
    task, fabric = TASKS[data.task], state.fabric
    if config.keep == "best" and not len(data.valid):
        raise ConfigError("--keep best needs validation images, and these data have none: give --validation 0.1")
    batches = Batches(config, data, fabric.device, ranks.rank(), ranks.world())
    per_epoch, loss_of = (
        batches.per_epoch,
        loss_for(config, task, class_weights(data).to(fabric.device) if config.class_weights else None),
    )
    total = per_epoch * config.epochs
    points = scored_epochs(config)
    wall, cpu = time.perf_counter(), time.process_time()
    for step, made, waited in batches.from_step(state.step, total if not state.stopped else state.step):
        rate = learning_rate(config, step, total)
        value, images = _update(config, state, loss_of, made, step, rate), made[2]
        _watch(state, value, step)
        state.step = step + 1
        state.loss_sum += value * images
        state.images_seen += images
        record: dict[str, Any] | None = None
        if state.step % per_epoch == 0:
            epoch = state.step // per_epoch
            record = {"epoch": epoch, "step": state.step, "lr": rate, "train_loss": state.loss_sum / state.images_seen}
            if epoch in points:
                paused = time.perf_counter(), time.process_time()
                part = "valid" if len(data.valid) else "test"
                found = evaluate(config, state.scored, data, getattr(data, part), fabric.device)
                record |= {f"{part}_{name}": found[name] for name in task.watched}
                if config.keep == "best":
                    _keep(state, task, epoch, found[task.score])
                    state.stopped = config.patience is not None and state.worse >= config.patience
                state.seconds["scoring"] += time.perf_counter() - paused[0]
                wall += time.perf_counter() - paused[0]  # evaluation does not count as training time
                cpu += time.process_time() - paused[1]
            state.loss_sum, state.images_seen = 0.0, 0
        now, cpu_now = time.perf_counter(), time.process_time()
        state.seconds["wall"] += now - wall
        state.seconds["cpu"] += cpu_now - cpu
        state.seconds["waiting"] += waited
        wall, cpu = now, cpu_now
        yield Step(state.step, total, value, images, record)
        if state.stopped:
            return


def loss_for(config: Config, task: Task, weights: Tensor | None = None) -> Loss:
    """The loss of a task, with smoothed labels and weighted classes if the settings ask for them."""
    changes: dict[str, Any] = {}
    if config.label_smoothing:
        changes["label_smoothing"] = config.label_smoothing
    if weights is not None:
        changes["weight"] = weights
    if changes and task.loss is not nn.functional.cross_entropy:
        raise ConfigError(f"--label-smoothing is for classes, and the loss here is {task.name}: leave it out")
    if weights is None:
        return Loss(partial(task.loss, **changes, reduction="sum"), task.counted)
    return Loss(partial(task.loss, **changes, reduction="sum"), lambda labels: weights[labels].sum())


def class_weights(data: Data) -> Tensor:
    """A weight for each class: the inverse of its number of training images, so that their mean over images is 1."""
    if data.task != "classes":
        raise ConfigError(f"--class-weights is for images with classes, not for {data.task}: leave it out")
    counts = np.bincount(data.labels[data.train], minlength=len(data.classes))  # type: ignore[index]
    present = np.maximum(counts, 1) * np.count_nonzero(counts)
    return torch.from_numpy(np.where(counts > 0, counts.sum() / present, 0.0)).float()


def _update(config: Config, state: State, loss_of: Loss, made: Sized, step: int, rate: float) -> float:
    """One step of the optimiser; returns the mean loss of the whole batch.

    The batch is split into parts, and each part between processes. Their losses are added up and divided by what all
    labels weigh, so that any split gives the same step up to rounding (batch norms normalise each part by itself).
    """
    fabric, (images, labels, whole), world = state.fabric, made, ranks.world()
    mine = shares(whole, config.accumulate, ranks.rank(), world)
    sizes = [part.stop - part.start for part, _ in mine]
    parts = list(zip(images.split(sizes), labels.split(sizes), (every for _, every in mine), strict=True))
    weight = torch.zeros((), device=fabric.device)
    for _, y, every in parts:
        weight += loss_of.weight(y) / (world if every else 1)
    ranks.summed(weight)
    state.net.train()
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.optimizer.zero_grad(set_to_none=True)
    losses = []
    for number, (x, y, every) in enumerate(parts):
        own = ranks.rank() * config.accumulate + number if not every else number
        torch.manual_seed(key("dropout", config.seed, step, *([own] if own else [])))
        if world > 1:
            sync_batch_norm(state.net, not every)
        with fabric.no_backward_sync(state.run, enabled=number < len(parts) - 1):
            loss = loss_of.total(state.run(x).float(), y) * ((1 if every else world) / weight)
            fabric.backward(loss)
        losses.append(loss.detach())
    if config.clip is not None:  # over parameters in the network's order: the optimiser's rounds otherwise
        fabric.strategy.precision.unscale_gradients(state.optimizer.optimizer)
        nn.utils.clip_grad_norm_(state.net.parameters(), config.clip)
    state.optimizer.step()
    if state.average:
        state.average.update(state.net, step + 1)
    return float(ranks.summed(torch.stack(losses).sum())) / world


def _keep(state: State, task: Task, epoch: int, score: float) -> None:
    """Keep the weights if their score is the best so far; the first of equal ones stays."""
    sign = 1 if task.better == "higher" else -1
    state.worse += 1
    if math.isfinite(score) and (state.best is None or sign * score > sign * state.best.score):
        weights = {name: value.clone() for name, value in state.scored.state_dict().items()}
        state.best, state.worse = Best(epoch, score, weights), 0


def _watch(state: State, loss: float, step: int) -> None:
    """Stop if training diverges: the loss is not finite, or its running mean exceeds three times the first loss."""
    state.first_loss = loss if state.first_loss is None else state.first_loss
    state.recent_loss = loss if state.recent_loss is None else 0.95 * state.recent_loss + 0.05 * loss
    if math.isfinite(loss) and state.recent_loss <= 3 * max(state.first_loss, 0.1):
        return
    raise Diverged(
        f"training diverges: the loss is {loss:.4g} at step {step + 1}, from {state.first_loss:.4g} at the start. The "
        f"last checkpoint is kept. {REMEDY}"
    )


@torch.no_grad()
def check_outputs(config: Config, net: nn.Module, device: torch.device) -> None:
    """Stop if the last step has spoilt the network, which no loss has shown: its outputs are not finite."""
    noise = torch.randn(2, config.net.channels, *[config.net.side] * config.net.axes, device=device)
    if not torch.isfinite(net.eval()(noise)).all():
        raise Diverged(f"training diverges: after the last step, the outputs are not finite. {REMEDY}")
