"""Runs the code of docs/understand/coming-from.md, theirs and ours, and measures how exact each is on a quarter turn.

    pip install --no-deps e2cnn ttach      # and what e2cnn needs: scipy, sympy
    python bench/peers.py && python bench/tables.py

Nothing is timed: any machine will do.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import harness
import torch

import quarterturn as qt

PAGE = Path(__file__).parents[1] / "docs" / "understand" / "coming-from.md"


def blocks(page: str) -> tuple[dict[str, str], str]:
    """The code of each peer, by its name, and all of ours."""
    theirs = dict(re.findall(r'```python title="(\w+)"\n(.*?)```', page, re.DOTALL))
    return theirs, "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))


def measure(page: str) -> harness.Rows:
    """Largest relative error over the group, with random weights, at an odd and an even size."""
    theirs, ours = blocks(page)
    names: dict[str, dict[str, Any]] = {}
    for name, code in (*theirs.items(), ("ours", ours)):
        torch.manual_seed(0)
        names[name] = {}
        exec(compile(code, f"{PAGE.name}: {name}", "exec"), names[name])
    model = names["ours"]["model"].eval()
    networks = {
        "e2cnn 0.2.3, C4, as above": (names["e2cnn"]["Net"]().eval(), qt.C4),
        "quarterturn, C4, as above": (names["ours"]["net"].eval(), qt.C4),
        "ttach 0.0.3, D4": (names["ttach"]["averaged"](model).eval(), qt.D4),
        "quarterturn, wrap, D4": (names["ours"]["averaged"].eval(), qt.D4),
    }
    rows: harness.Rows = []
    for label, (network, group) in networks.items():
        errors = {}
        for side in (33, 32):
            torch.manual_seed(1)
            errors[f"{side} x {side}"] = (
                f"{max(qt.equivariance_error(network, group, torch.randn(4, 3, side, side)).relative):.0e}"
            )
        rows.append({"network": label, **errors})
    x = torch.randn(4, 3, 32, 32)
    difference = (networks["ttach 0.0.3, D4"][0](x) - networks["quarterturn, wrap, D4"][0](x)).abs().max()
    assert difference < 1e-6, difference
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # e2cnn's, about what numpy and torch no longer like
    harness.write("peers", measure(PAGE.read_text()))
