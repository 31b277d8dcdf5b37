"""Modules that are not the lab's: libraries of networks, and the user's own code."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from quarterturn_lab.errors import ConfigError, unknown

INSTALLS = {
    "timm": "timm",
    "torchvision": "torchvision",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
}
UNNAMED = "operator torchvision::"
_kept: list[Any] = []  # names of operators last as long as this


def library(name: str) -> ModuleType:
    """An installed library of networks.

    torchvision, which the others import, does not load beside a torch without CUDA if it was built for one with it: two
    operators have no name. No network here calls them, so that naming them is enough.
    """
    try:
        try:
            return import_module(name)
        except RuntimeError as error:
            if UNNAMED not in str(error) or _kept:
                raise
            _kept.append(torch.library.Library("torchvision", "FRAGMENT"))
            for operator in ("nms", "qnms"):
                _kept[0].define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            return import_module(name)
    except (ImportError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{name} cannot be imported ({why}): pip install {INSTALLS[name]}") from None


def from_factory(name: str, option: str = "--net", takes: str = "channels, side and outputs") -> Callable[..., Any]:
    """The user's own `package.module:function`, which an option names.

    The current folder stays on Python's path: the function may import its neighbours when it is called.
    """
    module_name, colon, function = name.partition(":")
    if not colon or not module_name:
        raise ConfigError(f"{option} {name!r}: write package.module:function, a function of {takes}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{option} {name!r}: cannot import {module_name} ({error})") from None
    if not hasattr(module, function):
        names = [entry for entry, value in vars(module).items() if callable(value) and not entry.startswith("_")]
        raise unknown(f"function of {module_name}", function, names)
    found = getattr(module, function)
    if not callable(found):
        raise ConfigError(f"{option} {name!r} is a {type(found).__name__}: name a function of {takes}")
    return found
