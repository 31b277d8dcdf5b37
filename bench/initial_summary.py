"""The table of decision 10, from the record of bench/initial.py; `bench/tables.py` puts it there."""

import csv
from collections import defaultdict
from statistics import mean

from harness import latest, markdown

NETWORKS = ("ordinary", "C4", "D4")
STRENGTHS = {"0.41": "torch's", "1": "He's"}


def table() -> str:
    """Accuracies in per cent, means over seeds; a row for each learning rate, torch's strength beside He's."""
    path = latest("initial")
    found: dict[tuple[str, ...], dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open() as file:
        for row in csv.DictReader(file):
            key = (
                row["task"],
                row["norms"],
                row["optimizer"],
                *(f"{float(row[of]):g}" for of in ("learning rate", "weight decay")),
            )
            found[key][row["network"], row["strength of He's"]].append(100 * float(row["test accuracy"]))
    heads = [f"{network}, {name}" for network in NETWORKS for name in STRENGTHS.values()]
    rows = [["task", "norms", "optimiser", "learning rate", "weight decay", *heads, "runs of each"]]
    for run, values in found.items():
        cells = [values.get((network, strength), []) for network in NETWORKS for strength in STRENGTHS]
        counts = sorted({len(cell) for cell in cells if cell})
        shown = [f"{mean(cell):.0f}" if cell else "" for cell in cells]
        rows.append([*run, *shown, " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))])
    return f"`bench/results/{path.name}`, accuracy %:\n\n{markdown(rows)}"
