"""Keeping the minutes: the number of epochs is changed on the way if the machine becomes slower or faster."""

from collections.abc import Callable
from dataclasses import dataclass, field

from quarterturn_lab.data.dataset import Data
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training.loop import State
from quarterturn_lab.training.order import steps_per_epoch
from quarterturn_lab.training.schedule import scored_epochs

LOOK = 0.05  # share of the time between two looks at the clock: the speed of less than that is noise
# A plan stays as it is if it is wrong by less than this share of the time, or this share of what is left.
WRONG, WRONG_OF_REST = 0.03, 0.1
FORWARD = 0.35  # seconds of scoring an image, as a share of those of training on it, until it is measured
TURNED, TURNS = 60, 30  # test images that the report turns, and how often it scores each of them


@dataclass
class Pace:
    """The number of epochs for a time, decided anew at the end of epochs: what `loop.train` asks.

    `keep` gets the changed settings, which have all that a repetition needs: it looks at no clock.
    """

    seconds: float  # for the run: its training, and its scoring and the report too if `everything`
    data: Data
    everything: bool = False
    keep: Callable[[Config], None] = lambda config: None
    forward: float = FORWARD  # seconds of scoring an image, as a share of those of training on it in an epoch
    looked: tuple[int, float] = (0, 0.0)  # epoch and seconds of training at the last look
    epoch_seconds: float | None = field(default=None, init=False)

    def __call__(self, config: Config, state: State) -> Config:
        epoch, spent = state.step // steps_per_epoch(config, self.data), state.seconds["wall"]
        decided = any(end >= epoch for _, end in config.earlier_plans)  # by the run that is repeated or resumed
        if decided or state.stopped or epoch == config.epochs or spent - self.looked[1] < LOOK * self.seconds:
            return config
        now = (spent - self.looked[1]) / (epoch - self.looked[0])
        self.epoch_seconds = now if self.epoch_seconds is None else (self.epoch_seconds + 2 * now) / 3
        self.looked = epoch, spent
        left = self.seconds - spent
        if self.everything:
            scoring = state.seconds["scoring"]
            left -= (
                state.seconds["setup"] + scoring + scoring_left(config, self.data, epoch, scoring, self.forward * now)
            )
        epochs = epochs_in(epoch, config.epochs, self.epoch_seconds, left, self.seconds)
        if epochs == config.epochs:
            return config
        earlier = (*config.earlier_plans, (config.epochs, epoch))
        changed = config.model_copy(update={"epochs": epochs, "earlier_plans": earlier})
        self.keep(changed)
        return changed


def epochs_in(done: int, planned: int, epoch: float, left: float, seconds: float) -> int:
    """The number of epochs of a run in all, with `left` of its `seconds` to go: as planned, if that is about right.

    There is always one more, in which the learning rate reaches zero.

    >>> epochs_in(10, 40, 10.0, 300, 400), epochs_in(10, 40, 20.0, 300, 400), epochs_in(10, 40, 5.0, 300, 400)
    (40, 25, 70)
    """
    if abs((planned - done) * epoch - left) <= max(WRONG * seconds, WRONG_OF_REST * left):
        return planned
    return done + max(1, round(left / epoch))


def scoring_left(config: Config, data: Data, epoch: int, spent: float, guess: float) -> float:
    """Seconds of scoring after an epoch, by what scoring took so far, or else by a guess for all training images."""
    points = scored_epochs(config)
    done = sum(point <= epoch for point in points)
    image = spent / (done * len(data.valid)) if done and len(data.valid) else guess / len(data.train)
    parts = {part: len(getattr(data, part)) for part in ("train", "valid", "test")}
    return image * images_to_score(config, parts, len(points) - done)


def images_to_score(config: Config, parts: dict[str, int], points: int) -> int:
    """Images that are still to be scored: at these many points of training, at its end, and for the report."""
    turns = 5 if config.score_turns else config.net.axes - 1  # volumes are scored as they are and turned
    images = parts["valid"] * (points + turns) + parts["test"] * (turns + 1) + min(parts["train"], config.eval_train)
    turned = 0 if config.net.head == "conv" else TURNS * min(TURNED, parts["test"])  # few with masks are turned
    return images + turned
