"""The name of a run's directory, which depends only on its settings.

    ROOT/EXPERIMENT/ROW-AND-WHAT-DIFFERS/seedN       runs/plankton/roll-all-quarter-D4-filters-epochs80/seed0

A study and a command with the same settings share a run. Different settings have different names.
"""

import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from quarterturn_lab.settings.config import FREE, Config
from quarterturn_lab.settings.experiments import config_for

LONGEST = 120  # characters of a name; a longer one is cut and ends with a hash
# These choose the network: their values come first, without a name.
NETWORK = ("factory", "backbone", "group", "rotate", "how")


def directory_of(config: Config, root: Path) -> Path:
    """The directory of a run below `root`."""
    return root / config.experiment / label(config.row, differences(config)) / f"seed{config.seed}"


def differences(config: Config) -> dict[str, Any]:
    """The settings that differ from the row's defaults, without the seed and settings that do not affect the result."""
    own = _own_settings(config.experiment, config.row)
    return {name: value for name, value in _flat(config).items() if value != own[name]}


def label(row: str, differing: dict[str, Any]) -> str:
    """A name for a row with settings that differ from its defaults.

    >>> label("roll-all-quarter", {"epochs": 80, "group": "D4", "rotate": "filters", "invert": False})
    'roll-all-quarter-D4-filters-epochs80-no-invert'
    >>> label("baseline", {"factory": "package.module:function"})
    'package.module.function'
    >>> label("baseline", {"backbone": "smp:Unet/resnet18", "group": "D4", "how": "wrap"})
    'smp.Unet.resnet18-D4-wrap'
    """
    other = differing.get("factory") or differing.get("backbone", "").replace("/", ".")
    words = [other.replace(":", "."), *([row] if row != "baseline" else [])] if other else [row]
    words += [str(differing[name]) for name in NETWORK[2:] if name in differing]
    if "weights_sha256" in differing:
        words.append(f"weights-{differing['weights_sha256'][:8]}")
    words += [_word(name, value) for name, value in differing.items() if name not in (*NETWORK, "weights_sha256")]
    whole = "-".join(words)
    name = re.sub(r"[^\w.,+-]", "_", whole)
    if name == whole and len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(json.dumps([row, differing], sort_keys=True).encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9]}-{digest}"


def _word(name: str, value: Any) -> str:
    """One setting as a word: epochs80, dropout0.5, invert, no-flip, border-reflection."""
    if value is None or isinstance(value, bool):
        return name if value else f"no-{name}"
    if isinstance(value, str):
        return f"{name}-{value}"
    return name + json.dumps(value).replace(" ", "").strip("[]").replace("],[", "+")


@functools.cache
def _own_settings(experiment: str, row: str) -> dict[str, Any]:
    return _flat(config_for(experiment, row))


def _flat(config: Config) -> dict[str, Any]:
    """All settings that affect the result, in one flat dictionary, without experiment, row and seed."""
    values = config.model_dump(mode="json", by_alias=False, exclude={*FREE, "experiment", "row", "seed"})
    return {**values.pop("net"), **values.pop("augment"), **values}
