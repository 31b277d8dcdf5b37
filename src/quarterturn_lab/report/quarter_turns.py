"""What quarter turns do to the answers of networks side by side: a sentence, and the images that show it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quarterturn_lab.data.dataset import Data, Dataset, Indices
from quarterturn_lab.evaluation.score import predict
from quarterturn_lab.settings.config import Config

QUARTERS = (0.0, 90.0, 180.0, 270.0)
CPU = torch.device("cpu")

Loaded = dict[str, tuple[Config, Data, nn.Module]]


@dataclass(frozen=True)
class Decisions:
    """Which class each network names for the same test images, in four orientations."""

    indices: Indices
    named: dict[str, NDArray[np.int64]]  # by network: (orientations, images)

    def changed(self, network: str) -> NDArray[np.bool_]:
        """Images for which a network says something else when they are turned."""
        named = self.named[network]
        return (named != named[0]).any(0)

    def sentence(self) -> str:
        """How many images get another answer when they are turned, by network.

        >>> same, other = np.zeros((4, 3), int), np.array([[0, 0, 0], [0, 1, 0], [0, 1, 2], [0, 0, 0]])
        >>> Decisions(np.arange(3), {"plain": other, "c4": same}).sentence()
        'When 3 test images are turned by 90, 180 and 270 degrees, plain changes its answer for 2, c4 for none.'
        """
        counts = {network: int(self.changed(network).sum()) for network in self.named}
        (first, changed), *others = counts.items()
        rest = "".join(f", {network} for {count or 'none'}" for network, count in others)
        turned = f"When {len(self.indices)} test images are turned by 90, 180 and 270 degrees"
        return f"{turned}, {first} changes its answer for {changed or 'none'}{rest}."

    def showing(self, labels: NDArray[np.int64], count: int) -> Indices:
        """Test images for a figure. The first ones show the claim: one network changes its mind, others are right."""
        changed = {network: self.changed(network) for network in self.named}
        fickle = np.stack(list(changed.values())).any(0)
        truth = labels[self.indices]
        steady = [~changed[network] & (self.named[network][0] == truth) for network in self.named]
        shows = fickle & np.stack(steady).any(0)
        first = np.flatnonzero(shows)
        first = first[np.linspace(0, len(first) - 1, min((count + 1) // 2, len(first))).astype(int)]  # of many classes
        rest = np.setdiff1d(np.arange(len(self.indices)), first)
        others = rest[np.linspace(0, len(rest) - 1, min(count - len(first), len(rest))).astype(int)]
        return self.indices[[*first, *others]]


def decide(loaded: Loaded, indices: Indices) -> Decisions:
    """Ask all networks, four times each."""
    named = {}
    for label, (config, data, net) in loaded.items():
        assert isinstance(data, Dataset)
        named[label] = np.stack([predict(config, net, data, indices, CPU, (angle,)).argmax(1) for angle in QUARTERS])
    return Decisions(indices, named)
