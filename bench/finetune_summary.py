"""The table of docs/pretrained.md, from the records of bench/finetune.py; `bench/tables.py` puts it there."""

import csv
from collections import defaultdict
from statistics import mean, stdev

from harness import latest, markdown

NAMES = {
    "wrapped": "`wrap`, tune",
    "plain, then wrapped": "tune, `wrap` afterwards",
    "plain": "tune as it is",
    "matched": "`convert(match=)`, tune",
    "pretrained": "`convert` without `match`, tune",
    "scratch": "`convert`, drawn anew",
    "distilled": "`convert(match=)`, `distil`, tune",
}
COSTS = {"plain": "plain", "plain, then wrapped": "wrapped", "wrapped": "wrapped"}  # others are converted ones
EPOCHS, SHOWN = (1, 4, 16), 4  # and the epochs whose training times are shown
Found = dict[tuple[str, str, int], list[tuple[float, float]]]


def table() -> str:
    """Accuracies: means over seeds and standard deviations. Times are means, of one network and the other."""
    path, found = latest("finetune"), results()
    with latest("tuned-times").open() as file:
        times = {row["network"]: row for row in csv.DictReader(file)}
    heads = [f"{network}, {n} epoch{'s' if n > 1 else ''}" if n == 1 else str(n) for network in times for n in EPOCHS]
    rows = [["what is done", *heads, f"training, s ({SHOWN} epochs)", "use"]]
    for way, name in NAMES.items():
        cells = [_accuracy(found[network, way, n]) for network in times for n in EPOCHS]
        training = [f"{mean(seconds for _, seconds in found[network, way, SHOWN]):.0f}" for network in times]
        use = [f"{float(row[COSTS.get(way, 'matched')]):.1f}" for row in times.values()]
        rows.append([name, *cells, " / ".join(training), " / ".join(use)])
    counts = sorted({len(found[network, way, n]) for network in times for way in NAMES for n in EPOCHS})
    runs = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    text = f"`bench/results/{path.name}`, test accuracy in %, mean ± standard deviation of {runs} runs:"
    return f"{text}\n\n{markdown(rows)}"


def results() -> Found:
    """Accuracy in per cent and CPU seconds of all training, of each run."""
    found: Found = defaultdict(list)
    with latest("finetune").open() as file:
        for row in csv.DictReader(file):
            one = 100 * float(row["test accuracy"]), float(row["CPU seconds"])
            found[row["network"], row["way"], int(row["epochs"])].append(one)
    return found


def _accuracy(runs: list[tuple[float, float]]) -> str:
    values = [accuracy for accuracy, _ in runs]
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") if values else ""
