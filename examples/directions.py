"""A direction that turns along: which way does a filament point?

    python examples/directions.py [STEPS]

`wrap` with outputs="vector" turns the image, and turns the answer back before it is averaged.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.made_by_rule import filaments


def main(steps: int = 300) -> None:
    torch.manual_seed(0)
    images, directions = (torch.from_numpy(part) for part in filaments(min(600, 20 * steps) + 100))
    ordinary = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(24 * 16, 32), nn.ReLU(), nn.Linear(32, 2)),
    )
    net = qt.wrap(ordinary, qt.C4, outputs="vector")  # (down, right): component i along axis i of the image
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for step in range(steps):
        batch = torch.randint(len(images) - 100, (20,))
        loss = F.mse_loss(net(images[batch]), directions[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.3f}")
    with torch.no_grad():
        cosine = F.cosine_similarity(net(images[-100:]), directions[-100:]).clamp(-1, 1)
    print(f"median error for new images: {cosine.acos().rad2deg().median():.1f} degrees")
    qt.assert_equivariant(net.double(), qt.C4, images[:4].double(), kind="vector")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
