"""What a user gets who installs the package: types, a command that says what it needs, a page without dead links."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import quarterturn as qt
from quarterturn_lab.__main__ import MODULES
from quarterturn_lab.cli.doctor import NEEDED, doctor

ROOT = Path(__file__).parent.parent
PROJECT = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": found},
        check=False,
    )


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where a module is missing."""
    code = f"import sys; sys.modules[{module!r}] = None; from quarterturn_lab.__main__ import main; main()"
    return run("-c", code, *arguments)


def test_whatever_is_installed_for_the_tests_is_pinned() -> None:
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert len(lines) == 7
    free = [line for line in lines if not line.strip().startswith(("$(PINS) ", "$(call PINNED,"))]
    assert [line for line in free if "tests/tools" not in line] == []  # those programs need older versions


@pytest.mark.parametrize("package", ["quarterturn", "quarterturn_lab"])
def test_packages_say_that_they_are_typed(package: str) -> None:
    assert (Path(import_module(package).__file__ or "").parent / "py.typed").exists()


def test_the_lab_runs_as_a_module() -> None:
    done = run("-m", "quarterturn_lab", "--help")
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout


def test_the_command_leads_to_a_function() -> None:
    module, name = PROJECT["scripts"]["quarterturn"].split(":")
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize(
    ("module", "arguments"), [("cyclopts", ()), ("cyclopts", ("doctor",)), ("jinja2", ("report",))]
)
def test_without_what_the_lab_needs_the_command_says_in_a_line_what_to_install(
    module: str, arguments: tuple[str, ...]
) -> None:
    done = without(module, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'quarterturn: {module} is not installed: pip install "quarterturn[lab]"\n'


def test_other_modules_that_are_missing_are_a_fault_of_ours() -> None:
    done = without("quarterturn_lab.cli.options")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_what_the_lab_needs_is_what_its_extra_installs() -> None:
    installed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["lab"]]
    assert {re.match(r"[\w-]+", line)[0] for line in installed} == set(NEEDED) - {"quarterturn"}
    for module in MODULES:
        import_module(module)


def test_doctor_says_what_to_do_where_the_kernel_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert doctor()
    assert re.search(rf"^ok +kernel +{qt.kernels().code}: ", capsys.readouterr().out, re.MULTILINE)
    missing = qt.kernels()._replace(code="conv2d", path=None, why="the kernel is not compiled")
    monkeypatch.setattr(qt, "kernels", lambda: missing)
    assert doctor()  # it is slower, and all there
    assert re.search(r"^-- +kernel +conv2d: the kernel is not compiled$", capsys.readouterr().out, re.MULTILINE)


def test_the_page_on_a_package_index_has_no_links_to_files() -> None:
    core = pytest.importorskip("hatchling.metadata.core")
    from hatchling.plugin.manager import PluginManager
    from trove_classifiers import classifiers

    metadata = core.ProjectMetadata(str(ROOT), PluginManager()).core
    targets = re.findall(r"\]\(([^)]*)\)", metadata.readme)
    assert targets
    assert [target for target in targets if not target.startswith("https:")] == []
    readme = (ROOT / "README.md").read_text()
    assert metadata.readme.startswith(readme.splitlines()[0])
    assert re.findall(r"```.*?```", metadata.readme, re.DOTALL) == re.findall(r"```.*?```", readme, re.DOTALL)
    assert set(metadata.classifiers) <= classifiers
