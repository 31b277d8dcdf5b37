"""A network of timm, converted and trained for some steps. Needs timm: pip install timm

python examples/timm_network.py [STEPS]
"""

import sys

import torch
from plain_torch import data
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.models.libraries import library


def main(steps: int = 40, name: str = "resnet10t") -> None:
    torch.manual_seed(0)
    images, labels = data(min(600, 30 * steps), seed=0)
    timm = library("timm")  # or `import timm`; this works beside a torch without CUDA, too
    ordinary = timm.create_model(name, in_chans=1, num_classes=10)
    net = qt.convert(ordinary, qt.C4, example=images[:2])
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    net.train()
    for step in range(steps):
        batch = torch.randint(len(images), (30,))
        loss = F.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.3f}")
    qt.assert_equivariant(net.eval().double(), qt.C4, images[:2].double())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
