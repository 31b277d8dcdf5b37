"""The optimiser of a run."""

import torch
from torch import nn

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
