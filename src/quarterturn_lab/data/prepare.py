"""Images of a data set as tensors that a network takes: fetched, scaled, cropped."""

import torch
from torch import Tensor

from quarterturn_lab.data.dataset import Dataset, Indices
from quarterturn_lab.data.scaling import Scaling


def fetch(data: Dataset, indices: Indices, device: torch.device) -> Tensor:
    """Images from the cache as they are, on the device."""
    return torch.from_numpy(data.images[indices]).to(device)


def prepared(images: Tensor, scaling: Scaling) -> Tensor:
    """Values to floats of about unit variance."""
    offset, factor = (torch.from_numpy(part).to(images.device) for part in scaling.columns())
    return (images.float() - offset) * factor


def centre_crop(images: Tensor, side: int) -> Tensor:
    """The square of that side in the middle of each image."""
    top, left = ((length - side) // 2 for length in images.shape[2:])
    return images[:, :, top : top + side, left : left + side]
