"""The page of a fit: true numbers, for every task, in one file."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from labtools import blobs, call, photo, tiny

import quarterturn as qt
from quarterturn_lab.data.dataset import Data, Dataset, Ragged, Scenes, Settings, Units
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.certainty import calibration, share_interval
from quarterturn_lab.report.fit_report import constant, hands, unequal, write_fit_report
from quarterturn_lab.report.judged import judged, turned
from quarterturn_lab.report.measures import Measure, difference
from quarterturn_lab.settings.networks import NUCLEI, Net, edited
from quarterturn_lab.training import training_run

CLASSES = ("round <b>", "long, thin", "none")
UNET = replace(NUCLEI, channels=5, side=24, stages=((8, 8), (16,)), hidden=(8,))
SMALL = Net(channels=5, side=13, stages=((8,), (8,)), hidden=(), outputs=2, norm=True, residual=True, dropout=0.0)


def vectors(task: str) -> Dataset:
    """Bright images, whose brightness says what there is to know."""
    rng = np.random.default_rng(1)
    count = 60
    level = rng.uniform(0, 1, (count, 3))
    labels: Any = {
        "classes": level.argmax(1),
        "tags": (level > 0.5).astype(np.float32),
        "answers": (level / level.sum(1, keepdims=True)).astype(np.float32),
        "numbers": ((level - 0.5) / 0.3).astype(np.float32),
    }[task]
    noise = rng.normal(0, 10, (count, 5, 13, 13))
    images = (200 * level[:, [0, 1, 2, 0, 1], None, None] + noise).clip(0, 255).astype(np.uint8)
    where = np.arange(count)
    units = Units((500.0,) * 3, (30.0,) * 3) if task == "numbers" else None
    names = tuple(f"image_{i}.png" for i in where)
    parts = {"train": where[:30], "valid": where[30:40], "test": where[40:]}
    return Dataset(images, labels, CLASSES, names, fingerprint=task, task=task, units=units, **parts)


def scenes(task: str) -> Scenes:
    rng = np.random.default_rng(1)
    maps = [blobs(rng, 30 + i, 34, 5) for i in range(8)]
    images = [np.moveaxis(photo(rng, labels, 5), 2, 0) for labels in maps]
    labels = [np.where(m > 0, 1 + m % 2, 0).astype(np.uint16) for m in maps] if task == "regions" else maps
    where = np.arange(8)
    both = [Ragged(np.concatenate([a.ravel() for a in some]), [a.shape for a in some]) for some in (images, labels)]
    classes = CLASSES if task == "regions" else CLASSES[:2]
    names = tuple(f"folder/scene_{i}.png" for i in where)
    parts = {"train": where[:3], "valid": where[3:4], "test": where[4:]}
    return Scenes(*both, classes, names, fingerprint=task, task=task, **parts)


def made(task: str) -> Data:
    return vectors(task) if task in ("classes", "tags", "numbers", "answers") else scenes(task)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(settings: Settings) -> Data:
        return made(Path(settings.folder or "").parent.name)

    monkeypatch.setattr("quarterturn_lab.runs.loading.loader", lambda _: load)

    def train(task: str, name: str = "residual-d4") -> Path:
        if task in ("classes", "tags", "numbers", "answers"):
            net = edited(SMALL, "residual-plain" if name == "plain" else name, stages=((8,), (8,)))
            net = replace(net, output="sigmoid") if task == "answers" else net
        else:
            net = edited(UNET, "baseline") if name == "plain" else edited(UNET, "roll-all-half", group="D4")
        folder = tmp_path / f"{task}-{name}"
        options = {"epochs": 2, "batch": 10, "lr": 1e-2, "train_size": None, "data": f"/{task}/my folder"}
        training_run.run(tiny(**options).model_copy(update={"net": net, "rotate": "maps"}), folder)
        return folder

    return train


TASKS = ["classes", "tags", "numbers", "answers", "pixels", "instances", "regions"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_page_in_one_file(task: str, trained: Any) -> None:
    run, plain = trained(task), trained(task, "plain")
    choice = {"symmetry": "D4", "why": "images look the same <from> all sides", "sure": False}
    page = write_fit_report(run, plain, choice).path.read_text()
    headline = re.search("<h1>(.*?)</h1>", page, re.DOTALL).group(1)
    assert headline.startswith("D4 network: ")
    assert "all eight orientations" in headline
    assert "ordinary network" in headline
    assert "my folder" in page
    assert "&lt;from&gt;" in page
    assert "<b>" not in page.replace("&lt;b&gt;", "")
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"|<!DOCTYPE[^>]*>|rdf:\w+="[^"]*"', "", page.split("<details>")[0])
    assert "{{" not in page
    assert "nan" not in re.sub(r"<svg.*?</svg>|<pre>.*?</pre>|base64,[^\"]*", "", page, flags=re.DOTALL)
    assert page.count("<img") >= 4
    alone = write_fit_report(plain, output=run / "alone").path.read_text()
    assert "orientations" not in re.search("<h1>(.*?)</h1>", alone, re.DOTALL).group(1)


def test_the_numbers_are_those_of_the_run(trained: Any) -> None:
    run = trained("classes")
    page = write_fit_report(run).path.read_text()
    errors = round(20 * (1 - json.loads((run / "summary.json").read_text())["test"]["accuracy"]))
    low, high = share_interval(errors, 20)
    assert f"{5 * errors:.1f} % errors on 20 test images (95 % interval {100 * low:.1f} to {100 * high:.1f})" in page
    header, *rows = csv.reader((run / "confusion.csv").read_text().splitlines())
    assert tuple(header[1:]) == CLASSES
    counts = np.array([row[1:] for row in rows], dtype=int)
    assert counts.sum() == 20
    assert counts.sum() - counts.trace() == errors


@pytest.mark.parametrize("task", ["classes", "numbers", "regions"])
def test_the_check_of_the_page_finds_a_network_that_is_not_equivariant(task: str, trained: Any) -> None:
    run, plain = judged(trained(task)), judged(trained(task, "plain"))
    kept, broken = turned(run, qt.D4), turned(plain, qt.D4)
    assert kept.exact < 1e-10
    assert kept.changed == 0
    assert kept.most < 1e-5
    assert broken.exact > 1e-6
    assert broken.most > 1e-5


def test_a_difference_is_clear_only_if_its_interval_says_so() -> None:
    wrong = np.random.default_rng(0).random(200) < 0.3
    other = wrong | (np.arange(200) < 30)
    much, little = other, wrong | (np.arange(200) < 3)
    one, two, three = (
        Measure(lambda i, errors=errors: float(errors[i].mean()), "{} % errors", 200, 100.0, 1, "lower", share=True)
        for errors in (wrong, much, little)
    )
    assert "a clear gain" in difference(one, two)
    assert "a clear loss" in difference(two, one)
    assert "too close to call" in difference(one, three)
    assert "too close to call" in difference(one, one)
    higher = replace(one, better="higher")
    assert "a clear loss" in difference(higher, two)


def test_runs_on_other_images_are_not_compared(trained: Any) -> None:
    with pytest.raises(ConfigError, match="other test images"):
        write_fit_report(trained("classes"), trained("regions"))


def test_the_command_writes_the_page_of_one_run(
    trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, plain = trained("tags"), trained("tags", "plain")
    code, out, _ = call(f"report {run} --compare {plain} --output {tmp_path / 'page'}", capsys)
    assert code == 0
    assert out.strip() == str(tmp_path / "page" / "report.html")
    code, _, errors = call(f"report {tmp_path} --compare {plain}", capsys)
    assert code == 2
    assert "one finished run" in errors


def test_calibration_weighs_bins_by_their_images() -> None:
    claimed = np.array([0.95] * 8 + [0.55] * 2)
    right = np.array([True] * 4 + [False] * 4 + [True, False])
    assert calibration(claimed, right).error == pytest.approx(0.8 * 0.45 + 0.2 * 0.05)


# --- mirror images ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flip", "group", "noted"), [(True, "C4", True), (False, "D4", True), (False, "C4", False), (True, None, True)]
)
def test_classes_that_may_be_mirror_images_are_named(flip: bool, group: str | None, noted: bool) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    known = np.eye(3)[np.where(labels == 2, 2, rng.integers(0, 2, 120))] * 0.8 + 0.2 / 3  # left or right by chance
    config = SimpleNamespace(net=SimpleNamespace(group=group), augment=SimpleNamespace(flip=flip))
    run: Any = SimpleNamespace(
        config=config, labels=labels, predicted=known, data=SimpleNamespace(classes=("hook-left", "hook-right", "worm"))
    )
    said = hands(run)
    assert ("hook-left and hook-right" in said) == noted
    assert "worm" not in said
    run.predicted = np.eye(3)[labels] * 0.8 + 0.2 / 3  # all of them known
    assert hands(run) == ""


# --- equal time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "noted"), [(((90, 100), (88, 100)), False), (((90, 100), (50, 100)), True), (((0, 0), (0, 0)), False)]
)
def test_a_comparison_on_a_machine_that_others_used_is_noted(seconds: Any, noted: bool) -> None:
    runs: Any = [
        SimpleNamespace(
            name=name, summary={"cpu_seconds": cpu, "wall_seconds": wall}, config=SimpleNamespace(device="cpu")
        )
        for name, (cpu, wall) in zip(("C4 network", "ordinary network"), seconds, strict=True)
    ]
    assert ("busier while the ordinary network was trained" in unequal(runs)) == noted
    assert unequal(runs[:1]) == ""


def test_a_network_that_gives_one_answer_is_noted() -> None:
    labels = np.array([0] * 18 + [1] * 2)
    data = SimpleNamespace(task="classes", classes=("worm", "egg"))
    run: Any = SimpleNamespace(data=data, labels=labels, predicted=np.tile([0.9, 0.1], (20, 1)), summary={"test": {}})
    assert "worm for every image is right for 18 of 20" in constant(run)
    run.predicted = np.eye(2)[labels]
    assert constant(run) == ""
    numbers: Any = SimpleNamespace(data=SimpleNamespace(task="numbers"), summary={"test": {"r2": -0.1}})
    assert "the mean of the numbers" in constant(numbers)
    numbers.summary["test"]["r2"] = 0.1
    assert constant(numbers) == ""
    masks: Any = SimpleNamespace(data=SimpleNamespace(task="pixels"), summary={"test": {"dice": 0.0}})
    assert constant(masks)
    masks.summary["test"]["dice"] = 0.4
    assert constant(masks) == ""
