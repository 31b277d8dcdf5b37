"""Scaling of images to about unit variance. Nothing here needs torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.data.dataset import Data, Dataset


@dataclass(frozen=True)
class Scaling:
    """`(value - offset) * factor`, for each channel."""

    offset: tuple[float, ...]
    factor: tuple[float, ...]

    def columns(self, axes: int = 2) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Offset and factor as `(C, 1, 1)`, to broadcast over images, or `(C, 1, 1, 1)` for volumes."""
        shape = (-1, *[1] * axes)
        offset, factor = (np.array(part, dtype=np.float32).reshape(shape) for part in (self.offset, self.factor))
        return offset, factor

    def __call__(self, images: NDArray[Any], axes: int = 2) -> NDArray[np.float32]:
        """Images `(..., C, H, W)`, or volumes with three axes, scaled."""
        offset, factor = self.columns(axes)
        return (images.astype(np.float32) - offset) * factor


def scaling_of(data: Data) -> Scaling:
    """The scaling of a data set, estimated from up to 1,000 training images or 50 scenes.

    Byte images keep their background at zero: all channels share one factor. Float images, scenes and the user's own
    images are standardised by the mean and standard deviation of each channel.
    """
    if isinstance(data, Dataset):
        some = data.images[data.train[:: max(1, len(data.train) // 1000)][:1000]]
        if some.dtype == np.uint8 and not data.centred:
            deviation = float(np.std(some.astype(np.float32) / 255))
            return Scaling((0.0,) * some.shape[1], (1.0 / max(deviation, 1e-3) / 255,) * some.shape[1])
        channels = [some[:, c].ravel() for c in range(some.shape[1])]
    else:
        some_scenes = data.train[:: max(1, len(data.train) // 50)][:50]
        scenes = [data.images[i][:, ::3, ::3] for i in some_scenes]  # every ninth pixel is enough
        channels = [np.concatenate([scene[c].ravel() for scene in scenes]) for c in range(len(scenes[0]))]
    deviations = [float(np.std(channel, dtype=np.float64)) for channel in channels]
    return Scaling(
        tuple(float(np.mean(channel, dtype=np.float64)) for channel in channels),
        tuple(1.0 / deviation if deviation > 0 else 1.0 for deviation in deviations),
    )
