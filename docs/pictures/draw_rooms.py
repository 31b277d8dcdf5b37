"""Draws docs/pictures/rooms.svg: the rooms of both packages, and which imports which, read from the source.

    python docs/pictures/draw_rooms.py

A room stands above those that it imports. Arrows that follow from others are left out.
"""

import ast
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
WHAT = {
    "quarterturn": {
        "errors": "one family of errors",
        "trees": "containers of tensors",
        "point_groups": "crystallographers' names",
        "groups": "groups as data",
        "fourier": "irreps, block-diagonal products",
        "kernel": "the C++ kernel and its border",
        "execution": "what runs a layer, and why",
        "parameter_cache": "turned filters, kept",
        "ops": "slice, pool, stack, roll",
        "filters": "turned filters",
        "windows": "where each orientation looks",
        "layers": "layers in two layouts",
        "fused": "layers in a row as one",
        "check": "is it equivariant? who breaks it?",
        "rates": "measured rates, estimates of time",
        "cost": "multiply-adds, explain",
        "subgroups": "a table to choose from",
        "graph": "what convert and to_plain share",
        "_wrap": "wrap: any model, averaged",
        "_distil": "learning from another network",
        "_export": "to_plain, ONNX",
        "_convert": "convert: shared filters",
    },
    "quarterturn_lab": {
        "errors": "one family of errors",
        "seeds": "randomness by name",
        "files": "whole or not at all",
        "stopping": "signals",
        "progress": "bars and lines",
        "ranks": "processes that train together",
        "settings": "what is asked for, as data",
        "data": "loaders, cache, warps",
        "models": "modules from settings",
        "runs": "run directories",
        "hub": "from_pretrained, timm",
        "inference": "predict, Kaggle, exports",
        "evaluation": "scores, statistics",
        "training": "loop, one run, many runs",
        "report": "tables, figures, HTML",
        "studies": "records to pages",
        "fit": "a folder to a network",
        "play": "a page to turn pictures on",
        "cli": "the command line",
    },
}
WIDTH, HEIGHT, GAP_X, GAP_Y, LEFT, TOP = 190, 46, 18, 40, 20, 60


def rooms(package: str) -> dict[str, set[str]]:
    """Which rooms of the package each room imports."""
    folder, found = SOURCE / package, {}
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        names = found.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
                inner = (node.module or "").removeprefix(package).split(".")[1:2]
                names.update(inner or [alias.name for alias in node.names])
    return {room: {name for name in names if name in found and name != room} for room, names in found.items()}


def below(room: str, arrows: dict[str, set[str]]) -> set[str]:
    """All that a room needs, directly or not."""
    return arrows[room].union(*(below(other, arrows) for other in arrows[room]))


def row(room: str, arrows: dict[str, set[str]]) -> int:
    """How far below the top: just below the lowest of those that import it."""
    return 1 + max((row(other, arrows) for other in arrows if room in arrows[other]), default=-1)


def drawn(package: str, left: int) -> tuple[list[str], int, int]:
    """The picture of one package: its elements, its width and its height."""
    arrows = rooms(package)
    shown = {room: o - set().union(*(below(other, arrows) for other in o)) for room, o in arrows.items()}
    rows: dict[int, list[str]] = {}
    for room in WHAT[package]:
        rows.setdefault(row(room, arrows), []).append(room)
    most, lowest = max(map(len, rows.values())), max(rows)
    total = most * (WIDTH + GAP_X) - GAP_X
    places = {}
    for level, members in rows.items():
        indent = (total - len(members) * (WIDTH + GAP_X) + GAP_X) / 2
        for i, room in enumerate(members):
            places[room] = (left + indent + i * (WIDTH + GAP_X), TOP + level * (HEIGHT + GAP_Y))
    parts = [f'<text class="package" x="{left + total / 2}" y="34">{package}</text>']
    for room, others in shown.items():
        for other in sorted(others):
            (x1, y1), (x2, y2) = places[room], places[other]
            a, b, c, d = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2, y2 - 4
            bend = (d - b) / 2
            parts.append(f'<path d="M{a:.0f} {b:.0f} C{a:.0f} {b + bend:.0f} {c:.0f} {d - bend:.0f} {c:.0f} {d:.0f}"/>')
    for room, (x, y) in places.items():
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>')
        parts.append(f'<text class="room" x="{x + WIDTH / 2:.0f}" y="{y + 19:.0f}">{room}</text>')
        parts.append(f'<text x="{x + WIDTH / 2:.0f}" y="{y + 36:.0f}">{escape(WHAT[package][room])}</text>')
    return parts, total, TOP + lowest * (HEIGHT + GAP_Y) + HEIGHT


def picture() -> str:
    """Both packages side by side, as SVG."""
    first, width, height = drawn("quarterturn", LEFT)
    second, width_2, height_2 = drawn("quarterturn_lab", LEFT + width + 60)
    style = (
        "text{font:12px sans-serif;text-anchor:middle;fill:#333}.room{font:600 14px monospace;fill:#111}"
        ".package{font:600 18px monospace;fill:#111}rect{fill:#eef4fb;stroke:#4a7ab0}"
        "path{fill:none;stroke:#8aa;stroke-width:1.2;marker-end:url(#tip)}"
    )
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += '<path d="M0 0L8 4L0 8z" style="fill:#8aa;stroke:none"/></marker>'
    size = f"0 0 {2 * LEFT + width + 60 + width_2} {max(height, height_2) + LEFT}"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}">', f"<style>{style}</style><defs>{tip}</defs>"]
    lines += ['<rect x="0" y="0" width="100%" height="100%" style="fill:#fff;stroke:none"/>', *first, *second, "</svg>"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "rooms.svg").write_text(picture())
