"""The training loop, reproducible even if it is interrupted and resumed.

Image order depends only on (seed, epoch), augmentation on (seed, epoch, image) and dropout on (seed, step).
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quarterturn_lab.data.dataset import Data, Indices, Scenes
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.errors import RunError
from quarterturn_lab.evaluation.score import evaluate
from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.seeds import key
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training.batches import batch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class State:
    """The state of a run: everything a checkpoint holds besides the weights."""

    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    loss_sum: float = 0.0  # over the images of the epoch so far
    images_seen: int = 0  # in the epoch so far
    first_loss: float | None = None
    recent_loss: float | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"wall": 0.0, "cpu": 0.0, "waiting": 0.0})


@dataclass(frozen=True)
class Step:
    """The result of one step: the loss of its batch and, at the end of an epoch, the epoch's record."""

    step: int
    loss: float
    images: int
    record: dict[str, Any] | None


def new_state(config: Config, net: nn.Module, device: torch.device) -> State:
    """A new state with Adam, and weight decay on weights but not on biases."""
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=config.lr, fused=True)
    return State(optimizer, torch.amp.GradScaler(device.type, enabled=config.precision == "fp16"))


def tiles_of(config: Config, data: Data) -> int:
    """The number of samples from each training image in an epoch."""
    return config.tiles if isinstance(data, Scenes) else 1


def steps_per_epoch(config: Config, data: Data) -> int:
    return math.ceil(len(data.train) * tiles_of(config, data) / config.batch_images)


def learning_rate(config: Config, step: int, total: int) -> float:
    """The learning rate at a step: divided by ten after each drop."""
    return config.lr * 0.1 ** sum(step >= drop * total for drop in config.drops)


def epoch_order(config: Config, data: Data, epoch: int) -> Indices:
    """The samples of an epoch in random order, numbered `image * tiles + tile`."""
    tiles = tiles_of(config, data)
    samples = (data.train[:, None] * tiles + np.arange(tiles)).ravel()
    return np.random.default_rng(key("order", config.seed, epoch)).permutation(samples)


class Batches:
    """Batches by step. The next one is prepared in another thread during the current step."""

    def __init__(self, config: Config, data: Data, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        self.scaling, self.per_epoch = scaling_of(data), steps_per_epoch(config, data)
        self.order: tuple[int, Indices] = (-1, data.train)

    def make(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, self.per_epoch)
        if self.order[0] != epoch:
            self.order = (epoch, epoch_order(self.config, self.data, epoch))
        size = self.config.batch_images
        samples = self.order[1][place * size : (place + 1) * size]
        with torch.no_grad():
            return batch(self.config, self.data, self.scaling, epoch, samples, self.device)

    def from_step(self, first: int, last: int) -> Iterator[tuple[int, Tensor, Tensor, float]]:
        """Yields (step, images, labels, seconds spent waiting)."""
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(self.make, first)
            for step in range(first, last):
                start = time.perf_counter()
                images, labels = coming.result()
                waited = time.perf_counter() - start
                if step + 1 < last:
                    coming = pool.submit(self.make, step + 1)
                yield step, images, labels, waited


def autocast(config: Config, device: torch.device) -> Any:
    if config.precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[config.precision])


def train(config: Config, net: nn.Module, data: Data, state: State, device: torch.device) -> Iterator[Step]:
    """Train from the given state to the end. Yields after every step, when net and state may be saved."""
    batches, task = Batches(config, data, device), TASKS[data.task]
    per_epoch = batches.per_epoch
    total = per_epoch * config.epochs
    run: Callable[[Tensor], Tensor] = torch.compile(net) if config.compile else net
    points = {math.ceil(config.epochs * (i + 1) / config.eval_points) for i in range(config.eval_points)}
    wall, cpu = time.perf_counter(), time.process_time()
    for step, images, labels, waited in batches.from_step(state.step, total):
        net.train()
        rate = learning_rate(config, step, total)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed(key("dropout", config.seed, step))
        with autocast(config, device):
            outputs = run(images)
        loss = task.loss(outputs.float(), labels)
        state.optimizer.zero_grad(set_to_none=True)
        state.scaler.scale(loss).backward()
        if config.clip is not None:
            state.scaler.unscale_(state.optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), config.clip)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        value = loss.item()
        _watch(state, value, step)
        state.step = step + 1
        state.loss_sum += value * len(labels)
        state.images_seen += len(labels)
        record: dict[str, Any] | None = None
        if state.step % per_epoch == 0:
            epoch = state.step // per_epoch
            record = {"epoch": epoch, "step": state.step, "lr": rate, "train_loss": state.loss_sum / state.images_seen}
            if epoch in points:
                paused = time.perf_counter(), time.process_time()
                part = "valid" if len(data.valid) else "test"
                found = evaluate(config, net, data, data.valid if len(data.valid) else data.test, device)
                record |= {f"{part}_{name}": found[name] for name in task.watched}
                wall += time.perf_counter() - paused[0]  # evaluation does not count as training time
                cpu += time.process_time() - paused[1]
            state.loss_sum, state.images_seen = 0.0, 0
        now, cpu_now = time.perf_counter(), time.process_time()
        state.seconds["wall"] += now - wall
        state.seconds["cpu"] += cpu_now - cpu
        state.seconds["waiting"] += waited
        wall, cpu = now, cpu_now
        yield Step(state.step, value, len(labels), record)


def _watch(state: State, loss: float, step: int) -> None:
    """Stop if training diverges: the loss is not finite, or its running mean exceeds three times the first loss."""
    state.first_loss = loss if state.first_loss is None else state.first_loss
    state.recent_loss = loss if state.recent_loss is None else 0.95 * state.recent_loss + 0.05 * loss
    if math.isfinite(loss) and state.recent_loss <= 3 * max(state.first_loss, 0.1):
        return
    raise RunError(
        f"training diverges: the loss is {loss:.4g} at step {step + 1}, from {state.first_loss:.4g} at the start. The "
        "last checkpoint is kept. Lower --lr, or clip the gradient with --clip 1"
    )
