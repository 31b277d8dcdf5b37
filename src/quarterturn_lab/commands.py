"""What the commands do. They print; nothing below them does."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import quarterturn as qt
from quarterturn.errors import unknown
from quarterturn_lab import loop, runs, tables
from quarterturn_lab.config import Config, checked
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.experiments import experiment_of, settings_of, split_name
from quarterturn_lab.files import write_atomically
from quarterturn_lab.metrics import confusion, recalls, scores
from quarterturn_lab.nets import ROWS
from quarterturn_lab.progress import Bars, clock
from quarterturn_lab.report import report
from quarterturn_lab.sweep import sweep

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
    directory = runs.directory_of(config, root)
    if (directory / "checkpoint.pt").exists() and not (directory / "summary.json").exists():
        print(f"going on from the checkpoint in {directory}")
    with Bars() as bars:
        label = f"{directory.parent.name} seed {seed}"
        result = runs.run(
            config, directory, lambda step, total, loss: bars.update(label, step, total, loss, config.batch_images)
        )
    for part in ("test", "test_4_turns", "train"):
        found = result[part]
        print(f"{part:>12}  cross-entropy {found['cross_entropy']:.4f}  accuracy {found['accuracy']:.2%}")
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
            todo.append((config, runs.directory_of(config, root)))
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
        todo.append((config, root / "synthetic" / row / "seed0"))
    with Bars(interval=5.0) as bars:
        sweep(todo, jobs or os.cpu_count() or 1, bars)
    _print_table(root, "synthetic")
    page = report(root)
    print(f"{clock(time.monotonic() - start)} minutes. report: {page.resolve()}")


def _print_table(root: Path, experiment: str) -> None:
    header, *rows = tables.shown(tables.lines_of(root, experiment))
    table = Table(title=experiment)
    for name in header:
        table.add_column(name, justify="left" if name == "row" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=max(console.width, 170) if not console.is_terminal else None).print(table)


def _written(root: Path, experiment: str) -> list[str]:
    lines = tables.lines_of(root, experiment)
    paths = {root / f"{experiment}.md": tables.markdown(lines), root / f"{experiment}.csv": tables.as_csv(lines)}
    for path, text in paths.items():
        write_atomically(path, text)
    return [f"table: {path}" for path in paths]


def evaluate_run(directory: Path, turns: int, data_folder: str | None) -> None:
    """Print scores and recalls; write evaluation.json with the confusion matrix into the run directory."""
    if turns < 1:
        raise ConfigError(f"--turns {turns}: give the number of angles to average over, 1 or more")
    config, data, net = runs.opened(directory, data_folder)
    device = loop.pick_device(config.device)
    angles = tuple(360.0 * i / turns for i in range(turns))
    plain = loop.predict(net.to(device), data, data.test, device)
    averaged = loop.predict(net, data, data.test, device, angles)
    labels = data.labels[data.test]
    counts = confusion(plain, labels)
    result = {"test": scores(plain, labels), f"test, {turns} turns averaged": scores(averaged, labels)}
    for name, found in result.items():
        print(f"{name}: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    print(f"\n{'recall':>8}  {'images':>6}  class (most often taken for)")
    for label in np.argsort(np.nan_to_num(recalls(counts), nan=2.0)):
        others = np.where(np.arange(len(counts)) == label, -1, counts[label])
        taken = f" ({data.classes[others.argmax()]}, {others.max()})" if others.max() > 0 else ""
        print(f"{recalls(counts)[label]:8.3f}  {counts[label].sum():6d}  {data.classes[label]}{taken}")
    record = {**result, "classes": list(data.classes), "confusion": counts.tolist()}
    write_atomically(directory / "evaluation.json", json.dumps(record))
    print(f"\nconfusion matrix: {directory / 'evaluation.json'}")


def check_run(directory: Path, group_name: str | None, data_folder: str | None) -> bool:
    """Print the law and the error of each layer; whether the network's answer is invariant (or turns along)."""
    config, data, net = runs.opened(directory, data_folder)
    group = qt.named(group_name or config.net.group or "C4")
    images = loop.prepared(torch.from_numpy(data.images[data.test[:4]]), loop.scale_of(data)).double()
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
    return True
