"""`fit --search`: short runs with other settings, proposed by Optuna and judged on validation images.

Optuna's journal and the runs are in `search/` of the run directory. A search that was ended goes on where it was.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.files import LARGEST_TEXT, damaged, read_bytes, write_atomically
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.run_directory import summary
from quarterturn_lab.seeds import key
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training.sweep import Where, sweep

FOLDER = "search"
SHARE = 0.25  # of the epochs of the run, for each trial
FACTOR = 5.0  # the learning rate is searched from the planned one divided by this to its product
TRIALS = 20
Params = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """How many trials or minutes, and where they run."""

    trials: int | None = None
    minutes: float | None = None
    where: Where = field(default_factory=lambda: Where(jobs=1))

    def checked(self) -> "Search":
        if self.trials is not None and self.trials < 1:
            raise ConfigError(f"--search {self.trials}: give the number of trials, 1 or more")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ConfigError(f"--search-minutes {self.minutes:g}: give a time above zero")
        _optuna()
        return self


def space(base: Config, symmetry: str, given: dict[str, Any], group_is_free: bool) -> dict[str, Any]:
    """What to search: a range of learning rates, and lists of the others. What the user has given stays as it is.

    The group is searched among those that the images' symmetry allows.
    """
    found: dict[str, Any] = {} if "lr" in given else {"lr": (base.lr / FACTOR, base.lr * FACTOR)}
    if base.backbone or base.factory:
        return found
    if base.net.residual and "width" not in given:
        width = base.net.stages[0][0]
        found["width"] = (width // 2, width, width * 2)
    groups = {"C4": ("C4", "none"), "D4": ("C4", "D4", "none")}.get(symmetry, (base.net.group or "none",))
    if group_is_free and len(groups) > 1:
        found["group"] = groups
    if base.net.residual and base.net.group and not {"pool", "invariants"} & given.keys():
        found["head"] = ("invariants", "mean", "max")
    return found


def options_of(params: Params, group: str) -> dict[str, Any]:
    """The options that a trial's parameters stand for, for a network with this group.

    >>> options_of({"lr": 0.01, "head": "max"}, "C4")
    {'lr': 0.01, 'pool': 'max', 'invariants': False}
    """
    found = {name: value for name, value in params.items() if name in ("lr", "width")}
    if group == "none" or "head" not in params:
        return found
    head = params["head"]
    return found | ({"invariants": True} if head == "invariants" else {"pool": head, "invariants": False})


def searched(
    directory: Path,
    search: Search,
    base: Config,
    task: str,
    spaces: dict[str, Any],
    make: Callable[[Params], Config],
    bars: Bars,
) -> Params:
    """The best parameters; `make` gives the settings of a run with some parameters."""
    optuna = _optuna()
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    study = _study(optuna, folder / "journal.log", _direction(task))
    before = len(study.trials)
    study.sampler = optuna.samplers.TPESampler(seed=key("search", base.seed, before) % 2**32)
    spread = {name: _distribution(optuna, values) for name, values in spaces.items()}
    if before:
        bars.say(f"search: going on after {before} trials")
    else:
        study.enqueue_trial(_planned(base, spaces))
    end = time.monotonic() + 60 * search.minutes if search.minutes else float("inf")
    wanted = search.trials or (TRIALS if search.minutes is None else 10**6)
    while True:
        # Those of a driver that was killed come first.
        some = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        if not some:
            left = wanted - sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
            if left < 1 or (time.monotonic() > end and left < wanted):
                break
            some = [study.ask(spread) for _ in range(min(left, search.where.jobs or 1))]
        jobs = [(make(trial.params), folder / f"trial-{trial.number:03d}" / f"seed{base.seed}") for trial in some]
        with suppress(RunError):  # it was said; the others count
            sweep(jobs, search.where, bars)
        for trial, (_, place) in zip(some, jobs, strict=True):
            score = summary(place)["valid"][TASKS[task].score] if (place / "summary.json").exists() else None
            state = optuna.trial.TrialState.COMPLETE if score is not None else optuna.trial.TrialState.FAIL
            study.tell(trial.number, score, state)
            bars.say(f"trial {trial.number}: {_words(trial.params)}: {_scored(task, score)}")
    if not any(trial.value is not None for trial in study.get_trials(deepcopy=False)):
        raise RunError(f"no trial of the search has finished: see failed.txt in {folder}")
    bars.say(f"search: {_words(study.best_params)} is best on validation images, {_scored(task, study.best_value)}")
    return study.best_params


def _study(optuna: Any, path: Path, direction: str) -> Any:
    """The study in a journal. A last line that a kill has cut off goes, or the next one would become a part of it."""
    way_out = f"remove {path.parent}, and run the same command again"
    if path.exists():
        content = read_bytes(path, way_out, LARGEST_TEXT)
        if content[-1:] not in (b"", b"\n"):
            write_atomically(path, content[: content.rfind(b"\n") + 1])
    try:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        return optuna.create_study(storage=storage, study_name="fit", direction=direction, load_if_exists=True)
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise damaged(path, error, way_out) from None


def _planned(base: Config, spaces: dict[str, Any]) -> Params:
    """The parameters of the plan, which are tried first."""
    net = base.net
    values = {"lr": base.lr, "width": net.stages[0][0], "group": net.group or "none"}
    return {name: ("invariants" if net.invariants else net.pool) if name == "head" else values[name] for name in spaces}


def _distribution(optuna: Any, values: Any) -> Any:
    if all(isinstance(value, float) for value in values):
        return optuna.distributions.FloatDistribution(*values, log=True)
    return optuna.distributions.CategoricalDistribution(values)


def _direction(task: str) -> str:
    return "maximize" if TASKS[task].better == "higher" else "minimize"


def _words(params: Params) -> str:
    return ", ".join(f"{name} {value:.3g}" if name == "lr" else f"{name} {value}" for name, value in params.items())


def _scored(task: str, score: float | None) -> str:
    return "failed" if score is None else f"{TASKS[task].name} {score:.{TASKS[task].digits}f}"


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError('--search needs optuna: pip install "quarterturn[lab,search]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
