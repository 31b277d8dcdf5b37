"""A U-Net whose masks turn and flip with the image.

python examples/segmentation.py [STEPS]
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.made_by_rule import cells


class UNet(nn.Module):
    """Down once and up again, with a skip connection; plain PyTorch."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        self.up = nn.Upsample(scale_factor=2)
        self.last = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        kept = self.first(x)
        return self.last(torch.cat([kept, self.up(self.down(kept).relu())], 1))


def main(steps: int = 200) -> None:
    torch.manual_seed(0)
    images, masks = (torch.from_numpy(part) for part in cells(min(200, 10 * steps) + 40))
    net = qt.convert(UNet(), qt.D4, example=images[:2])
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for step in range(steps):
        batch = torch.randint(len(images) - 40, (10,))
        loss = F.cross_entropy(net(images[batch]), masks[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}")
    with torch.no_grad():
        found, truth = net(images[-40:]).argmax(1), masks[-40:]
    print(f"dice of new images: {2 * (found * truth).sum() / (found.sum() + truth.sum()):.3f}")
    qt.assert_equivariant(net.double(), qt.D4, images[:2].double())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
