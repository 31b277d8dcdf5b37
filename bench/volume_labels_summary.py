"""The table of docs/volumes.md about labels, from the record of bench/volume_labels.py."""

import csv
from collections import defaultdict
from statistics import mean

from harness import latest, markdown

NAMES = {"ordinary": "ordinary, volumes in random turns", "OCTA": "the cube's 24 turns"}


def table() -> str:
    """Accuracies in per cent, means over seeds, lowest and highest behind; a row for each network and training."""
    path = latest("volume-labels")
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    with path.open() as file:
        runs = list(csv.DictReader(file))
    shortest = min(int(run["steps"]) for run in runs)
    for run in runs:
        times = int(run["steps"]) // shortest
        name = NAMES[run["network"]] + (f", {times} times as long" if times > 1 else "")
        key = name, f"{float(run['learning rate']):g}"
        found[key][int(run["labelled volumes"])].append(100 * float(run["accuracy"]))
        seconds[key].append(float(run["CPU seconds"]))
    labels = sorted({count for values in found.values() for count in values})
    rows = [["network", "learning rate", "CPU s", *(f"{count} labels" for count in labels)]]
    for key, values in found.items():
        rows.append([*key, f"{mean(seconds[key]):.0f}", *(_cell(values.get(count, [])) for count in labels)])
    what = "accuracy %, mean of three seeds and lowest to highest; without the latter one seed"
    return f"`bench/results/{path.name}`, {what}:\n\n{markdown(rows)}"


def _cell(accuracies: list[float]) -> str:
    if len(accuracies) < 2:
        return "".join(f"{accuracy:.0f}" for accuracy in accuracies)
    return f"{mean(accuracies):.0f} ({min(accuracies):.0f} to {max(accuracies):.0f})"
