"""The network of a run: built from its settings, from another library, or by the user's own function."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.models.backbones import backbone_network
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.models.libraries import from_factory
from quarterturn_lab.settings.config import Config, digest_of_weights

MATCHED = 200  # training images by which pretrained filters are matched


def net_for(config: Config, classes: tuple[str, ...]) -> nn.Module:
    """The network of a run, with these classes as outputs, initialised from its seed, without pretrained weights.

    A factory's network keeps its own initialisation, and so does a backbone. The memory format is the faster one.
    """
    return _made(config, classes, None)[0]


def net_to_train(
    config: Config, classes: tuple[str, ...], images: Callable[[int], torch.Tensor]
) -> tuple[nn.Module, list[str]]:
    """The network of a run before its first step, with its pretrained weights, and what there is to say.

    `images` gives so many training images as the network sees them, for weights that have to be converted.
    """
    if config.weights is None:
        return _made(config, classes, None)
    if digest_of_weights(config.weights) != config.weights_sha256:
        raise ConfigError(f"--weights {config.weights} is another file than this run was started with: give the same")
    return _made(config, classes, Path(config.weights), images(MATCHED) if config.how == "convert" else None)


def _made(
    config: Config, classes: tuple[str, ...], weights: Path | None, images: torch.Tensor | None = None
) -> tuple[nn.Module, list[str]]:
    net = replace(config.net, outputs=len(classes), answers=classes if config.net.output == "questions" else ())
    notes: list[str] = []
    module: nn.Module
    if config.factory:
        torch.manual_seed(config.seed)
        module = from_factory(config.factory)(channels=net.channels, side=net.side, outputs=net.outputs)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"--net {config.factory} returned {type(module).__name__}: return a torch.nn.Module")
    elif config.backbone:
        torch.manual_seed(config.seed)
        module, notes = backbone_network(config.backbone, net, config.how, config.rotate, weights, images)
    else:
        module = build(net, config.rotate)
        initialise(module, config.seed, config.output_scale)
        if net.group is not None and net.roll != "all" and config.rotate == "filters":
            return module, notes  # torch's grouped convolutions are slower in channels_last: decisions/0035
        if net.axes == 3:  # the kernel has features first; torch's layers prefer them last
            last = torch.channels_last_3d
            return (module if net.group else module.to(memory_format=last)), notes  # type: ignore[call-overload]
    return module.to(memory_format=torch.channels_last), notes  # type: ignore[call-overload]
