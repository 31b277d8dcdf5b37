"""The sentences of docs/convert/coverage.md that count what `convert` takes, from the records of convert.py."""

import csv
import re
from pathlib import Path

from harness import latest

LIST = Path(__file__).parents[1] / "tests" / "timm" / "transformer_families.py"
REFUSED = "refused"  # instead of the share of a network that is not converted
ENOUGH = 80  # % of the multiply-adds in layers that share filters, for a family to count as converted


def table() -> str:
    """How many families of timm are converted, and which are not."""
    with latest("families").open() as file:
        taken = list(csv.DictReader(file))
    with latest("refused").open() as file:
        refused = [row["network"].split()[-1] for row in csv.DictReader(file) if row.get("family")]
    return sentence({row["network"].split()[-1]: int(row["rolled"].split()[0]) for row in taken}, refused)


def transformers_table() -> str:
    """The same for transformers, hybrids and mixers, which have one record."""
    with latest("transformers").open() as file:
        rows = {row["network"].split()[-1]: row["rolled"] for row in csv.DictReader(file)}
    taken = {name: int(rolled.split()[0]) for name, rolled in rows.items() if rolled != REFUSED}
    missing = [name for name in _listed() if name not in rows]
    text = sentence(taken, [name for name, rolled in rows.items() if rolled == REFUSED])
    return text + (f" Not measured yet: {', '.join(missing)}." if missing else "")


def _listed() -> list[str]:
    """The smallest network of each family, from the list of the tests, which needs timm to be imported."""
    found = re.search(r'SMALLEST = """(.*?)"""', LIST.read_text(), re.DOTALL)
    return found[1].split() if found else []


def sentence(rolled: dict[str, int], refused: list[str]) -> str:
    """The counts, from the rolled share of each network that was taken, in percent."""
    whole = [name for name, share in rolled.items() if share >= ENOUGH]
    less = [f"{name} ({share} %)" for name, share in rolled.items() if share < ENOUGH]
    count = len(rolled) + len(refused)
    text = f"**{len(whole)} of {count} families ({100 * len(whole) / count:.0f} %)** are converted with layers that "
    text += f"share filters for at least {ENOUGH} % of their multiply-adds."
    text += f" Less: {', '.join(less)}." if less else ""
    return text + (f" Refused: {', '.join(refused)}." if refused else " None was refused.")
