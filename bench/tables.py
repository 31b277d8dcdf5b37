"""Put the tables of bench/results/ into the documents, between `<!-- table: NAME -->` and `<!-- end -->`.

    python bench/tables.py

Where there are records of several machines, NAME goes on with the machine's: conv-amd-epyc. `costs-short` is a part of
the table of costs, with display names.
"""

import csv
import re
from pathlib import Path

from harness import newest

from quarterturn_lab.studies.definition import Entry
from quarterturn_lab.studies.names import network_name

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("speed.md", "convert.md", "results/costs.md")]
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


def table(name: str) -> str:
    """The newest result of that name as a Markdown table, with its machine and torch version in front."""
    path = newest("costs" if name == "costs-short" else name)
    with path.open() as file:
        rows = short_costs() if name == "costs-short" else list(csv.reader(file))
    lines = [" | ".join(row) for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]
    return f"`bench/results/{path.name}`:\n\n" + "\n".join(f"| {line} |" for line in lines)


def short_costs() -> list[list[str]]:
    """The cheapest way to train some networks, as rows of a table: the cheapest network first."""
    with newest("costs").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["step"]))
    best: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        network, _, way = row["network"].rpartition(", ")
        if network in SHOWN and way in WAYS:
            figures = (row[name] for name in ("step", "inference", "onnxruntime"))
            best.setdefault((network, row["set"]), [network_name(_entry(network)), row["set"], *figures, WAYS[way]])
    return [["network", "images", "training step", "inference", "onnxruntime", "trained by"], *best.values()]


def _entry(network: str) -> Entry:
    factory = {"factory": f"quarterturn_lab.models.mnist:{network}"} if "_" in network else {}
    return Entry("mnist-rot" if factory else "plankton-small", "baseline" if factory else network, 1, factory)


def filled(page: str) -> str:
    """The page with every table replaced by what the results say."""
    place = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
    return place.sub(lambda found: f"<!-- table: {found[1]} -->\n{table(found[1])}\n<!-- end -->", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"-> {page}")
