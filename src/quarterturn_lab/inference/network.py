"""A trained network as a function from arrays to arrays, for inputs of any size if it predicts masks."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quarterturn_lab.files import sha256
from quarterturn_lab.inference.receptive_field import PERIODS, view_of
from quarterturn_lab.inference.tiles import Network, Run, Sizes, View
from quarterturn_lab.models.build import filters_twin
from quarterturn_lab.runs.environment import pick_device
from quarterturn_lab.runs.model_card import ModelCard
from quarterturn_lab.runs.trained import load_with_card
from quarterturn_lab.runs.trust import NOTHING, Trust
from quarterturn_lab.settings.config import Config


def runner(net: nn.Module, device: torch.device) -> Run:
    """The network as a function from arrays to arrays."""
    net = net.eval()

    def run(images: NDArray[np.float32]) -> NDArray[Any]:
        with torch.no_grad():
            return net(torch.from_numpy(images).to(device)).float().cpu().numpy()

    return run


def trained_network(directory: Path, device_name: str, trust: Trust = NOTHING) -> tuple[Network, ModelCard]:
    """The network of a finished run as a function from arrays to arrays, and its model card."""
    config, card, net = load_with_card(directory, trust)
    device = pick_device(device_name)
    net = (for_whole_images(config, net) if card.is_dense else net).to(device)
    identity = sha256(directory / "model.safetensors")
    return tiled_network(net, card.settings.channels, device, identity), card


def tiled_network(net: nn.Module, channels: int, device: torch.device, identity: str = "") -> Network:
    """A network as a function from arrays to arrays, which can be run on tiles too."""
    net = net.eval()
    known: dict[Sizes, View] = {}  # by what is left of the sides after whole periods

    def view(sizes: Sizes) -> View:
        rest = tuple(size % PERIODS[len(sizes)] for size in sizes)
        if rest not in known:
            known[rest] = view_of(net, channels, sizes)
        return known[rest].of(sizes)

    return Network(runner(net, device), view, identity)


def for_whole_images(config: Config, net: nn.Module) -> nn.Module:
    """The network in a form that takes images of any shape: networks that rotate maps are rebuilt to rotate filters."""
    ours = config.factory is None and config.backbone is None
    turns_maps = config.net.group is not None and config.rotate == "maps" and ours
    return filters_twin(config.net, net) if turns_maps else net
