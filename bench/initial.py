"""How strong should weights be at the start, how large the steps and the weight decay? Ordinary and converted networks.

python bench/initial.py [--seeds N]

Small networks, batches of 32 built-in images, a cosine; for each strength of the hidden weights (times He's), learning
rate, optimiser and seed, with batch norms and without. Three tasks: which of five kinds of organism; which hand of a
hook; which hand of all five. The two hands are mirror images of each other: a D4 network cannot tell them apart and is
left out. A run is recorded when it ends, and the next call goes on with those that are missing.
"""

import csv
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np
import torch
from harness import Rows, parser_for, record, save
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn.layers.convolution import he_spread
from quarterturn_lab.data.augment import matrices, warped
from quarterturn_lab.data.synthetic import draw
from quarterturn_lab.settings.config import Augment

SIDE, TRAIN, TEST, BATCH, WIDTH = 24, 2000, 1000, 32, 16
TORCHS = 0.41  # torch's default is so many times as strong as He's
STRENGTHS = (TORCHS, 1.0)
SWEEP, SWEEP_RATE = (0.25, 0.5, 2.0, 4.0), 2e-3  # with AdamW and batch norm: factors of two
RATES = {"adamw": (5e-4, 2e-3, 8e-3), "sgd": (2e-2, 2e-1)}
DECAY = {"adamw": 5e-2, "sgd": 5e-4}
OTHERS = (0.0, 5e-1)  # weight decays of AdamW, with the largest rate: smaller ones shrink no weight in so few steps
GROUPS: dict[str, qt.Group | None] = {"ordinary": None, "C4": qt.C4, "D4": qt.D4}
TASKS = {"hand of a hook": 2, "hand": 2, "kind": 5}  # numbers of classes
STEPS = {"hand of a hook": 400, "hand": 1200, "kind": 400}


@dataclass(frozen=True)
class Run:
    """What is varied."""

    task: str
    network: str
    norms: str
    optimizer: str
    strength: str
    rate: str
    decay: str
    seed: int


HEAD = ("task", "network", "norms", "optimizer", "strength of He's", "learning rate", "weight decay", "seed")


# The tasks, with norms or without, in the order in which they are run. SGD is for one of them.
PLAN = {
    ("hand of a hook", "batch norm"): ("adamw",),
    ("kind", "batch norm"): ("adamw", "sgd"),
    ("hand", "batch norm"): ("adamw",),
    ("kind", "none"): ("adamw",),
    ("hand of a hook", "none"): ("adamw",),
}


def runs(seeds: int) -> Iterator[Run]:
    """Every combination that is run, one seed of all first: strengths against learning rates, then weight decays."""
    for seed in range(seeds):
        for (task, norms), optimizers in PLAN.items():
            for optimizer in optimizers:
                for rate, strength, name in itertools.product(RATES[optimizer], STRENGTHS, GROUPS):
                    if task == "kind" or name != "D4":
                        yield _run(task, name, norms, optimizer, strength, rate, DECAY[optimizer], seed)
        for task, strength, name in itertools.product(("hand of a hook", "kind"), SWEEP, GROUPS):
            if task == "kind" or name != "D4":
                yield _run(task, name, "batch norm", "adamw", strength, SWEEP_RATE, DECAY["adamw"], seed)
        for task, decay, name in itertools.product(("hand of a hook", "kind"), OTHERS, GROUPS):
            if task == "kind" or name != "D4":
                yield _run(task, name, "batch norm", "adamw", 1.0, RATES["adamw"][-1], decay, seed)


def _run(
    task: str, network: str, norms: str, optimizer: str, strength: float, rate: float, decay: float, seed: int
) -> Run:
    return Run(task, network, norms, optimizer, f"{strength:.2g}", f"{rate:.1e}", f"{decay:.1e}", seed)


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(self, seen: int, width: int, stride: int, norms: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(*layer(seen, width, 3, stride, norms), nn.ReLU(), *layer(width, width, 3, 1, norms))
        self.shortcut = nn.Sequential(*layer(seen, width, 1, stride, norms))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def layer(seen: int, width: int, kernel: int, stride: int, norms: bool) -> list[nn.Module]:
    convolution = nn.Conv2d(seen, width, kernel, stride, kernel // 2, bias=not norms)
    return [convolution, nn.BatchNorm2d(width)] if norms else [convolution]


def network(run: Run) -> nn.Module:
    """A residual network; its hidden weights so many times as strong as He's, its last layer as torch has it."""
    torch.manual_seed(run.seed)
    norms, group = run.norms == "batch norm", GROUPS[run.network]
    net: nn.Module = nn.Sequential(
        *layer(1, WIDTH, 3, 1, norms),
        nn.ReLU(),
        Block(WIDTH, WIDTH, 1, norms),
        Block(WIDTH, 2 * WIDTH, 2, norms),
        Block(2 * WIDTH, 4 * WIDTH, 2, norms),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * WIDTH, TASKS[run.task]),
    )
    net = net if group is None else qt.convert(net, group, head="pool")
    for name, parameter in net.named_parameters():
        if parameter.dim() > 2:
            nn.init.normal_(parameter, std=float(run.strength) * he_spread(parameter[0].numel()))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def trained(net: nn.Module, run: Run, images: Tensor, labels: Tensor) -> float:
    """Train a network; the training loss of the last 30 steps, NaN where it diverged."""
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": float(run.decay)}, {"params": others, "weight_decay": 0.0}]
    if run.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups)
    else:
        optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    warps, random, losses = Augment(flip=False, border="reflection"), np.random.default_rng(run.seed), []
    net.train()
    for step in range(STEPS[run.task]):
        for group in optimizer.param_groups:
            group["lr"] = float(run.rate) * 0.5 * (1 + math.cos(math.pi * step / STEPS[run.task]))
        chosen = random.integers(0, TRAIN, BATCH)
        batch = warped(images[chosen], matrices(warps, run.seed, step, chosen), border=warps.border)
        loss = F.cross_entropy(net(batch.contiguous(memory_format=torch.channels_last)), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            return math.nan
    return sum(losses[-30:]) / 30


def measure(run: Run, images: Tensor, labels: Tensor) -> dict[str, object]:
    start, net = time.process_time(), network(run)
    loss = trained(net, run, images, labels)
    seconds = time.process_time() - start
    net.eval()
    with torch.no_grad():
        answers = torch.cat([net(part) for part in images[TRAIN:].split(250)])
    right = (answers.argmax(1) == labels[TRAIN:]).double().mean()
    return {
        **dict(zip(HEAD, astuple(run), strict=True)),
        "test accuracy": f"{right:.3f}",
        "training loss": f"{loss:.3f}",
        "CPU seconds": f"{seconds:.1f}",
    }


def pictures(classes: NDArray[np.int64]) -> Tensor:
    images = torch.from_numpy(draw(classes, SIDE)).float()[:, None] / 255
    return (images - images.mean()) / images.std()


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    classes = np.arange(TRAIN + TEST) % 10
    every, hooks = pictures(classes), pictures(classes % 2)
    kinds, hands = torch.from_numpy(classes // 2), torch.from_numpy(classes % 2)
    data = {"kind": (every, kinds), "hand": (every, hands), "hand of a hook": (hooks, hands)}
    rows: Rows = list(csv.DictReader(record("initial").open())) if record("initial").exists() else []
    done = {tuple(str(row[key]) for key in HEAD) for row in rows}
    for run in runs(options.seeds):
        if tuple(map(str, astuple(run))) not in done:
            rows.append(measure(run, *data[run.task]))
            print(*rows[-1].values(), flush=True)
            save("initial", rows)


if __name__ == "__main__":
    main()
