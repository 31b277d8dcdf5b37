"""The same classifier with Lightning Fabric, which brings devices, precision and several processes.

python examples/with_fabric.py [STEPS]
"""

import sys
from itertools import cycle, islice

import torch
from lightning_fabric import Fabric
from plain_torch import data, network
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import quarterturn as qt


def main(steps: int = 400, accelerator: str = "cpu", devices: int = 1) -> None:
    fabric = Fabric(accelerator=accelerator, devices=devices)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    net = network()
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=3e-3))
    loader = DataLoader(TensorDataset(*data(min(2000, 50 * steps), seed=0)), batch_size=50, shuffle=True)
    batches = fabric.setup_dataloaders(loader)
    for step, (images, labels) in enumerate(islice(cycle(batches), steps)):
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        if step % 100 == 0:
            fabric.print(f"step {step}: loss {loss:.3f}")
    trained = net.module.eval().cpu()
    images, labels = data(200, seed=1)
    with torch.no_grad():
        fabric.print(f"{(trained(images).argmax(1) == labels).float().mean():.1%} of new images correct")
    qt.assert_equivariant(trained.double(), qt.C4, images[:4].double())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
