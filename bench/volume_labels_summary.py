"""The table of docs/volumes.md about labels, from the record of bench/volume_labels.py."""

import csv
from collections import defaultdict
from statistics import mean

from harness import latest, markdown

NAMES = {"ordinary": "ordinary, volumes in random turns", "OCTA": "the cube's 24 turns"}


def table() -> str:
    """Accuracies in per cent, means over seeds, lowest and highest behind; a row for each network and training."""
    path = latest("volume-labels")
    found: dict[tuple[str, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            key = NAMES[row["network"]], row["steps"], f"{float(row['learning rate']):g}", f"{int(row['parameters']):,}"
            found[key][int(row["labelled volumes"])].append(100 * float(row["accuracy"]))
            seconds[key].append(float(row["CPU seconds"]))
    labels = sorted({count for values in found.values() for count in values})
    head = ["network", "steps", "learning rate", "parameters", "CPU s", *(f"{count} labels" for count in labels)]
    rows = [head]
    for key, values in found.items():
        cells = [values.get(count, []) for count in labels]
        shown = [f"{mean(cell):.0f} ({min(cell):.0f} to {max(cell):.0f})" if cell else "" for cell in cells]
        rows.append([*key, f"{mean(seconds[key]):.0f}", *shown])
    runs = sorted({len(cell) for values in found.values() for cell in values.values()})
    many = " to ".join(map(str, dict.fromkeys((runs[0], runs[-1]))))
    return f"`bench/results/{path.name}`, accuracy %, {many} runs of each (lowest to highest):\n\n{markdown(rows)}"
