"""Networks of timm as if they had learnt."""

import timm
import torch
from torch import Tensor, nn

from quarterturn import BatchNorm


def network(name: str, **options: object) -> nn.Module:
    """A network of timm as if it had learnt: nothing is switched off, and its norms know what they see."""
    return lively(timm.create_model(name, num_classes=10, **options))


def lively(model: nn.Module, size: int = 64) -> nn.Module:
    """Parameters that are all alike are drawn, and norms are given the statistics of noise."""
    with torch.no_grad():
        for parameter in model.parameters():
            if (parameter == 0).all():
                parameter.normal_(0, 0.1)
            elif (parameter == parameter.flatten()[0]).all():  # of a norm, or a scale
                parameter.uniform_(0.5, 1.5)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm | BatchNorm):
                module.momentum = 1.0
        model.train()(image(batch=8, size=size))
    return model.eval()


def image(batch: int = 1, size: int = 64) -> Tensor:
    return torch.randn(batch, 3, size, size)
