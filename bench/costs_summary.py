"""The short table of docs/results/costs.md: the cheapest way to train some networks, from the record of costs.py."""

import csv

from harness import latest, markdown

from quarterturn_lab.studies.definition import Entry
from quarterturn_lab.studies.names import network_name

SHOWN = (
    "pool-mean",
    "roll-all-quarter",
    "roll-all-half",
    "roll-all-quarter-dihedral",
    "roll-all-half-dihedral",
    "seven_c4",
    "staged_8_fives",
)
WAYS = {"maps": "torch, maps turned", "filters": "torch, filters turned", "kernel": "Fourier kernel"}


def table() -> str:
    """The rows as a Markdown table, with the record's name in front."""
    head = ["network", "images", "training step", "inference", "onnxruntime", "trained by"]
    return f"`bench/results/{latest('costs').name}`:\n\n{markdown([head, *cheapest()])}"


def cheapest() -> list[list[str]]:
    """The cheapest network first."""
    with latest("costs").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["step"]))
    best: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        network, _, way = row["network"].rpartition(", ")
        if network in SHOWN and way in WAYS:
            figures = (row[name] for name in ("step", "inference", "onnxruntime"))
            best.setdefault((network, row["set"]), [network_name(_entry(network)), row["set"], *figures, WAYS[way]])
    return list(best.values())


def _entry(network: str) -> Entry:
    factory = {"factory": f"quarterturn_lab.models.mnist:{network}"} if "_" in network else {}
    return Entry("mnist-rot" if factory else "plankton-small", "baseline" if factory else network, 1, factory)
