"""The table of decision 10, from the record of bench/initial.py; `bench/tables.py` puts it there."""

import csv
from collections import defaultdict
from statistics import mean

from harness import latest, markdown


def table() -> str:
    """Accuracies, means over seeds, sorted by the learning rate relative to the strength of the weights."""
    path = latest("initial")
    found: dict[tuple[float, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open() as file:
        for row in csv.DictReader(file):
            key = float(row["rate / strength"]), row["learning rate"], row["strength of He's"]
            found[key][row["network"]].append(100 * float(row["test accuracy"]))
    networks = ("ordinary", "C4")
    rows = [
        ["rate / strength", "learning rate", "strength", *(f"{name}, accuracy %" for name in networks), "runs of each"]
    ]
    for (ratio, rate, strength), values in sorted(found.items()):
        if all(name in values for name in networks):
            cells = [f"{mean(values[name]):.1f}" for name in networks]
            rows.append([f"{ratio:.1e}", rate, strength, *cells, str(min(len(values[name]) for name in networks))])
    return f"`bench/results/{path.name}`:\n\n{markdown(rows)}"
