"""The page of a fit: one sentence first, then what a reader asks next. One file, without scripts or addresses."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, Template
from markupsafe import Markup, escape

import quarterturn as qt
from quarterturn_lab.data.dataset import Dataset
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation import classification
from quarterturn_lab.evaluation.certainty import macro_f1
from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.files import read_text, write_atomically
from quarterturn_lab.report import svg
from quarterturn_lab.report.cards import Card, Table
from quarterturn_lab.report.figures import ANGLES, some_test_images
from quarterturn_lab.report.fit_classes import class_cards, confusion_csv, tag_cards
from quarterturn_lab.report.fit_masks import mask_cards
from quarterturn_lab.report.fit_numbers import number_cards
from quarterturn_lab.report.headline import headline
from quarterturn_lab.report.judged import Judged, Turned, changes_by_angle, judged, turned
from quarterturn_lab.report.measures import Measure, difference, measure
from quarterturn_lab.runs import run_directory
from quarterturn_lab.runs.environment import pick_device
from quarterturn_lab.runs.run_directory import WAY_OUT
from quarterturn_lab.runs.trust import NOTHING, Trust
from quarterturn_lab.settings.in_words import training_in_words

CARDS: dict[str, Callable[[list[Judged]], list[Card]]] = {
    "classes": class_cards,
    "tags": tag_cards,
    "numbers": number_cards,
    "answers": number_cards,
    "pixels": mask_cards,
    "instances": mask_cards,
    "regions": mask_cards,
}
CHANGES = {  # what is drawn against the angle
    "classes": "% of images with another answer",
    "tags": "% of tags with another answer",
    "numbers": "mean change, in deviations",
    "answers": "mean change of a share",
}
MOVES = {
    "C4": "turned by 90, 180 and 270 degrees (C4)",
    "D4": "turned by 90, 180 and 270 degrees, and mirrored (D4)",
    "C2": "turned by 180 degrees (C2)",
    "mirror": "mirrored",
}
TURNED = 60  # test images in the figure of angles
SHORT = 10.0  # seconds of training in which nothing is compared
BUSIER = 1.5  # as much processor time in a second is worth a note
ENOUGH = 10  # test images of a class before it is named in a note


@dataclass(frozen=True)
class Written:
    """A page, its first sentence, and the largest relative change of the output over the group, in float64."""

    path: Path
    headline: str
    change: float | None  # None for an ordinary network
    warning: str = ""


def write_fit_report(
    run: Path,
    compare: Path | None = None,
    choice: dict[str, Any] | None = None,
    data_folder: str | None = None,
    output: Path | None = None,
    trust: Trust = NOTHING,
) -> Written:
    """Write report.html, and confusion.csv for classes, into the directory of a finished run, or another.

    `compare` is the run of the ordinary network, `choice` what was said for the symmetry ("symmetry", "why", "sure").
    """
    runs = [judged(path, data_folder, trust) for path in (run, compare) if path is not None]
    if runs[0].data.test.tolist() != runs[-1].data.test.tolist() or runs[0].data.names != runs[-1].data.names:
        raise ConfigError(f"{run} and {compare} have other test images, so that they cannot be compared: leave one out")
    if not runs[0].config.backbone:
        torch.set_num_threads(1)  # many small batches: on a busy machine, threads wait for each other
    measures = [measure(each) for each in runs]
    group = qt.named(runs[0].group) if runs[0].group else None
    turns = [turned(each, group or (qt.C4 if runs[0].config.net.axes == 2 else qt.OCTA)) for each in runs]
    task, output = runs[0].data.task, output or run
    first = headline(runs, measures, turns)
    notes = [constant(runs[0]), hands(runs[0]) if task == "classes" else "", unequal(runs)]
    warning = ". ".join(note for note in notes if note)
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(
        output / "report.html",
        _template().render(
            title=Path(runs[0].config.data or run).name,
            headline=first,
            difference=difference(*measures) if len(measures) > 1 else "",
            choice=choice,
            warning=warning,
            scores=_scores(runs, measures),
            cards=[*_turning(runs, turns), *CARDS[task](runs), *_curves(runs)],
            facts=_facts(runs[0]),
            settings=json.dumps(runs[0].config.model_dump(mode="json"), indent=1),
            environment=read_text(run / "environment.json", WAY_OUT),
        ),
    )
    if task == "classes":
        write_atomically(output / "confusion.csv", confusion_csv(runs[0]))
    return Written(output / "report.html", first, turns[0].exact if group else None, warning)


def constant(run: Judged) -> str:
    """A sentence about a network that is no better than one and the same answer for every image."""
    if run.data.task == "classes":
        counts = np.bincount(run.labels)
        right = int((run.predicted.argmax(1) == run.labels).sum())
        if right <= counts.max():
            always = (
                f"{run.data.classes[counts.argmax()]} for every image is right for {counts.max()} of {counts.sum()}"
            )
            return f"The network is no better than no network: {always}. Train for longer, or give --balanced"
    score, mean = run.summary["test"], run.summary.get("test_constant")  # of shares
    if (run.data.task == "numbers" and score["r2"] <= 0) or (mean and score["rmse"] >= mean["rmse"]):
        return "The network is no better than the mean of the numbers for every image. Train for longer"
    if score.get("dice") == 0:
        return "The network finds none of the objects. Train for longer"
    return ""


def hands(run: Judged) -> str:
    """A sentence about classes that may be mirror images of each other, for a network that treats these alike."""
    group = run.config.net.group
    if not run.config.augment.flip and (group is None or set(qt.named(group).elements) <= set(qt.C4.elements)):
        return ""
    counts = np.bincount(run.labels, minlength=len(run.data.classes))
    found = set(classification.confused_pairs(run.predicted, run.labels, counts >= ENOUGH))
    pairs = [f"{run.data.classes[a]} and {run.data.classes[b]}" for a, b in sorted(found) if a < b and (b, a) in found]
    if not pairs:
        return ""
    more = f" (and {len(pairs) - 1} more pairs of classes)" if len(pairs) > 1 else ""
    return (
        f"The network can hardly distinguish {pairs[0]}{more}. If they are mirror images of each other, train again "
        "with --symmetry C4: this network treats mirrored images alike"
    )


def unequal(runs: list[Judged]) -> str:
    """A sentence about two runs of which one had much more processor time in a second: others used the machine."""
    shares = [run.summary["cpu_seconds"] / max(run.summary["wall_seconds"], 1e-9) for run in runs]
    if runs[0].summary["wall_seconds"] < SHORT or min(shares) * BUSIER >= max(shares):
        return ""
    if pick_device(runs[0].config.device).type != "cpu":
        return ""
    with_less = runs[shares.index(min(shares))].name
    seconds = " and ".join(f"{run.summary['cpu_seconds']:,.0f} ({run.name})" for run in runs)
    return (
        f"The machine was busier while the {with_less} was trained: processor seconds were {seconds}. Compare again on "
        "an idle machine"
    )


def _template() -> Template:
    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters["breakable"] = lambda text: Markup(escape(text).replace("_", Markup("_<wbr>")))
    return made.from_string((files(__package__) / "templates/fit.html").read_text())


# --- scores -----------------------------------------------------------------------------------------------------------


def _scores(runs: list[Judged], measures: list[Measure]) -> Table:
    task = TASKS[runs[0].data.task]
    others = [name for name in runs[0].summary["test"] if name not in ("kaggle",)]
    header = ["", "test", "95 % interval", *(_heading(name, runs[0].data.classes) for name in others)]
    header += ["macro-F1"] * (runs[0].data.task == "classes")
    averages = [run.summary.get("test_4_turns", {}).get(task.score) for run in runs]
    header += [f"{task.short}, 4 turns averaged"] * any(averages) + ["parameters", "CPU seconds of training"]
    rows = []
    for run, own, averaged in zip(runs, measures, averages, strict=True):
        found, interval = run.summary, own.interval
        ends = f"{own.number(interval[0])} to {own.number(interval[1])}" if interval else ""
        cells = [run.name, own.text, ends, *(f"{found['test'][name]:.{task.digits}g}" for name in others)]
        if run.data.task == "classes":
            cells.append(f"{macro_f1(classification.confusion(run.predicted, run.labels)):.3f}")
        if any(averages):
            cells.append("" if averaged is None else f"{averaged:.{task.digits}g}")
        rows.append((*cells, f"{found['parameters']:,}", f"{found['cpu_seconds']:,.0f}"))
    return Table(header, rows)


HEADINGS = {
    "surface_mm": "surface distance, mm",
    "hausdorff95_mm": "95 % Hausdorff distance, mm",
    "turned_dice": "Dice, turned",
}


def _heading(name: str, classes: Sequence[str]) -> str:
    """A score in words; those of volumes name the class by its number.

    >>> _heading("dice_1", ("background", "tumour")), _heading("log_loss", ())
    ('Dice, tumour', 'log-loss')
    """
    if name.startswith("dice_"):
        return f"Dice, {classes[int(name.removeprefix('dice_'))]}"
    return HEADINGS.get(name, name.replace("_", "-"))


# --- turning ----------------------------------------------------------------------------------------------------------


def _turning(runs: list[Judged], turns: list[Turned]) -> list[Card]:
    data, group = runs[0].data, runs[0].group or ("C4" if runs[0].config.net.axes == 2 else "octa")
    rows = []
    for run, found in zip(runs, turns, strict=True):
        changed = f"{found.changed} of {found.images}" if isinstance(data, Dataset) else "not counted"
        rows.append((run.name, changed, f"{found.most:.1e}", f"{found.exact:.1e}"))
    moved = MOVES.get(group, f"in all orientations of {group}")
    what = "images" if runs[0].config.net.axes == 2 else "volumes"
    text = (
        f"Test {what} {moved}. The last column is the check: the output's largest relative change in float64. Rounding "
        "gives about 1e-15; anything above 1e-6 is no symmetry."
    )
    header = ("", f"{what} with another answer", "largest change of an answer", "of the output (float64)")
    cards = [Card("What the symmetry check said", text, "table", Table(header, rows))]
    if isinstance(data, Dataset):
        indices = some_test_images(data, TURNED)
        series = {run.name: (ANGLES, changes_by_angle(run, ANGLES, indices)) for run in runs}
        text = (
            f"How answers change as images are turned, over {len(indices)} test images. Between quarter turns the "
            "image is interpolated, and no network is exact there."
        )
        drawn = svg.lines(series, "rotation of the image, degrees", CHANGES[data.task], degrees=True)
        cards.insert(0, Card("If the image is turned", text, "figure", drawn))
    return cards


# --- training, settings -----------------------------------------------------------------------------------------------


def _curves(runs: list[Judged]) -> list[Card]:
    task = TASKS[runs[0].data.task]
    cards = []
    for key, title in (("train_loss", "Training loss"), (f"valid_{task.score}", f"Validation {task.name}")):
        series = {}
        for run in runs:
            points = [(record["epoch"], record[key]) for record in run_directory.records(run.path) if key in record]
            if points:
                series[run.name] = (np.array(points)[:, 0], np.array(points)[:, 1])
        if series:
            text = "On augmented images." if key == "train_loss" else f"{task.better.capitalize()} is better."
            cards.append(Card(title, text, "figure", svg.lines(series, "epoch", "")))
    return cards


def _facts(run: Judged) -> list[tuple[str, str]]:
    config, found = run.config, run.summary
    network = config.backbone or config.factory or config.row
    return [
        ("images", f"{config.data or 'built in'}: {found['train_images']:,} training, {len(run.data.valid):,} "
                   f"validation, {found['test_images']:,} test, {found['skipped_images']:,} skipped"),
        ("network", f"{network}{f', {config.how}' if config.backbone else ''}, {found['parameters']:,} parameters"),
        ("input", " x ".join(map(str, (config.net.channels, *[config.net.side] * config.net.axes)))),
        ("training", f"{config.epochs} epochs, batches of {config.batch_images}; {training_in_words(config)}"),
        ("run", str(run.path)),
    ]  # fmt: skip
