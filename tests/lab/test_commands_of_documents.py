"""Commands in the documents: each is one that there is, and those of the first page that a newcomer follows run."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest
from cyclopts.exceptions import CycloptsError
from labtools import call, class_folders

from quarterturn_lab.cli.app import app
from quarterturn_lab.settings.experiments import EXPERIMENTS
from quarterturn_lab.settings.networks import ROWS
from quarterturn_lab.studies.catalogue import STUDIES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *sorted((ROOT / "docs").rglob("*.md"))]


def commands(text: str) -> list[str]:
    """What stands in blocks of `sh`, without comments, and in single backticks in the text and in tables."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    lines = [part for line in blocks.splitlines() for part in re.sub(r"\s# .*|^#.*", "", line).split(" && ")]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [" ".join(line.split()) for line in [*lines, *re.findall(r"`([^`]+)`", prose)] if line.strip()]


def wrong(command: str) -> str:
    """What is wrong with a command of ours; nothing is wrong with others."""
    if not (found := re.match(r"(?:srun .* )?(quarterturn|python) (.*)", command)):
        return ""
    words = shlex.split(found[2])
    if found[1] == "python":
        return "" if words[0].startswith("-") or (ROOT / words[0]).is_file() else f"there is no {words[0]}"
    if {"COMMAND", "--help"} & set(words):
        return ""
    if words[0] not in set(app):
        return f"there is no command {words[0]}"
    if len(words) == 1:  # the command itself is meant
        return ""
    try:
        app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return str(error)
    name, _, row = words[1].partition("/")
    known = {"train": EXPERIMENTS, "table": EXPERIMENTS, "study": STUDIES}.get(words[0])
    if known is None or name.isupper() or name.startswith("-"):
        return ""
    return f"there is no {words[1]}" if name not in known or (row and not row.isupper() and row not in ROWS) else ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_are_there(path: Path) -> None:
    assert [f"{command}: {fault}" for command in commands(path.read_text()) if (fault := wrong(command))] == []


def test_wrong_commands_are_found() -> None:
    text = """```sh
    quarterturn fit DIR --minutes 3  # right
    cd x && quarterturn fit DIR --hours 3
    srun --nodes 2 quarterturn train plankton/best \\
        --data DIR
    ```
    `quarterturn bake` and `python bench/none.py`, `quarterturn study NAME`, `quarterturn study none`"""
    assert [command for command in commands(textwrap.dedent(text)) if wrong(command)] == [
        "quarterturn fit DIR --hours 3",
        "srun --nodes 2 quarterturn train plankton/best --data DIR",
        "quarterturn bake",
        "python bench/none.py",
        "quarterturn study none",
    ]


def test_the_commands_of_the_start_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class_folders(tmp_path / "images")
    class_folders(tmp_path / "new-images", 2)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "start.md").read_text().partition("## No images?")[0]
    todo = [command.removeprefix("quarterturn ") for command in commands(page) if command.startswith("quarterturn ")]
    assert [command.split()[0] for command in todo] == ["doctor", "data", "fit", "predict", "check", "export"]
    for command in todo:
        shorter = command.replace("--minutes 3", "--epochs 1")
        code, _, said = call(shorter, capsys)
        assert code == 0, f"{command}: {said}"
    assert {"predictions.csv", "network.onnx"} <= {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "runs/fit/images/auto/seed0/report.html").exists()
