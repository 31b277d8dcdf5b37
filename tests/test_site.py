"""The site: it builds, newcomers find their answers from its first page, and the API explains every argument."""

import csv
import html
import inspect
import re
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import pytest

import quarterturn as qt

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SETTINGS = pytest.importorskip("tomllib").loads((ROOT / "zensical.toml").read_text())["project"]
PUBLIC = {name: value for name, value in vars(qt).items() if name[0] != "_" and not isinstance(value, types.ModuleType)}
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")

# What a newcomer asks, and what the page with the answer shows in its first fifty lines.
QUESTIONS = {
    "start from installation": "quarterturn fit",
    "make my ResNet or ViT invariant": "qt.convert(",
    "a U-Net that turns along": "UNet(), qt.D4",
    "fine-tune a pretrained network": "qt.wrap(",
    "replace test-time augmentation": "qt.wrap(",
    "few labels": "--compare",
    "volumes": "for_spacing",
    "my own group": "qt.generate(",
    "segment large images": "--out mask.tif",
    "export to ONNX, QuPath, bioimage.io": "--to onnx",
    "many GPUs, or on a cluster": "--executor slurm",
    "why it is slow": "qt.explain(",
    "check a model": "qt.assert_equivariant(",
    "reproduce the paper": "quarterturn table plankton",
    "when not to use it": "When an ordinary network is the better choice",
    "coming from escnn": "R2Conv",
}


def links(page: Path) -> list[tuple[str, Path]]:
    """Words and targets of the links on a page to other pages."""
    found = LINK.findall(page.read_text())
    return [(words, (page.parent / target).resolve()) for words, target in found if target.endswith(".md")]


def clicks(start: Path) -> dict[Path, int]:
    """How many links lead from a page to each other one, at least."""
    seen, waiting = {start: 0}, [start]
    while waiting:
        page = waiting.pop(0)
        for _, target in links(page):
            if target not in seen and target.exists():
                seen[target] = seen[page] + 1
                waiting.append(target)
    return seen


def pages_of(nav: object) -> list[str]:
    """All pages of the navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_of(part)]


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_answered_in_at_most_two_clicks(question: str) -> None:
    near = {page for page, number in clicks(DOCS / "index.md").items() if number <= 2}
    answer = QUESTIONS[question]
    assert [page for page in near if answer in "\n".join(page.read_text().splitlines()[:50])] or [
        page for page in near if f"## {answer}" in page.read_text()
    ]


def test_the_first_page_names_the_how_tos() -> None:
    words = " ".join(re.sub(r"[^a-z ]", "", words.lower()) for words, _ in links(DOCS / "index.md"))
    for wanted in ("resnet", "unet", "finetune", "augmentation", "few labels", "volumes", "group", "large images"):
        assert wanted in words
    for wanted in ("onnx", "gpus", "cluster", "slow", "check a model", "paper"):
        assert wanted in words


def test_clicks_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("[b](b.md) ![c](c.md) [d](https://example.org/d.md)")
    (tmp_path / "b.md").write_text("[c](c.md#part)")
    (tmp_path / "c.md").write_text("[a](a.md)")
    assert {page.name: number for page, number in clicks(tmp_path / "a.md").items()} == {
        "a.md": 0,
        "b.md": 1,
        "c.md": 2,
    }


def test_the_navigation_holds_every_page_once() -> None:
    listed = pages_of(SETTINGS["nav"])
    there = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(listed) == there, "every page has a line in `nav` of zensical.toml"


SCREENS = 120  # lines beside tables: about two screens
LONG = {"api", "results", "speed", "decisions"}  # lists and tables


def test_pages_are_at_most_two_screens_long() -> None:
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS)
        prose = [line for line in page.read_text().splitlines() if not line.startswith("|")]
        assert len(prose) <= SCREENS or name.parts[0] in LONG, f"{name}: {len(prose)} lines"


def stray_numbers(text: str) -> list[str]:
    """Lines that begin with a number and a full stop by chance: Markdown makes items of a list of them."""
    found, last = [], 0
    for line in re.sub(r"(?s)```.*?```", "", text).splitlines():
        if item := re.match(r"\s*(\d+)\. ", line):
            if int(item[1]) not in (1, last + 1):
                found.append(line)
            else:
                last = int(item[1])
    return found


def test_no_sentence_becomes_a_list() -> None:
    assert {page.name: found for page in DOCS.rglob("*.md") if (found := stray_numbers(page.read_text()))} == {}
    assert stray_numbers("1. one\n2. two, all alike after\n   16. For others\n3. three\n\n1. again") == [
        "   16. For others"
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_api_has_every_public_name(name: str) -> None:
    pages = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    path = rf"(?:\w+\.)*{name}"  # of a function with the name of its module: both
    assert re.search(rf"^::: quarterturn\.{path}$|^\| `qt\.{name}` \||`qt\.{name}` is a", pages, re.MULTILINE)


def unexplained(name: str, value: object) -> list[str]:
    """What is missing: an example, or arguments that neither the docstring nor the shared table names."""
    text = inspect.getdoc(value) or ""
    shared = (DOCS / "api" / "index.md").read_text().partition("## Arguments that many layers share")[2]
    missing = [] if ">>> " in text else ["an example"]
    if inspect.isclass(value) and issubclass(value, (Exception, tuple)):
        return missing
    words = text.partition(">>> ")[0] + "\n".join(re.findall(r"^\| .*? \|", shared, re.MULTILINE))
    named = {word for code in re.findall(r"`([^`]*)`", words) for word in re.findall(r"\w+", code)}
    return missing + [argument for argument in inspect.signature(value).parameters if argument not in named]


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if callable(value)])
def test_every_argument_is_explained_and_every_name_has_an_example(name: str) -> None:
    assert unexplained(name, PUBLIC[name]) == []


def test_an_argument_without_a_word_is_found() -> None:
    def half(group: qt.Group, width: int, depth: int) -> None:
        """Only `width` is explained."""

    assert unexplained("half", half) == ["an example", "depth"]


def test_pictures_are_those_of_their_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    monkeypatch.syspath_prepend(DOCS / "pictures")
    import draw_ideas
    import draw_operations

    images = draw_operations.pictures()
    drawn = {name: draw(images) for name, draw in draw_operations.DRAWN.items()}
    drawn |= {name: draw() for name, draw in draw_ideas.DRAWN.items()}
    for name, canvas in drawn.items():
        shapes = [
            re.sub('base64,[^"]*', "", text) for text in (canvas.text_of(), (DOCS / "pictures" / name).read_text())
        ]
        assert shapes[0] == shapes[1], f"{name} is old: make pictures"


def without_example(page: str) -> list[str]:
    """Public names under whose heading a page of the built API has no example, or no argument where there are some."""
    found = []
    for part in re.split(r'(?=<h2 id="quarterturn\.)', page)[1:]:
        value = PUBLIC[name := re.match(r'<h2 id="([^"]*)"', part)[1].rpartition(".")[2]]
        text = html.unescape(re.sub(r"<[^>]*>", "", part.partition("<h3")[0]))
        kinds = (Exception, tuple)  # made by us, not by the reader
        arguments = [] if inspect.isclass(value) and issubclass(value, kinds) else inspect.signature(value).parameters
        if ">>> " not in text or not all(re.search(rf"\b{argument}\b", text) for argument in arguments):
            found.append(name)
    return found


def test_figures_of_the_readme_are_those_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text().partition("| three figures |")[2].partition("## ")[0]
    with (DOCS / "results" / "recipe-timm.csv").open() as file:
        runs = list(csv.DictReader(file))

    def error(label: str, score: str) -> str:
        return f"{100 * (1 - mean(float(run[score]) for run in runs if run['label'] == label)):.1f} %"

    with next((ROOT / "bench" / "results").glob("models-avx2-code-*.csv")).open() as file:
        [times] = [row for row in csv.DictReader(file) if (row["network"], row["group"]) == ("resnet50", "D4")]
    counted = re.findall(r"\*\*(\d+) of (\d+) families", (DOCS / "convert.md").read_text())
    shared, families = (sum(map(int, column)) for column in zip(*counted, strict=True))
    first, second, third = re.findall(r"\*\*(.*?)\*\*", readme)
    equivariant = error("resnet10t-c4-29epochs-0.002rate-invariants", "test_accuracy")  # validation chose both
    assert first == f"{equivariant} against {error('resnet10t-plain-20epochs-0.002rate', 'test_4_turns_accuracy')}"
    assert (second, f"({times['training of plain']} in training" in readme) == (times["inference of plain"], True)
    assert third == f"{shared} of {families}"
    assert third in (ROOT / "CHANGELOG.md").read_text()


def test_as_many_notebooks_and_examples_as_the_first_page_says() -> None:
    page = (DOCS / "index.md").read_text()
    for said, number, pattern in (
        ("six notebooks", 6, "notebooks/*.ipynb"),
        ("eight short scripts", 8, "examples/*.py"),
    ):
        assert said in page
        assert len(list(ROOT.glob(pattern))) == number


def test_the_site_builds() -> None:
    python = ROOT / ".venv-docs" / "bin" / "python"
    if not python.exists() and find_spec("zensical") is None:
        pytest.skip("zensical is not installed: make docs")
    command = [str(python if python.exists() else sys.executable), str(ROOT / ".ci" / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "site"
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="(?!https?:|data:|#|mailto:|/)([^"#?]*)', page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"
    pages = {page.name: page.read_text() for page in (site / "api").glob("*.html")}
    assert {name: found for name, page in pages.items() if (found := without_example(page))} == {}
    assert "summary" in without_example(pages["networks.html"].replace("&gt;&gt;&gt;", ""))
