"""A running average of a network's weights (EMA), which is often better than the last weights."""

import copy

import torch
from torch import nn


class Average:
    """`average.net` is a copy of the network whose weights and statistics are running averages over the steps.

    The average begins with the network as it is now. At first it follows fast: with a decay of at most (1 + step) /
    (10 + step), it forgets the initial weights in short runs too. The running statistics of batch norm are averaged
    like the weights they belong to, and its counters are copied.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.net = copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module, step: int) -> None:
        """Take in the weights after a step, counted from 1.

        >>> layer = nn.Linear(1, 1)
        >>> average = Average(layer, 0.75)
        >>> for step in range(1, 40):
        ...     _ = nn.init.constant_(layer.weight, 5.0)
        ...     average.update(layer, step)
        >>> round(average.net.weight.item(), 3)
        5.0
        """
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        new, old = net.state_dict(), self.net.state_dict()
        real = [name for name in new if new[name].is_floating_point()]
        torch._foreach_lerp_([old[name] for name in real], [new[name] for name in real], share)
        for name in new.keys() - set(real):
            old[name].copy_(new[name])
