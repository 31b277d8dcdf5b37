"""The table of an experiment, computed from its finished runs, as text, Markdown and CSV."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarterturn_lab.evaluation.statistics import mean_sd, paired_t_test, sign_flip_test
from quarterturn_lab.evaluation.tasks import TASKS, Task
from quarterturn_lab.files import csv_text
from quarterturn_lab.runs import naming, run_directory
from quarterturn_lab.settings.experiments import EXPERIMENTS, Printed
from quarterturn_lab.settings.networks import ROWS

Summaries = list[dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """One row of a table. Scores are (mean, standard deviation or None) over the seeds."""

    label: str
    seeds: tuple[int, ...]
    parameters: int
    task: str
    test: tuple[float, float | None]
    second: tuple[float, float | None] | None
    turned: tuple[float, float | None] | None  # with predictions averaged over four rotations
    train: tuple[float, float | None]
    cpu: tuple[float, float | None]
    paper: Printed | None
    difference: tuple[float, float | None] | None  # from the baseline, paired by seed
    pairs: int
    p_t: float | None
    p_flip: float | None


@dataclass(frozen=True)
class RunSet:
    """Finished runs that differ only in their seed."""

    row: str
    differing: dict[str, Any]  # settings that differ from the row's defaults
    label: str  # the row, and those differing settings that not all sets share
    paths: tuple[Path, ...]  # by seed

    @property
    def training(self) -> dict[str, Any]:
        """The differing settings, without those that choose a network."""
        return {name: value for name, value in self.differing.items() if name not in naming.NETWORK}

    @property
    def is_baseline(self) -> bool:
        return self.row == "baseline" and self.training == self.differing


def collect(root: Path, experiment: str) -> list[RunSet]:
    """The finished runs of an experiment below a directory, grouped by their settings, in the order of the rows.

    Names of directories do not matter. If two directories hold the same run, one is used.
    """
    found: dict[str, tuple[str, dict[str, Any], dict[int, Path]]] = {}
    for path in run_directory.finished(root):
        if run_directory.summary(path)["experiment"] == experiment:
            config = run_directory.config_of(path)
            differing = naming.differences(config)
            key = json.dumps([config.row, differing])
            found.setdefault(key, (config.row, differing, {}))[2].setdefault(config.seed, path)
    shared = _shared([differing for _, differing, _ in found.values()])
    sets = []
    for row, differing, paths in found.values():
        own = {name: value for name, value in differing.items() if name not in shared}
        sets.append(RunSet(row, differing, naming.label(row, own), tuple(paths[seed] for seed in sorted(paths))))
    order = list(dict.fromkeys((*EXPERIMENTS[experiment].rows, *ROWS)))
    return sorted(sets, key=lambda each: (order.index(each.row), each.label))


def _shared(all_differing: list[dict[str, Any]]) -> set[str]:
    """The settings that differ from the defaults in the same way in all sets: the table does not repeat them."""
    first = all_differing[0] if all_differing else {}
    return {
        name
        for name, value in first.items()
        if name not in naming.NETWORK and all(name in other and other[name] == value for other in all_differing)
    }


def lines_of(root: Path, experiment: str) -> list[Line]:
    """The table, with paired comparisons against the baseline trained with the same settings and seeds."""
    sets = collect(root, experiment)
    summaries = {each.label: [run_directory.summary(path) for path in each.paths] for each in sets}
    lines = []
    for each in sets:
        alike = [s for s in sets if s.is_baseline and s.training == each.training and s is not each]
        baseline = summaries[alike[0].label] if alike else []
        lines.append(_line(each.label, summaries[each.label], baseline, experiment))
    return lines


def _line(label: str, own: Summaries, baseline: Summaries, experiment: str) -> Line:
    task = TASKS[EXPERIMENTS[experiment].task]
    reference = {summary["seed"]: summary["test"][task.score] for summary in baseline}
    paired = [s["test"][task.score] - reference[s["seed"]] for s in own if s["seed"] in reference]

    def over_seeds(*path: str) -> tuple[float, float | None]:
        values = []
        for summary in own:
            value: Any = summary
            for name in path:
                value = value[name]
            values.append(value)
        return mean_sd(values)

    return Line(
        label=label,
        seeds=tuple(summary["seed"] for summary in own),
        parameters=own[0]["parameters"],
        task=EXPERIMENTS[experiment].task,
        test=over_seeds("test", task.score),
        second=over_seeds("test", task.second) if task.second else None,
        turned=over_seeds("test_4_turns", task.score) if all("test_4_turns" in summary for summary in own) else None,
        train=over_seeds("train", task.score),
        cpu=over_seeds("cpu_seconds"),
        paper=_printed(own[0], experiment),
        difference=mean_sd(paired) if paired else None,
        pairs=len(paired),
        p_t=paired_t_test(paired) if paired else None,
        p_flip=sign_flip_test(paired) if len(paired) > 1 else None,
    )


def _printed(summary: dict[str, Any], experiment: str) -> Printed | None:
    """The paper's results for a row; None if the group is not the paper's or the network is the user's own."""
    same_group = summary["group"] == ROWS[summary["row"]].get("group")
    return EXPERIMENTS[experiment].paper.get(summary["row"]) if same_group and not summary.get("factory") else None


def header(task: Task) -> tuple[str, ...]:
    """The names of the columns."""
    return (
        "row",
        "n",
        "parameters",
        f"test {task.short}",
        task.second_name,
        "4 turns averaged",
        f"train {task.short}",
        "CPU s",
        "against baseline",
        "p (t)",
        "p (signs)",
        "paper: test",
    )


NOTES = (
    "± is the sample standard deviation over n seeds; without it, there is one run. "
    '"4 turns averaged": predictions averaged over rotations by 0, 90, 180 and 270 degrees, without retraining. '
    '"Against baseline": the difference, paired by seed, with p-values of a paired t-test and a sign-flip test.'
)
PAPER_NOTE = "The paper's results are for its full data and network."


def plus_minus(value: tuple[float, float | None] | None, digits: int, sign: str = "") -> str:
    if value is None:
        return ""
    mean, sd = value
    return f"{mean:{sign}.{digits}f}" + (f" ± {sd:.{digits}f}" if sd is not None else "")


def cells(line: Line) -> tuple[str, ...]:
    """The row as text."""
    task = TASKS[line.task]
    second = line.second
    if second is not None:
        factor = task.second_factor
        second = (factor * second[0], None if second[1] is None else factor * second[1])
    return (
        line.label,
        str(len(line.seeds)),
        f"{line.parameters:,}",
        plus_minus(line.test, task.digits),
        plus_minus(second, 1 if task.second_factor > 1 else task.digits),
        plus_minus(line.turned, task.digits),
        plus_minus(line.train, task.digits),
        plus_minus(line.cpu, 0),
        plus_minus(line.difference, task.digits, "+"),
        "" if line.p_t is None else f"{line.p_t:.2g}",
        "" if line.p_flip is None else f"{line.p_flip:.2g}",
        plus_minus(line.paper.test, task.digits) if line.paper else "",
    )


def shown(lines: list[Line]) -> list[tuple[str, ...]]:
    """Header and rows as text, without empty columns."""
    names = header(TASKS[lines[0].task])
    rows = [cells(line) for line in lines]
    used = [i for i in range(len(names)) if any(row[i] for row in rows)]
    return [tuple(row[i] for i in used) for row in (names, *rows)]


def markdown(lines: list[Line]) -> str:
    first, *texts = shown(lines)
    rows = [first, ("---",) * len(first), *texts]
    task = TASKS[lines[0].task]
    name = task.name[0].upper() + task.name[1:] + ("" if task.short == task.name else f" ({task.short})")
    note = f"{name}: {task.better} is better. {NOTES}" + (" " + PAPER_NOTE if any(line.paper for line in lines) else "")
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + f"\n\n{note}\n"


def as_csv(lines: list[Line]) -> str:
    """All values in full precision."""
    pairs = ("test", "second", "turned", "train", "cpu", "difference")
    columns = {"second": TASKS[lines[0].task].second or "second"}
    names = [f"{columns.get(name, name)}_{part}" for name in pairs for part in ("mean", "sd")]
    rows: list[list[object]] = [
        ["row", "n", "seeds", "parameters", *names, "p_t", "p_flip", "paper_test", "paper_train"]
    ]
    for line in lines:
        figures: list[object] = []
        for name in pairs:
            figures += list(getattr(line, name) or (None, None))
        paper = (line.paper.test[0], line.paper.train[0]) if line.paper else (None, None)
        seeds = " ".join(map(str, line.seeds))
        rows.append([line.label, len(line.seeds), seeds, line.parameters, *figures, line.p_t, line.p_flip, *paper])
    return csv_text(rows)
