"""Put the tables of bench/results/ into the documents, between `<!-- table: NAME -->` and `<!-- end -->`.

    python bench/tables.py

If there are records of several machines, NAME ends with the machine's name: conv-amd-epyc.
"""

import csv
import re
from pathlib import Path

import convert_summary
import costs_summary
import finetune_summary
import initial_summary
import reliability_summary
import speed_summary
import volume_labels_summary
import when_summary
from harness import latest, markdown

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "<!-- table: " in page.read_text()]
COMPUTED = {
    "speed": speed_summary.table,
    "costs-short": costs_summary.table,
    "families-counted": convert_summary.table,
    "transformers-counted": convert_summary.transformers_table,
    "finetune-short": finetune_summary.table,
    "reliability": reliability_summary.table,
    "initial-short": initial_summary.table,
    "initial-sweep": initial_summary.sweep,
    "volume-labels": volume_labels_summary.table,
    "when": when_summary.table,
}  # not one record as it is


def table(name: str) -> str:
    """The latest result of that name as a Markdown table, with its machine and torch version in front."""
    if name in COMPUTED:
        return COMPUTED[name]()
    path = latest(name)
    with path.open() as file:
        rows = list(csv.reader(file))
    return f"`bench/results/{path.name}`:\n\n{markdown(rows) if len(rows) > 1 else 'None.'}"


def filled(page: str) -> str:
    """The page with every table replaced by what the results say."""
    place = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
    return place.sub(lambda found: f"<!-- table: {found[1]} -->\n{table(found[1])}\n<!-- end -->", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"-> {page}")
