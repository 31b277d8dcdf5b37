"""Code that a file names. Opening someone's run never calls it, unless the user names it again or trusts the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.config import Config

LIBRARIES = ("timm:", "torchvision:", "smp:")  # of backbones: names in a list, which are no code of the run
OURS = "quarterturn_lab."


@dataclass(frozen=True)
class Trust:
    """The code of a run that may be called."""

    net: str | None = None  # this function
    trust: bool = False  # or any that the run names


NOTHING = Trust()


def code_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """The functions `package.module:function` that settings name, by setting, but for this package's own."""
    found = {name: settings[name] for name in ("factory", "backbone", "track") if isinstance(settings.get(name), str)}
    if found.get("backbone", "").startswith(LIBRARIES):
        del found["backbone"]
    return {name: function for name, function in found.items() if not function.startswith(OURS)}


def network_code(config: Config) -> list[str]:
    """The function that makes the network of a run, if it is not this package's own."""
    return [function for name, function in code_in(dict(config)).items() if name != "track"]


def check_network(config: Config, source: Path, trust: Trust) -> None:
    """Raise if a run's network is made by code that the user does not name."""
    for function in network_code(config):
        if not trust.trust and function != trust.net:
            raise _refusal(source, function, "--net")


def check_settings(settings: Mapping[str, Any], source: Path, given: Mapping[str, Any]) -> None:
    """Raise if the settings in a file name code that the user's own do not."""
    for name, function in code_in(settings).items():
        if given.get(name) != function:
            raise _refusal(source, function, f"--{name}")


def _refusal(source: Path, function: str, option: str) -> ConfigError:
    return ConfigError(
        f"{source} names {function}, and going on would run that code: if you know what it does, name it yourself with "
        f"{option} {function}, or give --trust"
    )
