"""The house rules that a machine can check: imports point one way, documents run, versions agree."""

import ast
import graphlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "quarterturn"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A room (a subpackage, or a module beside them) may import those before it.
LIBRARY = [
    "errors",
    "trees",
    "point_groups",
    "groups",
    "fourier",
    "kernel",
    "execution",
    "parameter_cache",
    "ops",
    "filters",
    "windows",
    "layers",
    "fused",
    "check",
    "rates",
    "cost",
    "subgroups",
    "_wrap",
    "_distil",
    "graph",
    "_export",
    "_convert",
]
LAB = [
    "errors",
    "seeds",
    "files",
    "stopping",
    "progress",
    "ranks",
    "settings",
    "data",
    "models",
    "runs",
    "hub",
    "inference",
    "evaluation",
    "training",
    "report",
    "studies",
    "fit",
    "play",
    "cli",
]
PACKAGES = {"quarterturn": LIBRARY, "quarterturn_lab": LAB}


def rooms_imported(source: str, package: str) -> set[str]:
    """The rooms of a package that code imports from, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            inner = (node.module or "").removeprefix(package).split(".")[1:2]
            names.update(inner or [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            inside = [alias.name for alias in node.names if alias.name.startswith(f"{package}.")]
            names.update(name.removeprefix(package).split(".")[1] for name in inside)
    return names


def wrong_arrows(room: str, source: str, package: str) -> list[str]:
    order = PACKAGES[package]
    found = (rooms_imported(source, package) & set(order)) - {room}
    return [f"{room} imports {name}" for name in sorted(found) if order.index(name) > order.index(room)]


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_import_one_way(package: str) -> None:
    folder = ROOT / "src" / package
    rooms = {path.relative_to(folder).parts[0].removesuffix(".py"): path for path in folder.rglob("*.py")}
    assert set(rooms) - {"__init__", "__main__"} == set(PACKAGES[package])
    found = []
    for path in folder.rglob("*.py"):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        if not room.startswith("__"):
            found += [f"{path}: {arrow}" for arrow in wrong_arrows(room, path.read_text(), package)]
    assert found == []


def test_a_wrong_arrow_is_found() -> None:
    assert wrong_arrows("groups", "def f():\n    from quarterturn.ops import act", "quarterturn") == [
        "groups imports ops"
    ]
    assert wrong_arrows("data", "from quarterturn_lab import runs", "quarterturn_lab") == ["data imports runs"]
    assert wrong_arrows("runs", "from quarterturn_lab.data import load", "quarterturn_lab") == []


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_a_room_do_not_import_each_other_in_circles(package: str) -> None:
    folder = ROOT / "src" / package
    modules = {".".join(path.relative_to(folder.parent).with_suffix("").parts): path for path in folder.rglob("*.py")}
    arrows = {}
    for name, path in modules.items():
        tree, found = ast.parse(path.read_text()), set()
        for node in tree.body:  # at the top alone: what a function imports cannot be missing when a module loads
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        arrows[name] = {other for other in found if other in modules} - {name}
    graph = graphlib.TopologicalSorter({name: found for name, found in arrows.items() if "__init__" not in name})
    assert len(list(graph.static_order())) > 20  # raises CycleError


def test_the_compiler_of_the_kernel_runs_where_there_is_no_torch() -> None:
    source = (ROOT / "src/quarterturn/kernel/compiler.py").read_text()
    assert not rooms_imported(source, "quarterturn")
    assert "torch" not in {
        name.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for name in node.names
    }


def test_the_library_never_imports_the_lab() -> None:
    for path in (ROOT / "src/quarterturn").rglob("*.py"):
        assert "quarterturn_lab" not in path.read_text(), path


def test_the_lab_does_not_need_torchvision() -> None:
    for path in (ROOT / "src/quarterturn_lab").rglob("*.py"):
        assert "import torchvision" not in path.read_text(), path


def test_only_the_command_line_prints() -> None:
    may_print = {"cli", "progress"}
    folder = ROOT / "src/quarterturn_lab"
    for path in folder.rglob("*.py"):
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        assert "print" not in calls or room in may_print or path.name == "worker.py", path


def test_the_library_needs_torch_and_numpy_alone() -> None:
    allowed = {"torch", "numpy", "quarterturn", *sys.stdlib_module_names}
    optional = {"_export/onnx_file.py": {"onnxruntime", "onnxscript"}}  # imported where they are used
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            extra = optional.get(str(path.relative_to(SOURCE)), set())
            assert {str(name).split(".")[0] for name in names} <= allowed | extra, path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_code_in_documents_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some of it writes files
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        exec(compile(block, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_tests_named_in_the_paper_map_exist() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    tests = "".join(files.values())
    assert set(re.findall(r"test_\w+\.py", text)) <= set(files)
    named = set(re.findall(r"\btest_\w+(?!\.py)\b", re.sub(r"test_\w+\.py", "", text)))
    assert named
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_tables_in_the_documents_are_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    import tables

    assert {"speed.md", "convert.md", "costs.md"} <= {path.name for path in tables.PAGES}
    for path in tables.PAGES:
        page = path.read_text()
        edited = page.replace(" |\n<!-- end -->", " edited |\n<!-- end -->")
        assert edited != page
        assert tables.filled(page) == page
        assert tables.filled(edited) == page


def test_the_version_is_one() -> None:
    version = re.search(r'__version__ = "(.*)"', (SOURCE / "__init__.py").read_text()).group(1)
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_picture_of_the_rooms_is_that_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "pictures")
    import draw_rooms

    assert {package: set(rooms) for package, rooms in draw_rooms.WHAT.items()} == {
        package: set(rooms) for package, rooms in PACKAGES.items()
    }
    assert (ROOT / "docs" / "pictures" / "rooms.svg").read_text() == draw_rooms.picture()


def test_files_named_on_the_pages_of_the_architecture_exist() -> None:
    text = "".join((ROOT / "docs" / f"architecture{part}.md").read_text() for part in ("", "-lab", "-after"))
    named = set(re.findall(r"`([\w/]+\.(?:py|cpp|h))`", text))
    there = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert len(named) > 30
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in there)] == []
