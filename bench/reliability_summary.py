"""The tables of docs/reliability.md, from the records of bench/reliability.py; `bench/tables.py` puts them there."""

import csv
from pathlib import Path

import harness
from harness import markdown

NAME = "reliability-"


def table() -> str:
    """What was tried on each machine, how often, and what came of it."""
    return "\n\n".join(_of(path) for path in sorted(harness.RESULTS.glob(f"{NAME}*.csv")))


def _of(path: Path) -> str:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    days = sorted({row["date"] for row in rows})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [["tried", "how often", "outcome"], *([row["tried"], row["times"], row["outcome"]] for row in rows)]
    lines += _memory(path.with_name(path.name.replace(NAME, "large_images-")))
    return f"`bench/results/{path.name}`, {when}:\n\n{markdown(lines)}"


def _memory(path: Path) -> list[list[str]]:
    """The smallest and the largest mask and table that `predict` has made on a machine, by bench/large_images.py."""
    if not path.exists():
        return []
    with path.open() as file:
        rows = list(csv.DictReader(file))
    kinds = [[row for row in rows if row["what"].startswith(f"a {kind}")] for kind in ("mask", "table")]
    return [
        [f"predict, {row['what']}", "once", f"{row['peak memory, MB']} MB of memory at most"]
        for some in kinds
        for row in (some[0], some[-1])
    ]
