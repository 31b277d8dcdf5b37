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
# # Fine-tune a network that you have
#
# You have a trained network, few labelled images, and no "up". Three ways: **wrap** it, **convert** it with `match=`,
# or **distil** the wrapped one into the converted one. All three are exactly invariant.

# %%
import copy

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.synthetic import CLASSES, draw

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## A pretrained network
#
# It stands for yours: trained on the first six classes of organisms. The task is another one: the last four classes,
# with 200 labelled images.


# %%
def organisms(first: int, count: int, many: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(many) % count
    return torch.from_numpy(draw((labels + first).numpy(), 29, seed)).float()[:, None] / 64, labels


pretraining = organisms(0, 6, 1500, seed=1)
few, test = organisms(6, 4, 200, seed=2), organisms(6, 4, 400, seed=3)
unlabelled = organisms(6, 4, 800, seed=4)[0]

figure, axes = plt.subplots(1, 8, figsize=(9, 1.5))
for i, ax in enumerate(axes):
    ax.imshow(few[0][i, 0], cmap="gray")
    ax.set_title(CLASSES[6 + i % 4], fontsize=7)
    ax.axis("off")


# %%
def trained(network: nn.Module, data: tuple[torch.Tensor, torch.Tensor], epochs: int, rate: float) -> None:
    images, labels = data
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(30):
            loss = F.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    network.eval()


def accuracy(network: nn.Module) -> float:
    with torch.no_grad():
        return float((network(test[0]).argmax(1) == test[1]).float().mean())


network = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 6)),
)
trained(network, pretraining, epochs=8, rate=3e-3)
network[-1] = nn.Linear(64, 4)  # a new head for the new classes
tuned = {"as it is": copy.deepcopy(network)}  # without any symmetry, for comparison
trained(tuned["as it is"], few, epochs=15, rate=1e-3)

# %% [markdown]
# ## 1. wrap
#
# Keeps every weight, and averages the answers over four turns. It takes four times as long in use.

# %%
tuned["wrapped"] = qt.wrap(copy.deepcopy(network), qt.C4)
trained(tuned["wrapped"], few, epochs=15, rate=1e-3)

# %% [markdown]
# ## 2. convert, with `match=`
#
# About as fast as the network as it is. Channels that respond alike to turned images become one feature.

# %%
converted = qt.convert(network, qt.C4, init="pretrained", match=pretraining[0][:200], head="invariants")
tuned["converted"] = copy.deepcopy(converted)
trained(tuned["converted"], few, epochs=20, rate=3e-3)

# %% [markdown]
# ## 3. distil
#
# The converted network learns the answers of the wrapped one, on images without labels. Then it is fine-tuned.

# %%
tuned["distilled"] = converted
losses = qt.distil(tuned["wrapped"], tuned["distilled"], unlabelled.split(40), epochs=8)
trained(tuned["distilled"], few, epochs=15, rate=1e-3)
print(f"loss of the distillation: {losses[0]:.2f} at the start, {losses[-1]:.2f} at the end")

# %% [markdown]
# ## The result
#
# One run with 200 labels: differences of a few points mean nothing. `docs/pretrained.md` has measured ones.

# %%
scores = {name: accuracy(net) for name, net in tuned.items()}
for name, score in scores.items():
    print(f"{name:>10}: {score:.1%} correct")
figure, ax = plt.subplots(figsize=(5, 2))
ax.barh(list(scores), list(scores.values()), color=["#4c566a", "#00798c", "#00798c", "#00798c"])
ax.set(xlim=(0, 1), xlabel="correct, chance is 0.25")
ax.invert_yaxis()
figure.tight_layout()

# %%
for name in ("wrapped", "converted", "distilled"):
    qt.assert_equivariant(tuned[name].double(), qt.C4, test[0][:4].double())
try:
    qt.assert_equivariant(tuned["as it is"].double(), qt.C4, test[0][:4].double())
except qt.NotEquivariantError:
    print("all but the network as it is are exactly invariant")
else:
    raise AssertionError("an ordinary network is not invariant")
