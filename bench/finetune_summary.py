"""The table of docs/pretrained.md, from the records of bench/finetune.py; `bench/tables.py` puts it there."""

import csv
from collections import defaultdict
from statistics import mean

from harness import latest, markdown

NAMES = {
    "plain": "tuned as it is",
    "plain, then wrapped": "tuned as it is, then wrapped",
    "wrapped": "wrapped, tuned",
    "scratch": "converted, drawn anew",
    "pretrained": "converted, pretrained",
    "matched": "converted, pretrained, matched",
    "distilled": "converted, matched, distilled",
    "distilled, features": "the same, with features",
}
COSTS = {"plain": "plain", "plain, then wrapped": "wrapped", "wrapped": "wrapped"}  # others are converted ones


def table() -> str:
    """Accuracies in per cent, in brackets CPU seconds of all training: means over seeds. Use is relative to plain."""
    path = latest("finetune")
    found: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with path.open() as file:
        for row in csv.DictReader(file):
            result = 100 * float(row["test accuracy"]), float(row["CPU seconds"])
            found[row["network"], row["way"]][int(row["epochs"])].append(result)
    with latest("tuned-times").open() as file:
        times = {row["network"]: row for row in csv.DictReader(file)}
    epochs = sorted({count for results in found.values() for count in results})
    heads = [f"{count} epoch{'s' if count > 1 else ''}" for count in epochs]
    rows = [["network", "what is done", *heads, "use", "runs of each"]]
    for (network, way), results in found.items():
        shown = [
            "" if n not in results else "{:.1f} ({:.0f})".format(*map(mean, zip(*results[n], strict=True)))
            for n in epochs
        ]
        counts = sorted({len(each) for each in results.values()})
        numbers = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        rows.append([network, NAMES[way], *shown, f"{times[network][COSTS.get(way, 'matched')]}x", numbers])
    return f"`bench/results/{path.name}`, test accuracy % (CPU seconds of all training):\n\n{markdown(rows)}"
