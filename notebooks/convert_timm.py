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
# # Convert a network from timm
#
# One call makes a network of timm exactly invariant. This notebook needs timm: `pip install timm`.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

import quarterturn as qt
from quarterturn_lab.data.synthetic import CLASSES, draw
from quarterturn_lab.models.libraries import library

warnings.filterwarnings("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## One call
#
# Any name of timm will do for most networks. `example` is an input of the size that you will use.

# %%
labels = torch.arange(700) % len(CLASSES)
images = torch.from_numpy(draw(labels.numpy(), side=32)).float()[:, None] / 64

timm = library("timm")  # or `import timm`; this works beside a torch without CUDA, too
ordinary = timm.create_model("resnet10t", in_chans=1, num_classes=len(CLASSES))
converted = qt.convert(ordinary, qt.C4, example=images[:2])
for name, network in (("ordinary", ordinary), ("converted", converted)):
    print(f"{name:>10}: {sum(p.numel() for p in network.parameters()):,} parameters")

# %% [markdown]
# ## Is it exact?
#
# In float64, for every turn. For the ordinary network the error names the layer that breaks it.

# %%
ordinary.eval()
converted.eval()
qt.assert_equivariant(converted.double(), qt.C4, images[:2].double())
converted.float()
try:
    qt.assert_equivariant(ordinary, qt.C4, images[:2])
except qt.NotEquivariantError as error:
    print(str(error).splitlines()[0][:120])
else:
    raise AssertionError("an ordinary network is not equivariant")

# %% [markdown]
# ## Train it
#
# A converted network is an `nn.Module`: an ordinary loop, a few steps here.

# %%
converted.train()
optimizer = torch.optim.AdamW(converted.parameters(), lr=2e-3)
losses = []
for _ in range(2):
    for batch in torch.randperm(600).split(30):
        loss = F.cross_entropy(converted(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
converted.eval()

figure, ax = plt.subplots(figsize=(5, 2.2))
ax.plot(losses, color="#00798c")
ax.set(xlabel="step", ylabel="loss")
figure.tight_layout()

# %% [markdown]
# ## Still exact, and ready for other programs
#
# `to_plain` writes it in torch's own layers, with the same answers. `qt.export` writes ONNX.

# %%
x = images[600:604]
plain = qt.to_plain(converted, x)
with torch.no_grad():
    torch.testing.assert_close(plain(x), converted(x), rtol=1e-4, atol=1e-4)
    changes = [(converted(torch.rot90(x, k, (2, 3))) - converted(x)).abs().max().item() for k in (1, 2, 3)]
print("largest change at 90, 180 and 270 degrees:", ", ".join(f"{change:.1e}" for change in changes))
qt.assert_equivariant(converted.double(), qt.C4, x.double())
