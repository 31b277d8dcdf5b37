"""A classifier of volumes that is invariant to all 24 turns of a cube: which axis is long?

python examples/volume.py [STEPS]
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt


def boxes(count: int, side: int = 12) -> tuple[Tensor, Tensor]:
    """Noisy boxes that are plates (0), rods (1) or cubes (2), along any axis."""
    labels = torch.arange(count) % 3
    volumes = 0.3 * torch.randn(count, 1, side, side, side)
    for volume, label in zip(volumes, labels.tolist(), strict=True):
        sizes = torch.tensor([(3, 8, 8), (8, 3, 3), (5, 5, 5)][label])[torch.randperm(3)].tolist()
        starts = [int(torch.randint(side - size + 1, (1,))) for size in sizes]
        z, y, x = (slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
        volume[0, z, y, x] += 1
    return volumes, labels


def main(steps: int = 60) -> None:
    torch.manual_seed(0)
    volumes, labels = boxes(min(300, 15 * steps) + 90)
    ordinary = nn.Sequential(
        *(nn.Conv3d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv3d(24, 48, 3, 2, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(48, 3)),
    )
    net = qt.convert(ordinary, qt.OCTA, example=volumes[:1])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        batch = torch.randint(len(volumes) - 90, (15,))
        loss = F.cross_entropy(net(volumes[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}")
    with torch.no_grad():
        print(f"{(net(volumes[-90:]).argmax(1) == labels[-90:]).float().mean():.1%} of new volumes correct")
    qt.assert_equivariant(net.double(), qt.OCTA, volumes[:1].double())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
