"""Loads the trained network of a finished run, with its data or with its model card."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from quarterturn_lab.data.dataset import Data
from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.files import damaged, read_text
from quarterturn_lab.runs import model_card
from quarterturn_lab.runs.loading import load
from quarterturn_lab.runs.model_card import ModelCard
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.runs.run_directory import WAY_OUT, check_sealed, config_of
from quarterturn_lab.runs.trust import NOTHING, Trust, check_network
from quarterturn_lab.settings.config import Config


def load_with_data(
    directory: Path, data_folder: str | None = None, trust: Trust = NOTHING
) -> tuple[Config, Data, nn.Module]:
    """The settings, the data and the network of a finished run; `data_folder` replaces the folder of its images."""
    config = _trusted_config(directory, trust)
    if data_folder:
        config = config.model_copy(update={"data": data_folder})
    data = load(config)
    return config, data, _network(directory, config, data.classes)


def load_with_card(directory: Path, trust: Trust = NOTHING) -> tuple[Config, ModelCard, nn.Module]:
    """The settings, the model card and the network of a finished run; needs no data."""
    config, card = _trusted_config(directory, trust), card_of(directory)
    sizes = [(each.channels, each.side) for each in (card.settings, config.net)]
    if sizes[0] != sizes[1]:
        why = f"its channels and side are {sizes[0]}, those of config.json {sizes[1]}"
        raise damaged(directory / "model.json", why, WAY_OUT)
    return config, card, _network(directory, config, card.classes)


def card_of(directory: Path) -> ModelCard:
    """The model card of a finished run."""
    path = directory / "model.json"
    check_sealed(path)
    if not path.exists():
        raise RunError(f"{directory} has no model.json, because an older version trained it: train it again")
    return model_card.read(read_text(path, WAY_OUT), path)


def _trusted_config(directory: Path, trust: Trust) -> Config:
    config = config_of(directory)
    check_network(config, directory / "config.json", trust)
    return config


def _network(directory: Path, config: Config, classes: tuple[str, ...]) -> nn.Module:
    path = directory / "model.safetensors"
    check_sealed(path)
    try:
        net = net_for(config, classes)
    except (RuntimeError, MemoryError, OverflowError, ZeroDivisionError) as error:
        raise damaged(directory / "config.json", error or "not enough memory", WAY_OUT) from None
    try:
        net.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise RunError(f"{directory} has no model.safetensors: train it again, or copy the whole directory") from None
    except (RuntimeError, SafetensorError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{path}: the weights do not fit config.json: {why}") from None
    return net.eval()
