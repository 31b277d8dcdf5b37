"""Loads the data of a run."""

from quarterturn_lab.data import loader
from quarterturn_lab.data.dataset import Data, Settings, subset
from quarterturn_lab.data.splits import with_validation
from quarterturn_lab.settings.config import Config, ImageSettings


def loader_settings(config: Config) -> Settings:
    """The settings of a run that its loader needs."""
    own = {name: getattr(config, name) for name in ImageSettings.model_fields}
    return Settings(folder=config.data, side=config.net.side, channels=config.net.channels, **own)


def load(config: Config) -> Data:
    """The data of a run, with the validation part and the subset of training images that its settings ask for."""
    data = with_validation(loader(config.loader)(loader_settings(config)), config.validation)
    return subset(data, config.train_size, config.seed)
