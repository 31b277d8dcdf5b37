"""What the commands do. They print; nothing below them does."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import quarterturn as qt
from quarterturn_lab.data.dataset import Dataset, Scenes
from quarterturn_lab.errors import ConfigError, unknown
from quarterturn_lab.evaluation.classification import confusion, recalls, rmse
from quarterturn_lab.evaluation.score import examples, labels_of, predict, scene_error
from quarterturn_lab.evaluation.tasks import TASKS, Scores
from quarterturn_lab.files import write_atomically
from quarterturn_lab.progress import Bars, clock
from quarterturn_lab.report import table as result_table
from quarterturn_lab.report.html import report
from quarterturn_lab.runs import run_directory
from quarterturn_lab.runs.naming import directory_of
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.settings.experiments import experiment_of, settings_of, split_name
from quarterturn_lab.settings.networks import ROWS
from quarterturn_lab.training import loop, training_run
from quarterturn_lab.training.sweep import sweep

# The longest first.
DEMO: dict[str, dict[str, Any]] = {
    "pool-mean": {},
    "roll-all-quarter": {"rotate": "filters"},  # the same network, in half the time
    "baseline": {},
}


def config_for(name: str, row: str, seed: int, options: dict[str, Any], factory: str | None = None) -> Config:
    return checked({**settings_of(name, row, **options), "seed": seed, "factory": factory})


def train_one(name: str, seed: int, factory: str | None, root: Path, options: dict[str, Any]) -> None:
    """Train one network and print its summary."""
    experiment, row = split_name(name)
    config = config_for(experiment, row, seed, options, factory)
    directory = directory_of(config, root)
    if (directory / "checkpoint.pt").exists() and not (directory / "summary.json").exists():
        print(f"going on from the checkpoint in {directory}")
    with Bars() as bars:
        label = f"{directory.parent.name} seed {seed}"
        result = training_run.run(
            config, directory, lambda step, total, loss: bars.update(label, step, total, loss, config.batch_images)
        )
    for part in ("test", "test_4_turns", "valid", "train"):
        if part in result:
            print(f"{part:>12}  {described(result['task'], result[part])}")
    print(f"{result['parameters']:,} parameters, {result['cpu_seconds']} CPU seconds -> {directory}")


def run_table(
    experiment: str, count: int, rows: tuple[str, ...], jobs: int | None, root: Path, options: dict[str, Any]
) -> None:
    """Bring all runs to their end, print the table, write it and the report."""
    known = experiment_of(experiment)
    for row in rows:
        if row not in ROWS:
            raise unknown("row", row, ROWS)
    if count < 1:
        raise ConfigError(f"--runs {count}: at least one run for each row is needed")
    chosen = rows or known.rows
    plain = [row for row in chosen if "group" not in ROWS[row]]
    todo = []
    for seed in range(count):
        for row in chosen:
            own = {key: value for key, value in options.items() if key not in ("group", "rotate") or row not in plain}
            config = config_for(experiment, row, seed, own)
            todo.append((config, directory_of(config, root)))
    with Bars() as bars:
        sweep(todo, jobs or os.cpu_count() or 1, bars)
    _print_table(root, experiment)
    for line in _written(root, experiment):
        print(line)
    print(f"report: {report(root, data_folder=options.get('data'))}")


def run_demo(root: Path, jobs: int | None) -> None:
    """Three networks on the embedded set."""
    start = time.monotonic()
    print("three networks learn to tell ten kinds of organisms apart, at any orientation", flush=True)
    todo = []
    for row, options in DEMO.items():
        config = config_for("synthetic", row, 0, {"eval_points": 6, **options})
        todo.append((config, directory_of(config, root)))
    with Bars(interval=5.0) as bars:
        sweep(todo, jobs or os.cpu_count() or 1, bars)
    _print_table(root, "synthetic")
    page = report(root)
    print(f"{clock(time.monotonic() - start)} minutes. report: {page.resolve()}")


def _print_table(root: Path, experiment: str) -> None:
    header, *rows = result_table.shown(result_table.lines_of(root, experiment))
    table = Table(title=experiment)
    for name in header:
        table.add_column(name, justify="left" if name == "row" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=max(console.width, 170) if not console.is_terminal else None).print(table)


def _written(root: Path, experiment: str) -> list[str]:
    lines = result_table.lines_of(root, experiment)
    paths = {
        root / f"{experiment}.md": result_table.markdown(lines),
        root / f"{experiment}.csv": result_table.as_csv(lines),
    }
    for path, text in paths.items():
        write_atomically(path, text)
    return [f"table: {path}" for path in paths]


def described(task_name: str, scores: Scores) -> str:
    """The scores that a task is about, as text."""
    task = TASKS[task_name]
    text = f"{task.name} {scores[task.score]:.{task.digits}f}"
    if task.second:
        text += f"  {task.second_name} {task.second_factor * scores[task.second]:.{task.digits - 2}f}"
    return text


def evaluate_run(directory: Path, turns: int, data_folder: str | None) -> None:
    """Print scores, and what there is to say of single classes or answers; write it all into evaluation.json."""
    if turns < 1:
        raise ConfigError(f"--turns {turns}: give the number of angles to average over, 1 or more")
    config, data, net = run_directory.opened(directory, data_folder)
    device = loop.pick_device(config.device)
    angles = tuple(360.0 * i / turns for i in range(turns))
    plain = predict(config, net.to(device), data, data.test, device)
    averaged = predict(config, net, data, data.test, device, angles)
    labels = labels_of(config, data, data.test)
    scores = TASKS[data.task].scores
    record: dict[str, Any] = {"test": scores(plain, labels), f"test, {turns} turns averaged": scores(averaged, labels)}
    for name, found in record.items():
        print(f"{name}: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    if data.task == "classes":
        record |= _class_by_class(plain, labels, data.classes)
    elif data.task == "answers":
        record |= _answer_by_answer(plain, labels, data.classes)
    else:
        each = [scores([p], [t]) for p, t in zip(plain, labels, strict=True)]
        record["images"] = {data.names[i]: found for i, found in zip(data.test, each, strict=True)}
        for name, found in record["images"].items():
            print(f"{name}: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    write_atomically(directory / "evaluation.json", json.dumps(record))
    print(f"\nall of it: {directory / 'evaluation.json'}")


def _class_by_class(probabilities: Any, labels: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    counts = confusion(probabilities, labels)
    print(f"\n{'recall':>8}  {'images':>6}  class (most often taken for)")
    for label in np.argsort(np.nan_to_num(recalls(counts), nan=2.0)):
        others = np.where(np.arange(len(counts)) == label, -1, counts[label])
        taken = f" ({classes[others.argmax()]}, {others.max()})" if others.max() > 0 else ""
        print(f"{recalls(counts)[label]:8.3f}  {counts[label].sum():6d}  {classes[label]}{taken}")
    return {"classes": list(classes), "confusion": counts.tolist()}


def _answer_by_answer(predicted: Any, labels: Any, answers: tuple[str, ...]) -> dict[str, Any]:
    """Beside the error of each answer that of its mean, which knows nothing of the image."""
    found = {}
    print(f"\n{'RMSE':>8}  {'of mean':>8}  answer")
    for i, name in enumerate(answers):
        found[name] = rmse(predicted[:, i], labels[:, i])
        print(f"{found[name]:8.4f}  {float(labels[:, i].std()):8.4f}  {name}")
    return {"answers": found}


def check_run(directory: Path, group_name: str | None, data_folder: str | None, whole: bool) -> bool:
    """Print the law and the error of each layer; whether the network's answer is invariant (or turns along)."""
    config, data, net = run_directory.opened(directory, data_folder)
    group = qt.named(group_name or config.net.group or "C4")
    if whole and isinstance(data, Dataset):
        raise ConfigError("--whole is for networks that label each pixel; this one answers for the image")
    images = examples(config, data, data.test[:4]).double()
    net = net.double()
    print(f"{'layer':>22}  {'kind':<16} {'law under ' + group.name:<24} relative error")
    for layer in qt.laws_by_layer(net, group, images):
        law = layer.law if layer.error < 1e-6 else "none"
        print(f"{layer.path:>22}  {layer.layer:<16} {law:<24} {layer.error:.1e}")
    try:
        qt.assert_equivariant(net, group, images)
    except qt.NotEquivariantError as error:
        print(f"\n{error}")
        return False
    worst = max(qt.equivariance_error(net, group, images).relative)
    print(f"\nequivariant to {group.name}: the largest relative error of the answer is {worst:.1e}")
    if whole and isinstance(data, Scenes):
        for i in data.test:
            found = scene_error(config, net.float(), data, int(i), group)
            size = " x ".join(map(str, data.images[int(i)].shape[:0:-1]))
            print(f"{data.names[i]}, {size}: its mask turns along, the largest change of a probability is {found:.1e}")
            if found > 1e-4:
                return False
    return True
