"""Networks of timm as if they had learnt, and images with an up."""

import timm
import torch
from torch import Tensor, nn

from quarterturn.graph.lively import images_like, lively


def network(name: str, **options: object) -> nn.Module:
    """A network of timm as if it had learnt: nothing is switched off, and its norms know what they see."""
    return lively(timm.create_model(name, num_classes=10, **options), [image(batch=8)])


def image(batch: int = 1, size: int = 64) -> Tensor:
    (found,) = images_like([torch.randn(batch, 3, size, size)], dim=2)
    return found
