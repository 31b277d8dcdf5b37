"""The table of docs/reliability.md, from the record of bench/reliability.py; `bench/tables.py` puts it there."""

import csv

from harness import latest, markdown


def table() -> str:
    """What was tried, how often, and what came of it."""
    path = latest("reliability")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    days = sorted({row["date"] for row in rows})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [["tried", "how often", "outcome"], *([row["tried"], row["times"], row["outcome"]] for row in rows)]
    return f"`bench/results/{path.name}`, {when}:\n\n{markdown(lines)}"
