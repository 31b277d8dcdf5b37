"""Put the tables of bench/results/ into the documents, between `<!-- table: NAME -->` and `<!-- end -->`.

    python bench/tables.py

Where there are records of several machines, NAME goes on with the machine's: conv-amd-epyc.
"""

import csv
import re
from pathlib import Path

from harness import latest

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("speed.md", "convert.md", "results/costs.md")]


def table(name: str) -> str:
    """The latest result of that name as a Markdown table, with its machine and torch version in front."""
    path = latest(name)
    with path.open() as file:
        rows = list(csv.reader(file))
    lines = [" | ".join(row) for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]
    return f"`bench/results/{path.name}`:\n\n" + "\n".join(f"| {line} |" for line in lines)


def filled(page: str) -> str:
    """The page with every table replaced by what the results say."""
    place = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
    return place.sub(lambda found: f"<!-- table: {found[1]} -->\n{table(found[1])}\n<!-- end -->", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"-> {page}")
