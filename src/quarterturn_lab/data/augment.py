"""Random augmentation of image batches, reproducible for each (seed, epoch, image); and rotation by an angle."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from quarterturn import Group, act
from quarterturn_lab.settings.config import Augment

U64 = np.uint64


def uniforms(seed: int, epoch: int, images: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """`(len(images), count)` random numbers in [0, 1) that depend only on seed, epoch and image: hashed counters.

    >>> a = uniforms(0, 3, np.array([5, 9]), 2)
    >>> b = uniforms(0, 3, np.array([9]), 2)
    >>> bool((a[1] == b[0]).all())
    True
    """
    with np.errstate(over="ignore"):
        state = _mixed(_mixed(np.asarray(seed, U64)) ^ np.asarray(epoch, U64) * U64(0x9E3779B97F4A7C15))
        state = _mixed(state ^ images.astype(U64) * U64(0xD1B54A32D192ED03))
        counters = np.arange(1, count + 1, dtype=U64) * U64(0x9E3779B97F4A7C15)
        return (_mixed(state[:, None] + counters) >> U64(11)).astype(np.float64) / 2.0**53


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser."""
    x = x + U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def matrices(warps: Augment, seed: int, epoch: int, images: NDArray[np.int64]) -> Tensor:
    """`(N, 2, 3)` affine maps from positions in the augmented image to positions in the original, both in [-1, 1]."""
    u = uniforms(seed, epoch, images, 7)
    angle = np.deg2rad(warps.turn * u[:, 0])
    zoom = warps.zoom ** (2 * u[:, 1] - 1)
    stretch = warps.stretch ** (2 * u[:, 2] - 1)
    shear = np.tan(np.deg2rad(warps.shear * (2 * u[:, 3] - 1)))
    shift = 2 * warps.shift * (2 * u[:, 4:6] - 1)
    flip = np.where(u[:, 6] < 0.5, -1.0, 1.0) if warps.flip else np.ones(len(u))
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    scale = np.zeros((len(u), 2, 2))
    scale[:, 0, 0], scale[:, 1, 1] = flip / (zoom * stretch), stretch / zoom
    skew = np.zeros((len(u), 2, 2))
    skew[:, 0, 0] = skew[:, 1, 1] = 1.0
    skew[:, 0, 1] = shear
    return torch.from_numpy(np.concatenate([scale @ skew @ turn, shift[:, :, None]], axis=2)).float()


def warped(
    images: Tensor, maps: Tensor, side: int | None = None, border: str = "zeros", mode: str = "bilinear"
) -> Tensor:
    """Each image `(C, S, S)` transformed by its own affine map to `(C, side, side)`, with interpolation.

    Maps refer to the central square of that side; pixels of a larger image fill in from outside it.
    """
    size = [*images.shape[:2], *(side or length for length in images.shape[2:])]
    grid = F.affine_grid((maps * (size[2] / images.shape[2])).to(images), size, align_corners=False)
    return F.grid_sample(images, grid, mode=mode, padding_mode=border, align_corners=False)


def source_side(warps: Augment, side: int, axes: int = 2) -> int:
    """The side of a source image that is large enough for any augmentation to stay inside it."""
    if axes == 3:
        angle = np.deg2rad(warps.turn)
        corner = np.cos(angle) + 2**0.5 * np.sin(angle) + 3**0.5 * (1 - np.cos(angle))  # of any row of a turn
    else:
        corner = 2**0.5 if warps.turn or warps.shear else 1.0
    reach = corner * warps.zoom * warps.stretch * (1 + np.tan(np.deg2rad(warps.shear))) + 2 * warps.shift
    extra = int(np.ceil(side * reach)) - side
    return side + extra + extra % 2  # even, so that the centre stays on the same pixels


# The first principal component of the colours of galaxies, for values in [0, 1] (Dieleman, Willett & Dambre 2015).
COLOUR = (-0.0148366, -0.01253134, -0.01040762)


def colours(warps: Augment, seed: int, epoch: int, images: NDArray[np.int64]) -> Tensor:
    """`(N, 3, 1, 1)` offsets for red, green and blue in [0, 1]: a normal random number times `COLOUR`."""
    u = uniforms(seed, epoch, images, 9)[:, 7:]  # the first seven are used by `matrices`
    normal = np.sqrt(-2 * np.log1p(-u[:, 0])) * np.cos(2 * np.pi * u[:, 1])
    return torch.from_numpy(warps.colour * normal[:, None] * np.array(COLOUR)).float()[:, :, None, None]


def corners(seed: int, epoch: int, images: NDArray[np.int64], axes: int = 2) -> NDArray[np.float64]:
    """`(N, axes)` random numbers in [0, 1): the position of a tile in its image."""
    return uniforms(seed, epoch, images, 9 + axes)[:, 9:]


# --- volumes ----------------------------------------------------------------------------------------------------------


def volume_matrices(warps: Augment, seed: int, epoch: int, images: NDArray[np.int64]) -> Tensor:
    """`(N, 3, 4)` maps as those of `matrices`: a turn by up to `turn` degrees about any axis, a zoom, a shift."""
    u = uniforms(seed, epoch, images, 19)[:, 12:]
    angle = np.deg2rad(warps.turn) * (2 * u[:, 0] - 1)
    height, around = 2 * u[:, 1] - 1, 2 * np.pi * u[:, 2]
    flat = np.sqrt(1 - height**2)
    axis = np.stack([flat * np.cos(around), flat * np.sin(around), height], axis=1)
    cross = np.cross(np.eye(3)[None], axis[:, None, :])  # Rodrigues' formula
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    turn = cos * np.eye(3) + sin * cross + (1 - cos) * axis[:, :, None] * axis[:, None, :]
    zoom = warps.zoom ** (2 * u[:, 3] - 1)
    shift = 2 * warps.shift * (2 * u[:, 4:7] - 1)
    return torch.from_numpy(np.concatenate([turn / zoom[:, None, None], shift[:, :, None]], axis=2)).float()


def moved(volumes: Tensor, group: Group, seed: int, epoch: int, images: NDArray[np.int64]) -> Tensor:
    """Each cube turned or mirrored by a random element of the group, without interpolation."""
    chosen = (uniforms(seed, epoch, images, 20)[:, 19] * group.order).astype(int)
    return torch.cat([act(volume[None], group, int(g)) for volume, g in zip(volumes, chosen, strict=True)])


def brightened(volumes: Tensor, deviation: float, seed: int, epoch: int, images: NDArray[np.int64]) -> Tensor:
    """Volumes with another contrast and brightness, each by a random number of this deviation."""
    u = uniforms(seed, epoch, images, 24)[:, 20:]
    radius = np.sqrt(-2 * np.log1p(-u[:, :2]))
    normal = torch.from_numpy(deviation * radius * np.cos(2 * np.pi * u[:, 2:])).to(volumes)
    contrast, shift = (normal[:, i].reshape(-1, *[1] * (volumes.dim() - 1)) for i in (0, 1))
    return volumes * (1 + contrast) + shift


def turned(images: Tensor, degrees: float, border: str = "zeros", mode: str = "bilinear") -> Tensor:
    """All images rotated clockwise by an angle; quarter turns are exact, other angles interpolate as `warped` does."""
    quarters, rest = divmod(degrees % 360, 90)
    if rest == 0:
        return torch.rot90(images, -int(quarters), (2, 3))
    angle = np.deg2rad(degrees)
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    maps = torch.tensor([[[cos, sin, 0.0], [-sin, cos, 0.0]]]).expand(len(images), 2, 3)
    return warped(images, maps, border=border, mode=mode)
