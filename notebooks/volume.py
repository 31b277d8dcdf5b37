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
# # A volume
#
# A cube of voxels can be turned in 24 ways onto itself. That is the group **OCTA**. We train a network on blocks that
# all stand upright, and test it on blocks that lie in any of the 24 orientations.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import quarterturn as qt

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## The volumes
#
# Six blocks of four voxels, with noise. The last two are mirror images of each other: no turn maps one to the other. So
# flips must stay out of the group.


# %%
BLOCKS = {
    "I": [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)],
    "O": [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)],
    "L": [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)],
    "T": [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1)],
    "left": [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)],
    "right": [(1, 0, 0), (1, 0, 1), (1, 1, 1), (0, 1, 1)],
}
SIDE = 8


def block(number: int) -> np.ndarray:
    rng = np.random.default_rng(number)
    cubes = np.array(list(BLOCKS.values())[number % len(BLOCKS)])
    start = rng.integers(SIDE - cubes.max(0))
    volume = rng.normal(0, 0.1, (SIDE,) * 3).astype(np.float32)
    volume[tuple((start + cubes).T)] += 1
    return volume


volumes = torch.from_numpy(np.stack([block(i) for i in range(660)]))[:, None]
labels = torch.arange(660) % len(BLOCKS)
train, test = slice(0, 600), slice(600, 660)

figure, axes = plt.subplots(1, 6, figsize=(9, 1.8), subplot_kw={"projection": "3d"})
for i, ax in enumerate(axes):
    ax.voxels(volumes[i, 0].numpy() > 0.5, facecolors="#00798c", edgecolors="white")
    ax.set_aspect("equal")
    ax.set_title(list(BLOCKS)[i])
    ax.axis("off")


# %% [markdown]
# ## The networks
#
# The same calls as for images: the group says how many axes there are.


# %%
def ordinary(width: int = 24) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv3d(1, width, 3), nn.BatchNorm3d(width), nn.ReLU()),
        *(nn.Conv3d(width, 2 * width, 3), nn.BatchNorm3d(2 * width), nn.ReLU()),
        *(nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(2 * width, len(BLOCKS))),
    )


networks = {
    "ordinary": ordinary(),
    "equivariant": qt.convert(ordinary(96), qt.OCTA, example=volumes[:1]),
}
for name, network in networks.items():
    print(f"{name:>12}: {sum(p.numel() for p in network.parameters()):,} parameters")


# %%
def trained(network: nn.Module, epochs: int = 8) -> None:
    optimizer = torch.optim.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=epochs * 40)
    for _ in range(epochs):
        for batch in torch.randperm(600).split(15):
            loss = F.cross_entropy(network(volumes[train][batch]), labels[train][batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()


for network in networks.values():
    trained(network)


# %% [markdown]
# ## The result
#
# Correct answers for upright blocks, for blocks in all 24 orientations, and how many answers never change.


# %%
@torch.no_grad()
def answers(network: nn.Module, h: int) -> torch.Tensor:
    return network(qt.act(volumes[test], qt.OCTA, h)).argmax(1)


for name, network in networks.items():
    found = torch.stack([answers(network, h) for h in range(qt.OCTA.order)])
    right, same = (found == labels[test]).float(), (found == found[0]).all(0).float().mean()
    print(f"{name:>12}: {right[0].mean():.1%} upright, {right.mean():.1%} in any orientation, {same:.1%} never change")

# %% [markdown]
# Exact for each of the 24 turns, in float64, before and after training. If voxels are longer along one axis, not all
# turns are symmetries: `qt.for_spacing((1, 1, 3))` gives the group that is left.

# %%
qt.assert_equivariant(networks["equivariant"].double(), qt.OCTA, volumes[:2].double())
print("voxels of 1 x 1 x 3:", qt.for_spacing((1, 1, 3)).name)
try:
    qt.assert_equivariant(networks["ordinary"].double(), qt.OCTA, volumes[:2].double())
except qt.NotEquivariantError:
    print("the ordinary network is not equivariant")
else:
    raise AssertionError("an ordinary network is not equivariant")
