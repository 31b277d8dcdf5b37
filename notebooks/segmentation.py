# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Masks that turn along
#
# A network that labels each pixel should give the turned mask for the turned image. We train a small U-Net on drawn
# cells, ordinary and equivariant, and turn the images.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.made_by_rule import cells

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## The images
#
# Cells with a dark nucleus, and threads that are as bright but are no cells, in strong noise; forty of them to learn
# from. Cells look the same in a mirror: the group is **D4**, four turns with and without a flip.

# %%
images, masks = (torch.from_numpy(part) for part in cells(100, side=48, noise=0.4))
train, test = slice(0, 40), slice(40, 100)

figure, axes = plt.subplots(2, 4, figsize=(6, 3))
for i in range(4):
    axes[0, i].imshow(images[i, 0], cmap="gray")
    axes[1, i].imshow(masks[i], cmap="gray")
for ax in axes.flat:
    ax.axis("off")


# %% [markdown]
# ## A small U-Net
#
# Plain PyTorch: down, up, and a skip connection. `qt.convert` follows its code. A map that goes out turns with the
# image that comes in, with any stride and at any size.


# %%
class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.up = nn.Upsample(scale_factor=2)
        self.last = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2, 1))

    def forward(self, x):
        kept = self.first(x)
        return self.last(torch.cat([kept, self.up(self.deep(self.down(kept)))], 1))


networks = {"ordinary": UNet(), "equivariant": qt.convert(UNet(), qt.D4, example=images[:2])}
for name, network in networks.items():
    print(f"{name:>12}: {sum(p.numel() for p in network.parameters()):,} parameters")


# %% [markdown]
# ## Training


# %%
def trained(network: nn.Module, epochs: int = 20) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * 4)
    for _ in range(epochs):
        for batch in torch.randperm(40).split(10):
            loss = F.cross_entropy(network(images[train][batch]), masks[train][batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()


for network in networks.values():
    trained(network)


# %% [markdown]
# ## The masks, turned back
#
# *Dice* is the overlap with the true mask, 1 at best. *Changed* is the share of pixels whose label differs when the
# image is turned by 90 degrees and the mask is turned back.


# %%
@torch.no_grad()
def mask(network: nn.Module, x: torch.Tensor, turns: int = 0) -> torch.Tensor:
    found = network(torch.rot90(x, turns, (2, 3))).argmax(1)
    return torch.rot90(found, -turns, (1, 2))


for name, network in networks.items():
    found, back = mask(network, images[test]), mask(network, images[test], 1)
    dice = 2 * (found * masks[test]).sum() / (found.sum() + masks[test].sum())
    print(f"{name:>12}: dice {dice:.3f}, {(found != back).float().mean():.2%} of the pixels changed")

# %%
x = images[test][:1]
figure, axes = plt.subplots(2, 4, figsize=(8, 4.2))
for row, (name, network) in zip(axes, networks.items(), strict=True):
    row[0].imshow(x[0, 0], cmap="gray")
    row[0].set_title(name)
    for turns, ax in enumerate(row[1:], start=1):
        found = mask(network, x)[0, ..., None]
        changed = mask(network, x, turns)[0, ..., None] != found
        ax.imshow(torch.where(changed, torch.tensor([1.0, 0.2, 0.2]), 0.8 * found))
        ax.set_title(f"changed at {90 * turns}°")
for ax in axes.flat:
    ax.axis("off")

# %% [markdown]
# No pixel is red in the lower row. The same for every element of D4, in float64, and on an image that is not square:

# %%
equivariant = networks["equivariant"].double()
qt.assert_equivariant(equivariant, qt.D4, images[:2].double())
qt.assert_equivariant(equivariant, qt.D4, torch.randn(1, 1, 40, 52, dtype=torch.float64))
assert (mask(networks["ordinary"], images[test], 1) != mask(networks["ordinary"], images[test])).any()
