"""The tables of decision 10, from the record of bench/initial.py; `bench/tables.py` puts them there."""

import csv
from collections import defaultdict
from statistics import mean

from harness import latest, markdown

NETWORKS = ("ordinary", "C4", "D4")
STRENGTHS = {"0.41": "torch's", "1": "He's"}

RATE = ("batch norm", "adamw", "2.0e-03", "5.0e-02")
SWEEP = ("0.25", "0.41", "0.5", "1", "2", "4")


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


def sweep() -> str:
    """Accuracies in per cent at one learning rate; a column for each strength, in units of He's."""
    path, found = latest("initial"), defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            if (row["norms"], row["optimizer"], row["learning rate"], row["weight decay"]) == RATE:
                run = row["task"], row["network"], row["strength of He's"]
                found[run].append(100 * float(row["test accuracy"]))
    rows = [["task", "network", *SWEEP]]
    for task, network in dict.fromkeys((task, network) for task, network, _ in found):
        cells = [found.get((task, network, strength), []) for strength in SWEEP]
        if all(cells):
            rows.append([task, network, *(f"{mean(cell):.0f}" for cell in cells)])
    return markdown(rows)
