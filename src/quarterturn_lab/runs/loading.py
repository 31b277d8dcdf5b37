"""Loads the data of a run."""

from quarterturn_lab.data import OWN_IMAGES, loader
from quarterturn_lab.data.dataset import Data, Settings, subset
from quarterturn_lab.data.splits import with_validation
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.config import Config, ImageSettings


def loader_settings(config: Config) -> Settings:
    """The settings of a run that its loader needs."""
    own = {name: getattr(config, name) for name in ImageSettings.model_fields}
    if config.loader == OWN_IMAGES:
        own |= {"validation": config.validation, "rules": 2}
    own |= {"axes": config.net.axes}
    return Settings(folder=config.data, side=config.net.side, channels=config.net.channels, **own)


def load(config: Config) -> Data:
    """The data of a run, with the validation part and the subset of training images that its settings ask for."""
    _refuse_unused(config)
    data = loader(config.loader)(loader_settings(config))
    if config.loader != OWN_IMAGES:  # which has held them out
        data = with_validation(data, config.validation)
    return subset(data, config.train_size, config.seed)


def _refuse_unused(config: Config) -> None:
    """Raise if an option is given that the loader of the run would ignore."""
    unused = {"labels", "columns", "task", "groups_by", "test_part"} if config.loader != OWN_IMAGES else set()
    unused -= {"test_part"} if config.loader == "folder" else set()
    for name in sorted(unused):
        if getattr(config, name) != ImageSettings.model_fields[name].default:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is for `quarterturn fit`, and these data have labels and parts of their own")
