"""A report of the finished runs below a directory: one HTML page that needs nothing else, and Markdown."""

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment
from numpy.typing import NDArray
from torch import nn

import quarterturn as qt
from quarterturn_lab import loop, plots, runs, tables
from quarterturn_lab.augment import turned
from quarterturn_lab.config import Config, read
from quarterturn_lab.data.dataset import Dataset
from quarterturn_lab.errors import QuarterturnError, RunError
from quarterturn_lab.experiments import EXPERIMENTS
from quarterturn_lab.files import write_atomically

Array = NDArray[np.float64]
SHOWN = 3  # networks in the figures that run them: the baseline and the first equivariant ones
ANGLES = tuple(range(0, 361, 15))
EXAMPLE_ANGLES = (0, 30, 60, 90, 135, 180, 225, 270)


@dataclass
class Section:
    """What the page says of one experiment. Figures are SVG, with a heading and a sentence."""

    name: str
    about: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    markdown: str
    facts: list[tuple[str, str]]
    figures: list[tuple[str, str, str]] = field(default_factory=list)
    missing: str = ""


def report(root: Path, output: Path | None = None, data_folder: str | None = None) -> Path:
    """Write report.html, report.md and a CSV for each experiment; the path of the page."""
    found = runs.finished(root)
    if not found:
        raise RunError(
            f"no finished runs below {root}: train some first, with `quarterturn train` or `quarterturn table`"
        )
    output = output or root
    output.mkdir(parents=True, exist_ok=True)
    names = sorted({runs.summary(path)["experiment"] for path in found}, key=list(EXPERIMENTS).index)
    sections = [section(root, name, data_folder) for name in names]
    page = Environment(autoescape=True).from_string((files("quarterturn_lab") / "templates/report.html").read_text())
    write_atomically(output / "report.html", page.render(sections=sections, runs=len(found)))
    write_atomically(output / "report.md", "\n".join(f"# {s.name}\n\n{s.about}\n\n{s.markdown}" for s in sections))
    for name in names:
        write_atomically(output / f"{name}.csv", tables.as_csv(tables.lines_of(root, name)))
    return output / "report.html"


def section(root: Path, experiment: str, data_folder: str | None) -> Section:
    """The tables and figures of one experiment."""
    lines = tables.lines_of(root, experiment)
    paths = tables.collect(root, experiment)
    first = next(iter(paths.values()))[0]
    made = Section(
        experiment,
        EXPERIMENTS[experiment].about,
        *_head_and_rows(lines),
        tables.markdown(lines),
        _facts(first),
    )
    made.figures += _curves(paths)
    chosen = _chosen(paths)
    try:
        opened = {label: runs.opened(path, data_folder) for label, path in chosen.items()}
    except QuarterturnError as error:
        made.missing = f"The figures that run the networks are missing, because the data could not be read: {error}"
        return made
    made.figures.append(_sensitivity(opened))
    made.figures.append(_examples(opened))
    made.figures += _filters(opened)
    return made


def _head_and_rows(lines: list[tables.Line]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    header, *rows = tables.shown(lines)
    return header, rows


def _facts(path: Path) -> list[tuple[str, str]]:
    summary, config = runs.summary(path), read((path / "config.json").read_text())
    return [
        ("training images", f"{summary['train_images']:,}, each seen {config.epochs} times"),
        ("test images", f"{summary['test_images']:,}"),
        ("input", f"{config.net.channels} x {config.net.side} x {config.net.side}"),
        (
            "learning rate",
            f"Adam {config.lr:g}, tenfold lower at {', '.join(f'{d:.0%}' for d in config.drops)} of the run",
        ),
        ("dropout, weight decay", f"{config.net.dropout:g}, {config.weight_decay:g}"),
        ("precision", config.precision),
    ]


def _chosen(paths: dict[str, list[Path]]) -> dict[str, Path]:
    """The baseline and the first rows with pathways, each by its first seed."""
    grouped = [label for label, found in paths.items() if runs.summary(found[0])["group"]]
    labels = (["baseline"] if "baseline" in paths else []) + grouped
    return {label: paths[label][0] for label in (labels or list(paths))[:SHOWN]}


# --- figures ----------------------------------------------------------------------------------------------------------


def _curves(paths: dict[str, list[Path]]) -> list[tuple[str, str, str]]:
    figures = []
    for key, title in (("train_loss", "training loss (warped images)"), ("test_cross_entropy", "test cross-entropy")):
        series = {}
        for label, found in paths.items():
            records = [{r["epoch"]: r[key] for r in runs.records(path) if key in r} for path in found]
            epochs = sorted(set.intersection(*(set(record) for record in records)))
            if epochs:
                values = np.array([[record[epoch] for epoch in epochs] for record in records])
                series[label] = (np.array(epochs, float), values.mean(0), values.min(0), values.max(0))
        if series:
            figures.append((title.capitalize(), "Mean over seeds; the band is the range.", plots.curves(series, "")))
    return figures


Opened = dict[str, tuple[Config, Dataset, nn.Module]]


def _some_test_images(data: Dataset, count: int) -> NDArray[np.int64]:
    """Test images spread evenly, so that all classes are there."""
    order = data.test[np.argsort(data.labels[data.test], kind="stable")]
    return order[np.linspace(0, len(order) - 1, min(count, len(order))).astype(int)]


def _sensitivity(opened: Opened) -> tuple[str, str, str]:
    series = {}
    for label, (_, data, net) in opened.items():
        indices = _some_test_images(data, 100)
        answers = [loop.predict(net, data, indices, torch.device("cpu"), (float(angle),)) for angle in ANGLES]
        change = np.stack([0.5 * np.abs(answer - answers[0]).sum(1) for answer in answers])
        series[label] = (change.mean(1), *np.quantile(change, (0.25, 0.75), axis=1))
    text = (
        "How far the predicted probabilities move from those for the image as it is (total variation: 0 is no change, "
        "1 is all of it), mean and quartiles over up to 100 test images. A network that is invariant to quarter turns "
        "comes back to zero at each of them; between, the image itself is interpolated."
    )
    return "Rotation sensitivity", text, plots.sensitivity(ANGLES, series, "")


def _examples(opened: Opened) -> tuple[str, str, str]:
    _, data, _ = next(iter(opened.values()))
    indices = _some_test_images(data, 5)[:4] if len(data.classes) < 4 else _some_test_images(data, 9)[1::2]
    raw = torch.from_numpy(data.images[indices]).float() / 255
    pictures = torch.stack([turned(raw, float(angle)) for angle in EXAMPLE_ANGLES], dim=1).mean(2).double().numpy()
    answers: dict[str, Any] = {}
    for label, (_, own, net) in opened.items():
        found = [loop.predict(net, own, indices, torch.device("cpu"), (float(angle),)) for angle in EXAMPLE_ANGLES]
        answers[label] = [
            [(own.classes[p[i].argmax()], p[i].max(), p[i].argmax() == own.labels[index]) for p in found]
            for i, index in enumerate(indices)
        ]
    truths = [data.classes[data.labels[index]] for index in indices]
    names = ", then ".join(answers)
    text = (
        f"Below each image the answers of {names}, with their probabilities; green is right. The truth is on the left."
    )
    return "Test images as they are turned", text, plots.turned_examples(pictures, EXAMPLE_ANGLES, truths, answers)


def _filters(opened: Opened) -> list[tuple[str, str, str]]:
    figures = []
    for label, (config, _, net) in opened.items():
        weight = dict(net.named_parameters()).get("conv1.weight")
        if weight is None or weight.dim() != 4 or config.net.group is None:
            continue
        group = qt.named(config.net.group)
        some = weight.detach()[:16, :1]
        turns = [qt.act(some, group, group.inverse[h])[:, 0] for h in range(group.order)]
        picture = plots.filters(torch.stack(turns, dim=1).double().numpy(), "")
        text = f"The first layer: a column for each learnt filter, a line for each of its {group.order} orientations."
        figures.append((f"Learnt filters of {label}", text, picture))
    return figures
