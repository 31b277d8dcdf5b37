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
# # A first classifier
#
# Organisms under a microscope have no "up". We train an ordinary network and an equivariant one on the same drawings,
# for the same number of steps, and turn the test images. You need nothing but `pip install ".[lab]"`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.synthetic import CLASSES, draw

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## The images
#
# Ten classes in five pairs. The two classes of a pair are mirror images of each other, so flips change the class and
# turns do not. That is the group **C4**: four turns, no flips.

# %%
labels = torch.arange(2600) % len(CLASSES)
images = torch.from_numpy(draw(labels.numpy(), side=29)).float()[:, None] / 64
train, test = slice(0, 2000), slice(2000, 2600)

figure, axes = plt.subplots(1, 10, figsize=(10, 1.4))
for i, ax in enumerate(axes):
    ax.imshow(images[i, 0], cmap="gray")
    ax.set_title(CLASSES[i], fontsize=6)
    ax.axis("off")

# %% [markdown]
# ## Two networks
#
# An ordinary network in plain PyTorch. `qt.convert` makes the equivariant one of it: the same width, and each filter
# is shared by four orientations.


# %%
def ordinary() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, len(CLASSES))),
    )


networks = {"ordinary": ordinary(), "equivariant": qt.convert(ordinary(), qt.C4, keep="parameters")}
for name, network in networks.items():
    print(f"{name:>12}: {sum(p.numel() for p in network.parameters()):,} parameters")

# %% [markdown]
# Before any training it is exact already. `assert_equivariant` turns the input by every element of the group, and
# compares the outputs in float64. For the ordinary network it raises.

# %%
examples = images[:4].double()
qt.assert_equivariant(networks["equivariant"].double(), qt.C4, examples)
networks["equivariant"].float()
try:
    qt.assert_equivariant(ordinary().double(), qt.C4, examples)
except qt.NotEquivariantError as error:
    print(str(error).splitlines()[0])
else:
    raise AssertionError("an ordinary network is not equivariant")


# %% [markdown]
# ## Training
#
# An ordinary loop: nothing in it knows about symmetry.


# %%
def trained(network: nn.Module, epochs: int = 8) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-3)
    steps = epochs * 2000 // 50
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in torch.randperm(2000, generator=generator).split(50):
            loss = F.cross_entropy(network(images[train][batch]), labels[train][batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()


for network in networks.values():
    trained(network)


# %% [markdown]
# ## What they say
#
# The share of correct answers, and how often the answer stays the same at all four quarter turns.


# %%
def answers(network: nn.Module, turns: int) -> np.ndarray:
    with torch.no_grad():
        return network(torch.rot90(images[test], turns, (2, 3))).softmax(1).numpy()


truth = labels[test].numpy()
found = {name: np.stack([answers(network, turns) for turns in range(4)]) for name, network in networks.items()}
for name, chances in found.items():
    same = (chances.argmax(2) == chances[0].argmax(1)).all(0).mean()
    print(f"{name:>12}: {(chances[0].argmax(1) == truth).mean():.1%} correct, {same:.1%} the same at all quarter turns")

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for ax, (name, chances) in zip(axes, found.items(), strict=True):
    ax.plot([0, 90, 180, 270], chances[:, :12, :].max(2), marker="o", linewidth=1)
    ax.set(title=name, xlabel="turn of the image, degrees", xticks=[0, 90, 180, 270])
axes[0].set_ylabel("largest probability, 12 images")
figure.tight_layout()

# %% [markdown]
# The lines of the equivariant network are flat. It still holds after training, to the last digits of float64.
#
# **Next**: one command for your own folder of images, `quarterturn fit DIR`; a network of your own, `docs/convert.md`.

# %%
qt.assert_equivariant(networks["equivariant"].double(), qt.C4, examples)
assert np.abs(found["equivariant"] - found["equivariant"][0]).max() < 1e-5
assert np.abs(found["ordinary"] - found["ordinary"][0]).max() > 0.1
