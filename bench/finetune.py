"""What to do with a network that was trained on upright images, where images may be turned?

python bench/finetune.py [--mnist DIR] [--networks NAME ...] [--seeds N]

A small CNN and a small transformer are trained on 20,000 upright digits. Then there are 1,000 labelled digits, turned
by any angle, and 1, 4 or 16 epochs; 3,000 others, turned too, are the test. Learning rates were chosen on other
images. The plain network sees the labelled digits in random quarter turns, which change nothing for the others.
"distilled" learns for 8 epochs from the wrapped one, which was tuned for as long, on the same 1,000 images without
labels, and is then tuned itself, at a quarter of the rate. A run is recorded when it ends, and the next call goes on
with those that are missing. The times of a forward pass are a record of their own.
"""

import copy
import csv
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from harness import Rows, medians, parser_for, record, save, write
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.augment import matrices, warped
from quarterturn_lab.data.mnist import read_idx
from quarterturn_lab.settings.config import Augment

UPRIGHT, LABELLED, TEST, BATCH, DISTIL_EPOCHS = 20_000, 1000, 3000, 32, 8
EPOCHS = (1, 4, 16)
GROUP = qt.C4
# Learning rates: for the network as it is, or wrapped; for a converted one; and epochs on upright digits.
RATES = {"CNN": (8e-3, 8e-3), "transformer": (1.5e-3, 4e-3)}
UPRIGHT_EPOCHS = {"CNN": 2, "transformer": 5}
WAYS = (
    "plain",
    "plain, then wrapped",
    "wrapped",
    "scratch",
    "pretrained",
    "matched",
    "distilled",
    "distilled, features",
)


@dataclass(frozen=True)
class Run:
    """What is varied."""

    network: str
    way: str
    epochs: int
    seed: int


HEAD = ("network", "way", "epochs", "seed")


def runs(networks: Sequence[str], seeds: int) -> Iterator[Run]:
    """Every combination that is run; those of a seed and a network share the training on upright digits."""
    for seed, network, epochs, way in itertools.product(range(seeds), networks, EPOCHS, WAYS):
        if way != "distilled, features" or epochs == 4:
            yield Run(network, way, epochs, seed)


# --- the networks -----------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Patches of 7 pixels, a class token and four layers."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, width, 7, 7), nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.layers(x)[:, 0]))


def convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    for seen, width, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(seen, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


# --- images -----------------------------------------------------------------------------------------------------------


class Digits:
    """Upright ones, turned ones with labels, and turned ones for the test; other images for each seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        images, labels = _files(folder, "train")
        order = np.random.default_rng(seed).permutation(len(images))
        upright, few = order[:UPRIGHT], order[UPRIGHT : UPRIGHT + LABELLED]
        self.upright = _scaled(images[upright]), labels[upright]
        self.few = _scaled(_turned(images[few], seed)), labels[few]
        images, labels = _files(folder, "t10k")
        self.test = _scaled(_turned(images[:TEST], 1000 + seed)), labels[:TEST]


def _files(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    images, labels = (read_idx(folder / f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return torch.from_numpy(images.astype(np.float32))[:, None], torch.from_numpy(labels.astype(np.int64))


def _turned(images: Tensor, seed: int) -> Tensor:
    return warped(images, matrices(Augment(flip=False), seed, 0, np.arange(len(images))))


def _scaled(images: Tensor) -> Tensor:
    return (images / 255 - 0.13) / 0.31


# --- the ways ---------------------------------------------------------------------------------------------------------


class Ways:
    """Networks trained in each way, for one network and seed. What is needed again is kept."""

    def __init__(self, digits: Digits, network: str, seed: int, upright_epochs: int) -> None:
        self.digits, self.network, self.seed = digits, network, seed
        self.rate, self.converted_rate = RATES[network]
        torch.manual_seed(seed)
        net = convolutional() if network == "CNN" else Transformer()
        self.upright = trained(net, *digits.upright, upright_epochs, 2e-3, seed)
        self.tuned = cache(self._tuned)

    def start(self, way: str) -> nn.Module:
        torch.manual_seed(self.seed)
        images = self.digits.few[0]
        match way:
            case "plain":
                return copy.deepcopy(self.upright)
            case "wrapped":
                return qt.wrap(copy.deepcopy(self.upright), GROUP)
            case "scratch":
                return qt.convert(self.upright, GROUP, example=images[:2], head="invariants")
            case "pretrained":
                return qt.convert(self.upright, GROUP, init="pretrained", example=images[:2], head="invariants")
            case _:
                return qt.convert(self.upright, GROUP, init="pretrained", match=images, head="invariants")

    def _tuned(self, way: str, epochs: int) -> tuple[nn.Module, float]:
        """A network, and the CPU seconds that it took."""
        if way == "plain, then wrapped":
            net, seconds = self.tuned("plain", epochs)
            return qt.wrap(net, GROUP), seconds
        before, start = 0.0, time.process_time()
        if way.startswith("distilled"):
            teacher, before = self.tuned("wrapped", epochs)
            start, net = time.process_time(), self.start(way)
            generator = torch.Generator().manual_seed(self.seed)
            batches = self.digits.few[0][torch.randperm(LABELLED, generator=generator)].split(BATCH)
            qt.distil(teacher, net, batches, epochs=DISTIL_EPOCHS, features="all" if "features" in way else ())
        else:
            net = self.start(way)
        rate = self.rate if way in ("plain", "wrapped") else self.converted_rate
        rate = rate / 4 if way.startswith("distilled") else rate
        trained(net, *self.digits.few, epochs, rate, self.seed, turn=way == "plain")
        return net, before + time.process_time() - start


def trained(
    net: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float, seed: int, turn: bool = False
) -> nn.Module:
    """The network itself, after so many epochs: AdamW, a warm-up and a cosine; `turn` turns the images of a batch."""
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    generator = torch.Generator().manual_seed(seed)
    count, step = epochs * math.ceil(len(images) / BATCH), 0
    net.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * step / count))
            batch = images[chosen]
            if turn:
                batch = torch.cat([part.rot90(k, (2, 3)) for k, part in enumerate(batch.chunk(4))])
            loss = F.cross_entropy(net(batch), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    return net


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    net.eval()
    with torch.no_grad():
        answers = torch.cat([net(part) for part in images.split(250)])
    return float((answers.argmax(1) == labels).double().mean())


def measure(ways: Ways, run: Run) -> dict[str, object]:
    net, seconds = ways.tuned(run.way, run.epochs)
    return {
        **dict(zip(HEAD, astuple(run), strict=True)),
        "test accuracy": f"{accuracy(net, *ways.digits.test):.4f}",
        "CPU seconds": f"{seconds:.1f}",
    }


def times(ways: Ways) -> dict[str, object]:
    """The CPU time of a forward pass of 100 images, of that of the plain network."""
    images = ways.digits.test[0][:100]
    nets = {way: ways.start(way).eval() for way in ("plain", "wrapped", "matched")}
    with torch.no_grad():
        contenders: dict[str, Callable[[], object]] = {way: partial(net, images) for way, net in nets.items()}
        seconds = medians(contenders, 30, time.process_time)
    return {"network": ways.network, **{way: f"{seconds[way] / seconds['plain']:.2f}" for way in seconds}}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--mnist", type=Path, default=Path("data/mnist"), help="the folder of the MNIST files")
    parser.add_argument("--networks", nargs="+", choices=tuple(RATES), default=tuple(RATES))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: Rows = list(csv.DictReader(record("finetune").open())) if record("finetune").exists() else []
    done = {tuple(str(row[key]) for key in HEAD) for row in rows}
    missing = [run for run in runs(options.networks, options.seeds) if tuple(map(str, astuple(run))) not in done]
    for (network, seed), mine in itertools.groupby(missing, lambda run: (run.network, run.seed)):
        ways = Ways(Digits(options.mnist, seed), network, seed, UPRIGHT_EPOCHS[network])
        for run in mine:
            rows.append(measure(ways, run))
            print(*rows[-1].values(), flush=True)
            save("finetune", rows)
    if not record("tuned-times").exists():
        digits = Digits(options.mnist, 0)
        write("tuned-times", [times(Ways(digits, network, seed=0, upright_epochs=0)) for network in RATES])


if __name__ == "__main__":
    main()
