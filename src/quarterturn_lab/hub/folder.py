"""Writes and reads a folder in the hub's form. config.json has timm's keys, and the model card as `quarterturn`."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.files import read_json
from quarterturn_lab.runs import model_card
from quarterturn_lab.runs.model_card import KEY, ModelCard
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.runs.trust import network_code
from quarterturn_lab.settings.config import Config, checked

ARCHITECTURE = "quarterturn_network"  # as timm_models registers it
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def write(folder: Path, config: Config, card: ModelCard, net: nn.Module, readme: str) -> None:
    """Write a new folder."""
    folder.mkdir()
    mean, std = normalisation(card)
    side, channels = config.net.side, config.net.channels
    about = {
        "architecture": ARCHITECTURE,
        "num_classes": len(card.classes),
        "pretrained_cfg": {
            "input_size": [channels, side, side],
            "fixed_input_size": not card.is_dense,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": mean,
            "std": std,
            "num_classes": len(card.classes),
            "label_names": list(card.classes),
            **({"classifier": "output"} if hasattr(net, "output") else {}),
        },
        "model_args": {
            "settings": config.model_dump(mode="json"),
            "classes": list(card.classes),
        },
        KEY: json.loads(card.to_json()),
    }
    (folder / CONFIG).write_text(json.dumps(about, indent=1))
    (folder / WEIGHTS).write_bytes(save({name: value.contiguous() for name, value in net.state_dict().items()}))
    (folder / "README.md").write_text(readme)


def from_pretrained(place: str | Path, run_code: bool = False) -> nn.Module:
    """The network of a folder that `quarterturn export --to hub` wrote, in eval mode; `network.card` describes it.

    `place` is a folder, or the name of a repository on the hub. `run_code` allows a network that is made by a function
    of your own installation, which config.json names: it is called.
    """
    folder = Path(place) if Path(place).is_dir() else _downloaded(str(place))
    about, path = _read(folder / CONFIG), folder / WEIGHTS
    net = network(about["model_args"]["settings"], tuple(about["model_args"]["classes"]), run_code)
    try:
        net.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: write the folder with `quarterturn export RUN --to hub`") from None
    except (RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{path} does not fit {CONFIG}: {str(error).splitlines()[0]}") from None
    vars(net)["card"] = model_card.read(json.dumps(about[KEY]), folder / CONFIG)
    return net.eval()


def network(settings: dict[str, Any], classes: tuple[str, ...], run_code: bool) -> nn.Module:
    """A new network with these settings, as config.json has them."""
    config = checked(settings)
    if not run_code and (names := network_code(config)):
        raise ConfigError(
            f"this network is made by calling {names[0]}: give run_code=True if you trust that code, or export it to "
            "ONNX instead"
        )
    return net_for(config, classes)


def normalisation(card: ModelCard) -> tuple[list[float], list[float]]:
    """The mean and standard deviation that torchvision's Normalize needs, for pixels in 0..1 (bytes divided by 255).

    Inverted images have a negative deviation.
    """
    top = 1.0 if card.settings.floats else 255.0
    gain, offset = card.linear()
    return [-b / a / top for a, b in zip(gain, offset, strict=True)], [1 / a / top for a in gain]


def _read(path: Path) -> dict[str, Any]:
    try:
        about = read_json(path, "write the folder again with `quarterturn export --to hub`")
        return {name: about[name] for name in ("model_args", KEY)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not from `quarterturn export --to hub` ({type(error).__name__}: {error})") from None


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise RunError(f"{name} is not a folder; to load it from the hub, pip install huggingface_hub") from None
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:  # of the network, the hub, or the name
        raise RunError(
            f"{name} is not a folder, and cannot be loaded from the hub: {str(error).splitlines()[0]}"
        ) from None
