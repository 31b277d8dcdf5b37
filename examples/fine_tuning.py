"""Three ways to fine-tune a network that you have: wrap, convert with match=, distil.

python examples/fine_tuning.py [STEPS]
"""

import copy
import sys

import torch
from plain_torch import data
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt


def tuned(net: nn.Module, images: Tensor, labels: Tensor, steps: int, rate: float = 1e-3) -> nn.Module:
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    for _ in range(steps):
        batch = torch.randint(len(images), (30,))
        loss = F.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def main(steps: int = 150) -> None:
    torch.manual_seed(0)
    pretraining, few, test = data(min(1500, 30 * steps), 1), data(100, 2), data(300, 3)
    pretrained = nn.Sequential(  # stands for yours
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    tuned(pretrained, *pretraining, 2 * steps, 3e-3)
    wrapped = tuned(qt.wrap(copy.deepcopy(pretrained), qt.C4), *few, steps)
    match = pretraining[0][:200]
    converted = qt.convert(pretrained, qt.C4, init="pretrained", match=match, head="invariants")
    distilled = copy.deepcopy(converted)
    tuned(converted, *few, steps)
    qt.distil(wrapped, distilled, pretraining[0].split(50), steps=steps)
    tuned(distilled, *few, steps // 4 + 1, 3e-4)
    for name, net in {"wrapped": wrapped, "converted": converted, "distilled": distilled}.items():
        with torch.no_grad():
            right = (net.eval()(test[0]).argmax(1) == test[1]).float().mean()
        print(f"{name:>10}: {right:.1%} of new images correct")
        qt.assert_equivariant(net.double(), qt.C4, test[0][:4].double())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
