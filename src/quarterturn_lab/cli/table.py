"""The commands `table` and `demo`: train several networks with several seeds, and compare them."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from quarterturn_lab.errors import ConfigError, unknown
from quarterturn_lab.files import write_atomically
from quarterturn_lab.progress import Bars, clock
from quarterturn_lab.report import table as result_table
from quarterturn_lab.report.html import report
from quarterturn_lab.runs.naming import directory_of
from quarterturn_lab.runs.trust import Trust
from quarterturn_lab.settings.experiments import config_for, experiment_of
from quarterturn_lab.settings.networks import ROWS
from quarterturn_lab.training.sweep import Where, sweep

# The slowest first.
DEMO: dict[str, dict[str, Any]] = {
    "pool-mean": {},
    "roll-all-quarter": {"rotate": "filters"},  # the same network, trained in half the time
    "baseline": {},
}


def run_table(
    experiment: str, count: int, rows: tuple[str, ...], where: Where, root: Path, options: dict[str, Any]
) -> None:
    """Train or resume all runs, print the table, write the table and the report."""
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
            own = {
                key: value
                for key, value in options.items()
                if key not in ("group", "rotate", "pool") or row not in plain
            }
            config = config_for(experiment, row, seed, **own)
            todo.append((config, directory_of(config, root)))
    with Bars() as bars:
        sweep(todo, where, bars)
    lines = result_table.lines_of(root, experiment)
    _print_table(experiment, lines)
    for suffix, text in {"md": result_table.markdown(lines), "csv": result_table.as_csv(lines)}.items():
        write_atomically(root / f"{experiment}.{suffix}", text)
        print(f"table: {root / f'{experiment}.{suffix}'}")
    print(f"report: {report(root, None, options.get('data'), Trust(options.get('backbone')))}")


def run_demo(root: Path, jobs: int | None) -> None:
    """Train three networks on the synthetic images, print the table and write the report."""
    start = time.monotonic()
    print("training three networks to classify ten kinds of organisms in any orientation", flush=True)
    todo = []
    for row, options in DEMO.items():
        config = config_for("synthetic", row, **options)
        todo.append((config, directory_of(config, root)))
    with Bars(interval=5.0) as bars:
        sweep(todo, Where(jobs), bars)
    _print_table("synthetic", result_table.lines_of(root, "synthetic"))
    page = report(root)
    print(f"{clock(time.monotonic() - start)} minutes\nreport: {page.resolve()}")


def _print_table(experiment: str, lines: list[result_table.Line]) -> None:
    header, *rows = result_table.shown(lines)
    table = Table(title=experiment)
    for name in header:
        table.add_column(name, justify="left" if name == "row" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=max(console.width, 170) if not console.is_terminal else None).print(table)
