"""The network of a run: built from its settings, or by the user's own function."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import torch
from torch import nn

from quarterturn_lab.errors import ConfigError, unknown
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.settings.config import Config


def net_for(config: Config, classes: tuple[str, ...]) -> nn.Module:
    """The network of a run, with these classes as outputs, initialised from its seed.

    A factory's network keeps its own initialisation. The memory format is the faster one.
    """
    net = replace(config.net, outputs=len(classes), answers=classes if config.net.output == "questions" else ())
    if config.factory:
        torch.manual_seed(config.seed)
        module = from_factory(config.factory)(channels=net.channels, side=net.side, outputs=net.outputs)
    else:
        module = build(net, config.rotate)
        initialise(module, config.seed, config.output_scale)
        if net.group is not None and net.roll != "all" and config.rotate == "filters":
            return module  # torch's grouped convolutions are slower in channels_last: decisions/0035
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def from_factory(name: str) -> Callable[..., nn.Module]:
    """The function `package.module:function`, which takes channels, side and outputs and returns a module."""
    module_name, colon, function = name.partition(":")
    if not colon:
        raise ConfigError(f"--net {name!r}: write package.module:function, a function of channels, side and outputs")
    sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"--net {name!r}: cannot import {module_name} ({error})") from None
    finally:
        sys.path.pop(0)
    if not hasattr(module, function):
        names = [entry for entry, value in vars(module).items() if callable(value) and not entry.startswith("_")]
        raise unknown(f"function of {module_name}", function, names)
    return getattr(module, function)
