"""How many labelled volumes does a network need that has the cube's 24 turns, and an ordinary one?

python bench/volume_labels.py [--seeds N]

Textures in volumes, drawn from a seed, each at an angle of its own in space: layers, rods, dots, and layers that twist
to the left or to the right. One label for each volume. The ordinary network is trained on volumes in random turns. Both
have as many maps. A run is recorded when it ends, and the next call goes on with those that are missing.
"""

import csv
import itertools
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
from quarterturn_lab.data.synthetic_volumes import rotation

KINDS = ("layers", "rods", "dots", "left", "right")
SIDE, PERIOD, TWIST, NOISE = 16, 5.0, 16.0, 1.0  # voxels; voxels from layer to layer, and of one turn; deviations
TEST, BATCH, MAPS = 500, 16, 48
LABELS = (10, 40, 160)
NETWORKS = ("ordinary", "OCTA")
STEPS = {"ordinary": (300, 900), "OCTA": (300,)}  # three times as long for the ordinary network too
RATES = (1e-3, 4e-3)


@dataclass(frozen=True)
class Run:
    """What is varied."""

    labels: int
    network: str
    steps: int
    rate: float
    seed: int


HEAD = ("labelled volumes", "network", "steps", "learning rate", "seed")


def runs(seeds: int) -> Iterator[Run]:
    """Every combination that is run; the long trainings last."""
    for long, seed, labels, network in itertools.product((False, True), range(seeds), LABELS, NETWORKS):
        for steps, rate in itertools.product(STEPS[network], RATES):
            if long == (steps > STEPS["OCTA"][0]):
                yield Run(labels, network, steps, rate, seed)


def draw(number: int, kind: str, seed: int) -> NDArray[np.float64]:
    """A volume of one texture, and noise as strong as it is."""
    rng = np.random.default_rng([seed, number])
    places = np.stack(np.meshgrid(*[np.arange(SIDE) - SIDE / 2] * 3, indexing="ij"), axis=-1)
    x, y, z = np.moveaxis(places @ rotation(rng) + rng.uniform(-3, 3, 3), -1, 0)
    if kind in ("left", "right"):
        angle = (1 if kind == "left" else -1) * 2 * np.pi * z / TWIST
        waves = [x * np.cos(angle) + y * np.sin(angle)]
    else:
        waves = [x, y, z][: 1 + KINDS.index(kind)]
    texture = np.prod([np.sqrt(2) * np.cos(2 * np.pi * wave / PERIOD) for wave in waves], axis=0)
    return np.asarray(texture + NOISE * rng.standard_normal(texture.shape))


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """So many volumes, as many of each kind, and their kinds."""
    kinds = np.arange(count) % len(KINDS)
    volumes = np.stack([draw(number, KINDS[kind], seed) for number, kind in enumerate(kinds)])
    return torch.from_numpy(volumes).float()[:, None], torch.from_numpy(kinds)


def network(run: Run) -> nn.Module:
    """Four 3x3x3 convolutions and a mean over positions; converted to the cube's turns, or as it is."""
    torch.manual_seed(run.seed)
    net: nn.Module = nn.Sequential(
        *_layer(1, MAPS),
        nn.AvgPool3d(2),
        *_layer(MAPS, MAPS),
        *_layer(MAPS, 2 * MAPS),
        nn.AvgPool3d(2),
        *_layer(2 * MAPS, 2 * MAPS),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(2 * MAPS, len(KINDS)),
    )
    return qt.convert(net, qt.OCTA) if run.network == "OCTA" else net


def _layer(seen: int, width: int) -> list[nn.Module]:
    return [nn.Conv3d(seen, width, 3, padding=1, bias=False), nn.BatchNorm3d(width), nn.ReLU()]


def measure(run: Run, volumes: Tensor, kinds: Tensor) -> dict[str, object]:
    """Train a network on new volumes, and score it on these."""
    net, random = network(run), np.random.default_rng(run.seed)
    seen, right = drawn(run.labels, seed=1 + run.seed)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, run.rate, total_steps=run.steps, pct_start=0.1)
    start = time.process_time()
    for _ in range(run.steps):
        chosen = random.integers(0, run.labels, BATCH)
        batch = seen[chosen]
        if run.network == "ordinary":
            batch = torch.cat([qt.act(one[None], qt.OCTA, int(random.integers(qt.OCTA.order))) for one in batch])
        optimizer.zero_grad()
        F.cross_entropy(net(batch), right[chosen]).backward()
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - start
    net.eval()
    with torch.no_grad():
        answers = torch.cat([net(part) for part in volumes.split(50)]).argmax(1)
    return {
        **dict(zip(HEAD, astuple(run), strict=True)),
        "accuracy": f"{(answers == kinds).double().mean():.3f}",
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "CPU seconds": f"{seconds:.1f}",
    }


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    test = drawn(TEST, seed=0)
    rows: Rows = list(csv.DictReader(record("volume-labels").open())) if record("volume-labels").exists() else []
    done = {tuple(str(row[key]) for key in HEAD) for row in rows}
    for run in runs(options.seeds):
        if tuple(map(str, astuple(run))) not in done:
            rows.append(measure(run, *test))
            print(*rows[-1].values(), flush=True)
            save("volume-labels", rows)


if __name__ == "__main__":
    main()
