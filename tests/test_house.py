"""The house rules that a machine can check: imports point one way, documents run, versions agree."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "quarterturn"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A module may import those to the left of it.
ORDER = [
    "errors",
    "groups",
    "fourier",
    "ops",
    "filters",
    "windows",
    "layers",
    "conv",
    "transposed",
    "dense",
    "spatial",
    "batchnorm",
    "norms",
    "check",
    "wrapping",
    "pointwise",
    "plain",
    "converting",
    "__init__",
]
# The same inside the packages of the package.
INSIDE = {
    "fourier": [
        "build",
        "structure",
        "geometry",
        "irreps",
        "library",
        "moving",
        "cache",
        "rule",
        "conv",
        "dense",
        "__init__",
    ],
    "plain": ["values", "convolutions", "norms", "spatial", "rules", "build", "export", "__init__"],
    "converting": [
        "widths",
        "weights",
        "layers",
        "values",
        "capture",
        "writer",
        "shapes",
        "calls",
        "convolutions",
        "norms",
        "positions",
        "rules",
        "picking",
        "reducing",
        "functions",
        "report",
        "build",
        "summary",
        "__init__",
    ],
}


def imports(path: Path, package: str = "quarterturn") -> set[str]:
    """The modules right under the package that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            inner = node.module.removeprefix(package).split(".")[1:2]
            names.update(inner or [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            inside = [alias.name for alias in node.names if alias.name.startswith(f"{package}.")]
            names.update(name.removeprefix(package).split(".")[1] for name in inside)
    return names


def wrong_arrows(found: dict[str, set[str]], order: list[str]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, names in found.items()
        for name in names
        if name not in order or order.index(name) >= order.index(module)
    ]


def test_imports_point_one_way() -> None:
    found = {path.stem: imports(path) for path in SOURCE.glob("*.py")}
    for package in INSIDE:
        found[package] = set().union(*(imports(path) for path in SOURCE.glob(f"{package}/*.py"))) - {package}
    assert set(found) == set(ORDER)
    assert wrong_arrows(found, ORDER) == []
    assert found["fourier"] == {"errors", "groups"}
    assert not imports(SOURCE / "fourier" / "build.py")  # it runs where there is no torch
    assert wrong_arrows({"groups": {"errors", "ops"}}, ORDER) == ["groups imports ops"]


@pytest.mark.parametrize("package", INSIDE)
def test_imports_point_one_way_inside(package: str) -> None:
    found = {path.stem: imports(path, f"quarterturn.{package}") for path in SOURCE.glob(f"{package}/*.py")}
    assert set(found) == set(INSIDE[package])
    assert wrong_arrows(found, INSIDE[package]) == []


def test_the_library_needs_torch_and_numpy_alone() -> None:
    allowed = {"torch", "numpy", "quarterturn", *sys.stdlib_module_names}
    optional = {"plain/export.py": {"onnxruntime", "onnxscript"}}  # imported where they are used
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            extra = optional.get(str(path.relative_to(SOURCE)), set())
            assert {str(name).split(".")[0] for name in names} <= allowed | extra, path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_code_in_documents_runs(path: Path) -> None:
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        exec(compile(block, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_tests_named_in_the_paper_map_exist() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    named = set(re.findall(r"\btest_\w+(?!\.py)\b", re.sub(r"test_\w+\.py", "", text)))
    assert named
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_tables_in_the_documents_are_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    import tables

    for path, cell in zip(tables.PAGES, ("| roll |", "| timm resnet18 |", "| pool-mean, maps |"), strict=True):
        page = path.read_text()
        assert tables.filled(page) == page
        assert cell in page
        assert tables.filled(page.replace(cell, "| edited |", 1)) == page


def test_the_version_is_one() -> None:
    version = re.search(r'__version__ = "(.*)"', (SOURCE / "__init__.py").read_text()).group(1)
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
