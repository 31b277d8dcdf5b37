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
# # A Go player that knows the board has no corner of its own
#
# Turn or flip a Go board, and the best move turns with it. That is the group **D4**: four turns, with and without a
# flip. A policy network should know this. We compare two ways to teach it, with the same number of training steps:
# random turns of the training positions (augmentation), and a network that is equivariant.

# %%
import time

import matplotlib.pyplot as plt
import torch
from torch import nn

import quarterturn as qt
from quarterturn_lab.data.go_positions import positions

torch.manual_seed(0)
torch.set_num_threads(1)
SIDE, TRAIN, STEPS, BATCH = 9, 1000, 500, 40

# %% [markdown]
# ## Positions and moves
#
# Positions come from random games. The moves come from a player with a rule: it captures, saves its own stones, or
# plays next to the opponent where it has many liberties. Where several moves are equally good, all are right.

# %%
planes, moves = (torch.from_numpy(part) for part in positions(TRAIN + 1000, SIDE))


def show(ax, board, shades=None, title=""):
    ax.set_facecolor("#dcb35c")
    for i in range(SIDE):
        ax.plot([0, SIDE - 1], [i, i], color="k", linewidth=0.5)
        ax.plot([i, i], [0, SIDE - 1], color="k", linewidth=0.5)
    for plane, colour in ((0, "black"), (1, "white")):
        rows, columns = board[plane].nonzero(as_tuple=True)
        ax.scatter(columns, rows, s=60, c=colour, edgecolors="k", linewidths=0.5, zorder=2)
    if shades is not None:
        ax.imshow(shades, cmap="Reds", alpha=(shades / shades.max()).clamp(0, 0.9).numpy(), zorder=3)
    ax.set(xlim=(-0.6, SIDE - 0.4), ylim=(SIDE - 0.4, -0.6), xticks=[], yticks=[], aspect="equal", title=title)


figure, axes = plt.subplots(1, 4, figsize=(10, 2.7))
for i, ax in enumerate(axes):
    show(ax, planes[i], moves[i].reshape(SIDE, SIDE), "the rule's moves in red")

# %% [markdown]
# ## The networks
#
# All are convolutional, with a map of moves at the end. `convert` gives the equivariant ones: one with the same width
# and an eighth of the parameters, and one with as many parameters, which has more maps and takes longer.


# %%
def ordinary(width: int = 64) -> nn.Module:
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 1))


networks = {
    "ordinary": ordinary(),
    "ordinary, augmented": ordinary(),
    "equivariant": qt.convert(ordinary(), qt.D4, example=planes[:2]),
    "equivariant, larger": qt.convert(ordinary(), qt.D4, keep="parameters", example=planes[:2]),
}
qt.assert_equivariant(networks["equivariant"].double(), qt.D4, planes[:4].double())
networks["equivariant"].float()
for name, network in networks.items():
    print(f"{name:>20}: {sum(p.numel() for p in network.parameters()):,} parameters")

# %% [markdown]
# ## Training, the same number of steps
#
# For augmentation each batch is moved by a random element of D4, stones and moves alike: `qt.act`.


# %%
def trained(network: nn.Module, augmented: bool) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        chosen = torch.randint(TRAIN, (BATCH,), generator=generator)
        x, y = planes[chosen], moves[chosen].reshape(-1, 1, SIDE, SIDE)
        if augmented:
            h = int(torch.randint(qt.D4.order, (1,), generator=generator))
            x, y = qt.act(x, qt.D4, h), qt.act(y, qt.D4, h)
        loss = -(network(x).flatten(1).log_softmax(1) * y.flatten(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()


for name, network in networks.items():
    start = time.process_time()
    trained(network, "augmented" in name)
    print(f"{name:>20}: {time.process_time() - start:.0f} CPU seconds")


# %% [markdown]
# ## The result
#
# On positions that no network has seen. *Right*: the rule could have played the move. *Consistent*: the move is the
# same one in all eight orientations of the board.


# %%
@torch.no_grad()
def policy(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The chances of all moves, without those on stones."""
    taken = x[:, :2].sum(1).flatten(1) > 0
    return network(x).flatten(1).masked_fill(taken, -torch.inf).softmax(1).reshape(-1, 1, SIDE, SIDE)


x, y = planes[TRAIN:], moves[TRAIN:]
for name, network in networks.items():
    boards = [policy(network, qt.act(x, qt.D4, h)) for h in range(qt.D4.order)]
    back = torch.stack([qt.act(b, qt.D4, qt.D4.inverse[h]).flatten(1) for h, b in enumerate(boards)])
    best = back.argmax(2)
    right = (y.gather(1, best[0][:, None]) > 0).float().mean()
    consistent = (best == best[0]).all(0).float().mean()
    print(f"{name:>20}: {right:.1%} right, {consistent:.1%} consistent")

# %%
figure, axes = plt.subplots(2, 4, figsize=(10, 5.4))
for row, name in zip(axes, ("ordinary, augmented", "equivariant"), strict=True):
    for ax, h in zip(row, (0, 1, 2, 5), strict=True):
        board = qt.act(x[7:8], qt.D4, h)
        show(ax, board[0], policy(networks[name], board)[0, 0], f"{name}, turn {h}")
figure.tight_layout()

# %% [markdown]
# The claim, checked: the moves of the equivariant network turn and flip with the board, whatever it has learnt.

# %%
qt.assert_equivariant(networks["equivariant"].double(), qt.D4, x[:4].double())
try:
    qt.assert_equivariant(networks["ordinary, augmented"].double(), qt.D4, x[:4].double())
except qt.NotEquivariantError:
    print("augmentation teaches the symmetry about, not exactly")
else:
    raise AssertionError("an ordinary network is not equivariant")
