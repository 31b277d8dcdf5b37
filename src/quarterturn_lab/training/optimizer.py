"""Optimisers and the learning rate at each step."""

import math
from itertools import pairwise

import torch
from torch import nn

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.config import Config


def optimizer_for(config: Config, net: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a run. Weights decay; biases, norms and other vectors do not."""
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=True, fused=True)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, fused=True)


def learning_rate(config: Config, step: int, total: int) -> float:
    """The learning rate at a step: a linear warm-up, then drops by ten, or half a cosine down to zero.

    Where the schedule has restarts, this is the schedule of the part of the run that the step is in.
    """
    bounds = [0, *(total * epoch // config.epochs for epoch in config.restarts), total]
    start, end = next((a, b) for a, b in pairwise(bounds) if step < b)
    step, total = step - start, end - start
    warm = warmup_steps(config, total)
    if step < warm:
        return config.lr * (step + 1) / warm
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))
    return config.lr * 0.1 ** sum(step >= drop * total for drop in config.drops)


def warmup_steps(config: Config, total: int) -> int:
    """The number of steps of the warm-up."""
    steps = round(config.warmup * total) if config.warmup < 1 else int(config.warmup)
    if steps >= total:
        raise ConfigError(
            f"the warm-up takes {steps} steps and the run has {total}: give --warmup as a fraction, such as 0.05"
        )
    return steps
