"""The report of all finished runs in a directory: one self-contained HTML page, Markdown and CSV."""

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment

from quarterturn import QuarterturnError
from quarterturn_lab.errors import LabError, RunError
from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.files import damaged, write_atomically
from quarterturn_lab.report import svg, table
from quarterturn_lab.report.figures import Shown, figures_of
from quarterturn_lab.runs import run_directory
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.runs.trust import NOTHING, Trust
from quarterturn_lab.settings.experiments import EXPERIMENTS
from quarterturn_lab.settings.in_words import network_in_words, training_in_words

PARTS = {"valid": "validation", "test": "test"}  # the set that a run scores during training
SHOWN = 3  # networks in the figures that run them: the baseline and the first equivariant ones


@dataclass
class Section:
    """One experiment on the page. Figures are SVG, with a heading and a caption."""

    name: str
    about: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    markdown: str
    facts: list[tuple[str, str]]
    row_words: list[tuple[str, str]]
    headline: str = ""
    figures: list[Shown] = field(default_factory=list)
    missing: str = ""


def report(root: Path, output: Path | None = None, data_folder: str | None = None, trust: Trust = NOTHING) -> Path:
    """Write report.html, report.md and a CSV for each experiment; returns the path of the page."""
    found = run_directory.finished(root)
    if not found:
        raise RunError(
            f"no finished runs below {root}: train some first with `quarterturn train` or `quarterturn table`"
        )
    output = output or root
    output.mkdir(parents=True, exist_ok=True)
    first = {run_directory.summary(path)["experiment"]: path for path in found}
    for name in first.keys() - EXPERIMENTS.keys():
        raise damaged(first[name] / "summary.json", f"there is no experiment {name}", run_directory.WAY_OUT)
    names = sorted(first, key=list(EXPERIMENTS).index)
    sections = [section(root, name, data_folder, trust) for name in names]
    page = Environment(autoescape=True).from_string((files(__package__) / "templates/report.html").read_text())
    write_atomically(output / "report.html", page.render(sections=sections, runs=len(found)))
    write_atomically(output / "report.md", "\n".join(f"# {s.name}\n\n{s.about}\n\n{s.markdown}" for s in sections))
    for name in names:
        write_atomically(output / f"{name}.csv", table.as_csv(table.lines_of(root, name)))
    return output / "report.html"


def section(root: Path, experiment: str, data_folder: str | None, trust: Trust = NOTHING) -> Section:
    """The tables and figures of one experiment."""
    lines = table.lines_of(root, experiment)
    sets = table.collect(root, experiment)
    made = Section(
        experiment,
        EXPERIMENTS[experiment].about,
        *_head_and_rows(lines),
        table.markdown(lines),
        _facts(sets[0].paths[0]),
        [(each.label, network_in_words(run_directory.config_of(each.paths[0]))) for each in sets],
        scores_in_words(lines),
    )
    try:
        loaded = {label: load_with_data(path, data_folder, trust) for label, path in _chosen(sets).items()}
    except (LabError, QuarterturnError) as error:
        made.missing = f"Some figures are missing because the data could not be read: {error}"
        made.figures = _curves(sets)
        return made
    sentence, figures = figures_of(loaded)
    made.headline = f"{sentence} {made.headline}".strip()
    made.figures = figures + _curves(sets)
    return made


def scores_in_words(lines: list[table.Line]) -> str:
    """The test score of every row, the best one first."""
    task = TASKS[lines[0].task]
    best = sorted(lines, key=lambda line: line.test[0], reverse=task.better == "higher")
    parts = ", ".join(f"{line.label} {line.test[0]:.{task.digits}f}" for line in best)
    return f"Test {task.name} ({task.better} is better): {parts}."


def _head_and_rows(lines: list[table.Line]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    header, *rows = table.shown(lines)
    return header, rows


def _facts(path: Path) -> list[tuple[str, str]]:
    summary, config = run_directory.summary(path), run_directory.config_of(path)
    seen = f"{config.epochs} epochs"
    if summary["presentations"] != summary["train_images"] * config.epochs:
        seen = f"{config.epochs} epochs of {config.tiles} tiles from each image"
    return [
        ("training images", f"{summary['train_images']:,}, {seen}"),
        ("test images", f"{summary['test_images']:,}"),
        ("input", f"{config.net.channels} x {config.net.side} x {config.net.side}"),
        ("optimiser", training_in_words(config)),
        ("dropout, weight decay", f"{config.net.dropout:g}, {config.weight_decay:g}"),
        ("precision", config.precision),
    ]


def _chosen(sets: list[table.RunSet]) -> dict[str, Path]:
    """The baseline and the first equivariant rows, with their first seed."""
    baselines = [each for each in sets if each.is_baseline][:1]
    with_pathways = [each for each in sets if run_directory.summary(each.paths[0])["group"]]
    return {each.label: each.paths[0] for each in ([*baselines, *with_pathways] or sets)[:SHOWN]}


# --- figures ----------------------------------------------------------------------------------------------------------


def _curves(sets: list[table.RunSet]) -> list[Shown]:
    figures = []
    task = TASKS[run_directory.summary(sets[0].paths[0])["task"]]
    scored = [(f"{part}_{task.score}", f"{name} {task.name}") for part, name in PARTS.items()]
    for key, title in (("train_loss", "training loss (augmented images)"), *scored):
        series = {}
        for each in sets:
            records = [{r["epoch"]: r[key] for r in run_directory.records(path) if key in r} for path in each.paths]
            epochs = sorted(set.intersection(*(set(record) for record in records)))
            if epochs:
                values = np.array([[record[epoch] for epoch in epochs] for record in records])
                series[each.label] = (np.array(epochs, float), values.mean(0), values.min(0), values.max(0))
        if series:
            figures.append(
                (title[0].upper() + title[1:], "Mean over seeds; the band is the full range.", svg.curves(series, ""))
            )
    return figures
