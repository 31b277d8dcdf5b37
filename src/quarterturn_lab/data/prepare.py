"""Turns images of a data set into input tensors: fetch, scale, crop."""

import torch
from torch import Tensor

from quarterturn_lab.data.dataset import Dataset, Indices
from quarterturn_lab.data.scaling import Scaling


def fetch(data: Dataset, indices: Indices, device: torch.device) -> Tensor:
    """Unscaled images from the cache, on the device."""
    return torch.from_numpy(data.images[indices]).to(device)


def prepared(images: Tensor, scaling: Scaling) -> Tensor:
    """Images scaled to about unit variance, as floats."""
    offset, factor = (torch.from_numpy(part).to(images.device) for part in scaling.columns(images.dim() - 2))
    return (images.float() - offset) * factor


def centre_crop(images: Tensor, side: int) -> Tensor:
    """The central square of that side of each image, or cube of each volume."""
    for axis, length in enumerate(images.shape[2:], start=2):
        images = images.narrow(axis, (length - side) // 2, side)
    return images
