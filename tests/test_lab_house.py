"""House rules for the lab: the library never imports it, its own imports point one way, files stay short."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src"
LAB = ROOT / "quarterturn_lab"

# A module may import those before it.
MODULES = """errors raising seeds files nets config experiments layers build augment metrics masks tasks
    data.dataset data.scaling data.cache data.splits data.floats data.images data.reading data.folder data.plankton
    data.plankton_parts data.mnist data.mnist_held data.synthetic data.galaxies data.pairs data.aerial data.nuclei data
    facts whole sampling evaluation loop machine runs worker progress sweep tables plots sevenlayers digits study
    studies records outcomes published budgets pictures pages studying figures report inspect doctor
    predicting submitting exporting after commands options cli"""
ORDER = MODULES.split()


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(LAB).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.AST, package: str) -> set[str]:
    """Modules of the package that are imported anywhere in the code, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names if alias.name.split(".")[0] == package)
    return names


def in_order(name: str) -> str | None:
    """quarterturn_lab.data.cache.root -> data.cache."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in ORDER:
        parts.pop()
    return ".".join(parts) or None


def wrong_arrows(module: str, source: str) -> list[str]:
    found = {in_order(name) for name in imported(ast.parse(source), "quarterturn_lab")} - {None}
    return [f"{module} imports {name}" for name in sorted(found) if ORDER.index(name) >= ORDER.index(module)]


def test_the_library_never_imports_the_lab() -> None:
    paths = list((ROOT / "quarterturn").rglob("*.py"))
    assert len(paths) > 5
    for path in paths:
        assert imported(ast.parse(path.read_text()), "quarterturn_lab") == set(), path
    assert imported(ast.parse("def f():\n    from quarterturn_lab import runs"), "quarterturn_lab")


def test_the_labs_imports_point_one_way() -> None:
    modules = {module_name(path): path for path in LAB.rglob("*.py") if path != LAB / "__init__.py"}
    assert set(modules) == set(ORDER)
    assert [arrow for module, path in modules.items() for arrow in wrong_arrows(module, path.read_text())] == []
    assert wrong_arrows("loop", "from quarterturn_lab.data import cache\nfrom quarterturn_lab import runs") == [
        "loop imports runs"
    ]


def test_files_stay_short_and_only_the_top_prints() -> None:
    may_print = {"after", "cli", "commands", "doctor", "inspect", "progress", "studying", "worker"}
    for path in LAB.rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 370, path
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in calls or module_name(path) in may_print, path


def test_nothing_needs_torchvision() -> None:
    for path in LAB.rglob("*.py"):
        assert not imported(ast.parse(path.read_text()), "torchvision"), path
