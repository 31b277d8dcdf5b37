"""The command `train`: train or resume one network."""

from pathlib import Path
from typing import Any

from quarterturn_lab import ranks
from quarterturn_lab.evaluation.tasks import TASKS, Scores
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.naming import directory_of
from quarterturn_lab.settings.config import Config
from quarterturn_lab.settings.experiments import config_for, split_name
from quarterturn_lab.training import checkpoint, training_run


def train_one(name: str, seed: int, factory: str | None, root: Path, options: dict[str, Any]) -> None:
    """Train one network and print its summary."""
    experiment, row = split_name(name)
    config = config_for(experiment, row, seed, factory=factory, **options)
    with ranks.leading(config.devices) as leads:
        if leads:
            _train(config, root)


def _train(config: Config, root: Path) -> None:
    directory = directory_of(config, root)
    if checkpoint.exists(directory) and not (directory / "summary.json").exists():
        print(f"resuming from the checkpoint in {directory}")
    with Bars() as bars:
        label = f"{directory.parent.name} seed {config.seed}"
        result = training_run.run(
            config,
            directory,
            lambda step, total, loss: bars.update(label, step, total, loss, config.batch_images),
            print,
        )
    for part in ("test", "test_4_turns", "valid", "train"):
        if part in result:
            print(f"{part:>12}  {described(result['task'], result[part])}")
    print(f"{result['parameters']:,} parameters, {result['cpu_seconds']} CPU seconds -> {directory}")


def described(task_name: str, scores: Scores) -> str:
    """The main scores of a task, as text."""
    task = TASKS[task_name]
    text = f"{task.name} {scores[task.score]:.{task.digits}f}"
    if task.second:
        text += f"  {task.second_name} {task.second_factor * scores[task.second]:.{task.digits - 2}f}"
    return text
