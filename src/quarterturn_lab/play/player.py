"""A trained network that answers for a picture in memory, in any orientation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from quarterturn_lab.data.augment import turned
from quarterturn_lab.data.images import fitted
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.inference.predict import onnx_network
from quarterturn_lab.inference.tiles import SIDE, Network
from quarterturn_lab.inference.whole_images import joined
from quarterturn_lab.runs.model_card import ModelCard, probabilities
from quarterturn_lab.runs.trust import NOTHING, Trust

Picture = NDArray[np.uint8]  # (H, W, 3), as a page gives it
Square = NDArray[np.uint8]  # (channels, side, side), as the network's data set has it
Answer = NDArray[np.float64]  # (classes,), or for each pixel (H, W) or (classes, H, W)
QUARTERS = (90, 180, 270)
LARGEST, STEP = 256, 32  # sides of pictures for networks that label pixels; many of them halve their maps five times


@dataclass(frozen=True)
class Player:
    """A network and its model card; `title` is its name on the page."""

    title: str
    network: Network
    card: ModelCard

    def square(self, picture: Picture) -> Square:
        """The picture as this network wants it: scaled as in training, or its middle for networks that label pixels.

        It is square, so that all of it stays in sight at quarter turns, and none of it moves by a part of a pixel.
        """
        settings = self.card.settings
        pixels = np.asarray(Image.fromarray(picture).convert("L" if settings.channels == 1 else "RGB"))
        array = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if not self.card.is_dense:
            return fitted(array, settings)
        side = min(max(max(array.shape[1:]) // STEP * STEP, STEP), LARGEST)
        longest = max(array.shape[1:]) if max(array.shape[1:]) >= STEP else STEP
        return fitted(array, settings.model_copy(update={"side": side, "longest": longest}))

    def answers(self, squares: list[Square]) -> list[Answer]:
        """The answers for pictures of the same side: probabilities, shares, numbers or maps of probabilities."""
        inputs = self.card.scaling(np.stack(squares))
        if not self.card.is_dense:
            return list(self.card.answers(self.network.run(inputs)))
        return [self._map(image) for image in inputs]

    def _map(self, image: NDArray[np.float32]) -> Answer:
        height, width = image.shape[1:]
        view = self.network.view((height, width))
        return joined(view, ((t, probabilities(self.card.task, f[None])[0]) for t, f in view.parts(image, SIDE)))

    def change(self, before: Answer, after: Answer, quarters: int = 0) -> float:
        """By how much an answer differs from the one before the picture was turned by so many quarters.

        For classes half the sum of the changes of their probabilities, from 0 to 1; otherwise the largest change. Maps
        are turned back first.
        """
        back = np.rot90(after, quarters, (-2, -1)) if self.card.is_dense else after
        moved = np.abs(back - before)
        return float(moved.sum() / 2 if self.card.task == "classes" else moved.max())

    def at_quarters(self, square: Square) -> list[float]:
        """The change of the answer at 90, 180 and 270 degrees, which need no interpolation."""
        before, *after = self.answers([turned_square(square, degrees) for degrees in (0, *QUARTERS)])
        return [self.change(before, answer, number) for number, answer in enumerate(after, start=1)]


def turned_square(square: Square, degrees: float) -> Square:
    """The picture rotated clockwise; quarter turns move pixels, other angles interpolate.

    Corners that come into sight have the median of the picture's edges.
    """
    edges = np.concatenate([square[:, 0], square[:, -1], square[:, :, 0], square[:, :, -1]], axis=1)
    ground = np.median(edges, axis=1).astype(np.float32)[:, None, None]
    found = turned(torch.from_numpy(square - ground)[None], degrees)[0].numpy() + ground
    return np.ascontiguousarray(found.round().clip(0, 255).astype(np.uint8))


def player_of(path: Path, trust: Trust = NOTHING) -> Player:
    """The network of a finished run, or of an ONNX file that `quarterturn export` wrote."""
    if path.is_dir():
        from quarterturn_lab.inference.network import trained_network

        network, card = trained_network(path, "cpu", trust)
    elif path.suffix.lower() == ".onnx" or path.is_file():
        network, card = onnx_network(path)
    else:
        raise ConfigError(f"{path} does not exist: name a run directory or a file of `quarterturn export RUN --onnx`")
    if card.settings.floats:
        raise ConfigError(
            f"{path} was trained on files with values of their own (--floats), and a page has 8-bit pictures: use "
            "`quarterturn predict`"
        )
    return Player(path.name, network, card)


def picture_of(given: Any) -> Picture | None:
    """What a page gives for an image or a drawing, as colours; None if there is none.

    >>> picture_of(np.zeros((4, 5), np.uint8)).shape
    (4, 5, 3)
    """
    if isinstance(given, dict):
        given = given.get("composite")
    if given is None or 0 in given.shape:
        return None
    return np.asarray(Image.fromarray(given).convert("RGB"))
