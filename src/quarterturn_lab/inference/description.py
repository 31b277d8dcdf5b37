"""A page about a trained network, in Markdown, for those who find it in a package or on a hub."""

from quarterturn_lab.inference.source import About, Source

PAPER = (
    "Dieleman, De Fauw, Kavukcuoglu: Exploiting Cyclic Symmetry in Convolutional Neural Networks. Proceedings of the "
    "33rd International Conference on Machine Learning, 2016"
)
TASKS = {
    "classes": "the class of an image",
    "answers": "the share of each answer for an image",
    "tags": "which of several labels an image has",
    "numbers": "numbers for an image",
    "regions": "the class of each pixel",
    "pixels": "the probability that a pixel belongs to an object",
    "instances": "the probability that a pixel belongs to an object",
}


def headline(source: Source) -> str:
    """What the network does, in a sentence."""
    symmetry = (
        f"equivariant to {source.group.name}, {source.group.order} orientations"
        if source.group
        else "an ordinary network, without a symmetry"
    )
    return f"Predicts {TASKS[source.card.task]}; {symmetry}."


def page(source: Source) -> str:
    """What goes in, what comes out, and how well it did."""
    card, found = source.card, source.summary
    names = ", ".join(card.classes[:50]) + (f" and {len(card.classes) - 50} more" if len(card.classes) > 50 else "")
    channels = source.config.net.channels
    pixels = "values of the files" if card.settings.floats else "8-bit pixels"
    scores = "\n".join(f"- {name}: {value:.4f}" for name, value in found["test"].items())
    return f"""# {source.title}

{headline(source)} Made with quarterturn.

**Input**: {source.takes} pixels, {channels} channel{"s" if channels > 1 else ""}, {pixels}.
{_fitting(source)}
**Output**: {names}.

## Validation

On {found["test_images"]:,} test images that it was not trained on ({found["train_images"]:,} for training):

{scores}

The scores are for images like those. Check it on your own before you rely on it.

Cite: {PAPER}.
"""


def _fitting(source: Source) -> str:
    settings = source.card.settings
    if source.card.is_dense:
        return ""
    longest = settings.longest or settings.side
    return (
        f"In training, the longest side of each image was scaled to {longest} pixels, then it was cropped or padded to "
        f"{settings.side} x {settings.side}{', after inverting it' if settings.invert else ''}.\n"
    )


def readme(source: Source, about: About) -> str:
    """The page with the hub's header, and how to load the network."""
    licence = f"license: {about.license.lower()}\n" if about.license else ""
    kind = "image-segmentation" if source.card.is_dense else "image-classification"
    return f"""---
{licence}library_name: timm
pipeline_tag: {kind}
tags:
- {kind}
- timm
- equivariance
- quarterturn
---
{page(source)}
## Use

```python
from quarterturn_lab import hub

network = hub.from_pretrained("DIR")  # this folder, or its name on the hub; network.card says how files become inputs
```

or, with timm:

```python
import timm, quarterturn_lab.hub.timm_models

network = timm.create_model("local-dir:DIR", pretrained=True).eval()
```
"""
