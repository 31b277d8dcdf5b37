"""The data of a run."""

from quarterturn_lab.data import loader
from quarterturn_lab.data.dataset import Data, Settings, subset
from quarterturn_lab.settings.config import Config


def settings_of(config: Config) -> Settings:
    """What a run asks its loader for."""
    return Settings(
        folder=config.data,
        side=config.net.side,
        channels=config.net.channels,
        longest=config.longest,
        invert=config.invert,
        skip_bad=config.skip_bad,
        max_pixels=config.max_pixels,
        floats=config.floats,
    )


def load(config: Config) -> Data:
    """The data of a run, with the part of the training images that its seed draws."""
    return subset(loader(config.loader)(settings_of(config)), config.train_size, config.seed)
