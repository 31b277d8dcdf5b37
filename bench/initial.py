"""How strong should weights be at the start? Ordinary and converted residual networks on the built-in images.

python bench/initial.py [--seeds N]

Every network is trained for 400 steps of 64 images with AdamW and a cosine, for each strength of its hidden weights
(times He's), learning rate and seed. The classes are in mirrored pairs, so that handedness must be learnt. A run is
recorded when it ends, and the next call goes on with those that are missing.
"""

import csv
import itertools
import math
import time

import numpy as np
import torch
from harness import Rows, parser_for, record, save
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn.layers.convolution import he_spread
from quarterturn_lab.data.augment import matrices, warped
from quarterturn_lab.data.synthetic import CLASSES, draw
from quarterturn_lab.settings.config import Augment

SIDE, TRAIN, TEST, STEPS, BATCH = 32, 2000, 1000, 400, 64
TORCHS = 0.41  # torch's default is so many times as strong as He's
STRENGTHS = (TORCHS / 4, TORCHS, 1.0, 4.0)
RATES = (5e-4, 2e-3, 8e-3)
GROUPS: dict[str, qt.Group | None] = {"ordinary": None, "C4": qt.C4}


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(self, seen: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(seen, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(seen, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def network(group: qt.Group | None, strength: float, seed: int) -> nn.Module:
    """A residual network of widths 32, 64 and 128; its hidden weights so many times as strong as He's."""
    torch.manual_seed(seed)
    net: nn.Module = nn.Sequential(
        nn.Conv2d(1, 32, 3, 1, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Block(32, 32, 1),
        Block(32, 64, 2),
        Block(64, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, len(CLASSES)),
    )
    net = net if group is None else qt.convert(net, group)
    for parameter in net.parameters():
        if parameter.dim() > 2:
            nn.init.normal_(parameter, std=strength * he_spread(parameter[0].numel()))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def trained(net: nn.Module, images: Tensor, labels: Tensor, rate: float, seed: int) -> float:
    """Train a network; the training loss of the last 30 steps."""
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}])
    warps, random, losses = Augment(flip=False, border="reflection"), np.random.default_rng(seed), []
    net.train()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        chosen = random.integers(0, TRAIN, BATCH)
        batch = warped(images[chosen], matrices(warps, seed, step, chosen), border=warps.border)
        loss = F.cross_entropy(net(batch.contiguous(memory_format=torch.channels_last)), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-30:]) / 30


def measure(name: str, strength: float, rate: float, seed: int, images: Tensor, labels: Tensor) -> dict[str, object]:
    start, net = time.process_time(), network(GROUPS[name], strength, seed)
    loss = trained(net, images, labels, rate, seed)
    seconds = time.process_time() - start
    net.eval()
    with torch.no_grad():
        answers = torch.cat([net(part) for part in images[TRAIN:].split(250)])
    right = (answers.argmax(1) == labels[TRAIN:]).double().mean()
    return {
        "network": name,
        "strength of He's": f"{strength:.2g}",
        "learning rate": f"{rate:.0e}",
        "rate / strength": f"{rate / strength:.1e}",
        "seed": seed,
        "test accuracy": f"{right:.3f}",
        "test cross-entropy": f"{F.cross_entropy(answers, labels[TRAIN:]):.3f}",
        "training loss": f"{loss:.3f}",
        "CPU seconds": f"{seconds:.0f}",
    }


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    labels = np.arange(TRAIN + TEST) % len(CLASSES)
    images = torch.from_numpy(draw(labels, SIDE)).float()[:, None] / 255
    images = (images - images.mean()) / images.std()
    rows: Rows = list(csv.DictReader(record("initial").open())) if record("initial").exists() else []
    keys = ("network", "strength of He's", "learning rate", "seed")
    done = {tuple(str(row[key]) for key in keys) for row in rows}
    for seed, rate, strength, name in itertools.product(range(options.seeds), RATES, STRENGTHS, GROUPS):
        if (name, f"{strength:.2g}", f"{rate:.0e}", str(seed)) not in done:
            rows.append(measure(name, strength, rate, seed, images, torch.from_numpy(labels)))
            print(*rows[-1].values(), flush=True)
            save("initial", rows)


if __name__ == "__main__":
    main()
