"""A plain PyTorch training loop: an invariant classifier of drawn organisms.

python examples/plain_torch.py [STEPS]
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.synthetic import CLASSES, draw


def network() -> nn.Module:
    """An ordinary network, converted: each filter is shared by four orientations."""
    ordinary = nn.Sequential(
        *(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, len(CLASSES))),
    )
    return qt.convert(ordinary, qt.C4, keep="parameters")


def data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % len(CLASSES)
    return torch.from_numpy(draw(labels.numpy(), side=29, seed=seed)).float()[:, None] / 64, labels


def main(steps: int = 400) -> None:
    torch.manual_seed(0)
    net, (images, labels) = network(), data(min(2000, 50 * steps), seed=0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for step in range(steps):
        batch = torch.randint(len(images), (50,))
        loss = F.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.3f}")
    net.eval()
    images, labels = data(200, seed=1)
    with torch.no_grad():
        print(f"{(net(images).argmax(1) == labels).float().mean():.1%} of new images correct")
    qt.assert_equivariant(net.double(), qt.C4, images[:4].double())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
