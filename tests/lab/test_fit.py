"""`quarterturn fit`: the plan, the choice of the symmetry, and whole fits of small folders."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labtools import call, nuclei_tree
from PIL import Image
from safetensors.torch import load_file

from quarterturn_lab.data.dataset import Scenes, Settings, ragged
from quarterturn_lab.data.look import Found, look
from quarterturn_lab.data.synthetic import CLASSES, draw
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.fit import plan, symmetry
from quarterturn_lab.fit.fitting import Fit
from quarterturn_lab.fit.request import Request, checked_request, read_file
from quarterturn_lab.fit.symmetry import Evidence, decide, moved
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs import run_directory
from quarterturn_lab.runs.loading import load
from quarterturn_lab.settings.config import read

SMALL = "--side 16 --width 8 --blocks 1 --threads 1 --batch 16"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four kinds of the built-in shapes, in class folders."""
    root = tmp_path_factory.mktemp("data") / "pairs"
    labels = np.arange(120) % 4
    for number, (label, pixels) in enumerate(zip(labels, draw(labels, 16), strict=True)):
        folder = root / CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def found_for(**changes: Any) -> Found:
    values = {"folder": Path("x"), "layout": "", "task": "classes", "classes": ("a", "b"), "counts": (700, 700)}
    values |= {"images": 2000, "parts": {"train": 1400, "valid": 300, "test": 300}, "channels": 1, "floats": False}
    values |= {"sides": (20, 70, 200), "levels": "8 bits", "bad": {}, "notes": ()}
    return Found(**{**values, **changes})


def weights(directory: Path) -> dict[str, Any]:
    return load_file(directory / "model.safetensors")


def same(a: Path, b: Path) -> bool:
    one, two = weights(a), weights(b)
    return one.keys() == two.keys() and all(bool((one[name] == two[name]).all()) for name in one)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_larger_images_where_the_minutes_allow_them() -> None:
    def cost(size: plan.Size) -> float:  # a millisecond for an image of 64 pixels
        return 1400 * 1e-3 * size.positions / 1024

    sides = [plan.size_for(found_for(), seconds, cost).side for seconds in (10, 20, 60, 600)]
    assert sides == [48, 48, 64, 96]  # 96 is the first that half of the images do not exceed
    assert plan.size_for(found_for(sides=(28, 28, 28)), 600, cost).side == 32
    assert plan.size_for(found_for(), None, cost).side == 96
    asked = plan.size_for(found_for(), 60, cost, side=40)
    assert (asked.side, asked.stem_stride) == (40, 1)
    large = found_for(sides=(300, 400, 500))
    assert [plan.size_for(large, 1e6, cost, backbone).side for backbone in (False, True)] == [128, 224]


def test_bf16_where_the_hardware_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.precision_on(torch.device("cpu")) == "fp32"
    for has_it, precision in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True, has=has_it: has)
        assert plan.precision_on(torch.device("cuda")) == precision


def test_fewer_tiles_where_the_minutes_are_few() -> None:
    def cost(size: plan.Size) -> float:  # ten milliseconds for a tile of 64 pixels
        return 400 * size.tiles * 1e-2 * size.positions / 4096

    found = found_for(task="instances", sides=(256, 320, 1388), parts={"train": 400, "valid": 80, "test": 80})
    few, many = (plan.size_for(found, seconds, cost) for seconds in (140, 7200))
    assert (few.side, few.tiles, few.cover) == (64, 1, 25)
    assert 140 / cost(few) > 20
    assert (many.side, many.tiles) == (128, many.cover)


def test_too_few_minutes_name_the_minutes_that_are_needed() -> None:
    plan.check_time(600, 1.0, 20, 60, 1000, 0)
    with pytest.raises(ConfigError, match=r"takes about 1\.7 minutes .* give --minutes 2\.2 or more, --epochs 1"):
        plan.check_time(60, 1.0, 100, 20, 5000, 0)
    with pytest.raises(ConfigError, match=r"give --minutes 4\.3 or more"):
        plan.check_time(60, 0.5, 100, 20, 5000, 1)


def test_warps_follow_the_symmetry() -> None:
    assert plan.warps_of("none") == {"turn": 0.0, "flip": False}
    assert plan.warps_of("D4") == {"turn": 360.0, "flip": True}
    assert plan.warps_of("mirror") == {"turn": 0.0, "flip": True}
    assert plan.warps_of("C2") == {"turn": 0.0, "flip": False}


@pytest.mark.parametrize(
    ("asked", "images", "group"),
    [("auto", "D4", "C4"), ("D4", "D4", "D4"), ("auto", "C4", "C4"), ("auto", "none", "none")],
)
def test_the_network_that_learns_most_for_a_symmetry(asked: str, images: str, group: str, tmp_path: Path) -> None:
    assert Fit(Request(tmp_path, asked), tmp_path, Bars()).network(images) == group


def test_the_users_settings_win() -> None:
    config = plan.config_of(
        found_for(), plan.Size(64, 2, 64), "D4", 7, 3, {"lr": 1e-3, "side": 40}, plan.warps_of("D4")
    )
    assert (config.lr, config.net.side, config.epochs, config.seed) == (1e-3, 40, 7, 3)
    assert (config.net.group, config.net.divide, config.augment.flip) == ("D4", 8, True)
    for name, order in (("C2", 2), ("mirror", 2)):
        other = plan.config_of(found_for(), plan.Size(64, 2, 64), name, 1, 0, {}, plan.warps_of(name))
        assert (other.net.group, other.net.divide, other.net.roll) == (name, order, "all")


# --- the symmetry -----------------------------------------------------------------------------------------------------


def made_up(turned: float = 0.0, mirrored: float = 0.0, turning: float = 0.0, **changes: Any) -> Evidence:
    """Losses around 1, where a constant answer has 2: what is added is a share of what was learned."""
    rng = np.random.default_rng(0)
    images = changes.pop("images", 300)
    upright, other = rng.normal(1, 0.3, images), rng.normal(1 + turning, 0.3, images)
    noise = rng.normal(0, 0.1, (2, images))
    noise -= noise.mean(1, keepdims=True)
    return Evidence(
        upright, upright + turned + noise[0], other, other + mirrored + noise[1], **{"constant": 2.0, **changes}
    )


@pytest.mark.parametrize(
    ("evidence", "symmetry", "sure"),
    [
        ({}, "D4", True),
        ({"mirrored": 0.5}, "C4", True),
        ({"turned": 0.8}, "none", True),
        ({"turned": 0.8, "mirrored": 0.8}, "none", True),
        ({"turned": 0.5, "turning": -0.4}, "D4", True),  # turned images are worse, but turning is the better network
        ({"turned": 0.2, "mirrored": 0.015}, "D4", True),  # clear and too small to matter
        ({"mirrored": 0.05}, "C4", False),
        ({"swaps": np.linspace(-0.2, 0.8, 60)}, "C4", False),
        ({"swaps": np.linspace(-0.5, 0.5, 60)}, "D4", True),
        ({"constant": 1.05}, "C4", False),  # next to nothing was learned
        ({"unresolved": 0.9}, "C4", False),
        ({"images": 12}, "D4", False),
    ],
)
def test_the_evidence_decides(evidence: dict[str, Any], symmetry: str, sure: bool) -> None:
    choice = decide(made_up(**evidence))
    assert (choice.symmetry, choice.sure) == (symmetry, sure)


def test_one_image_is_no_evidence() -> None:
    one = {name: np.array([value]) for name, value in (("upright", 0.1), ("turned", 2.0), ("turning", 0.1))}
    choice = decide(Evidence(**one, mirrored=np.array([0.1]), constant=1.0))
    assert choice.symmetry != "none"
    assert not choice.sure


def test_noise_is_no_evidence() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        losses = rng.normal(1, 0.5, (4, 60))  # unpaired: differences have a standard error of 0.09
        assert decide(Evidence(*losses, constant=1.6)).symmetry in ("D4", "C4")


def test_images_and_labels_are_moved_together(pairs: Path) -> None:
    import quarterturn as qt

    config = plan.config_of(
        look(Settings(folder=str(pairs), side=16, channels=1, rules=2)), plan.Size(16, 1, 8), "C4", 1, 0, {}, {}
    )
    data = load(config)
    turned = moved(data, data.valid, qt.C4, 1)
    assert [turned.names[i] for i in turned.valid] == [data.names[i] for i in data.valid]
    for new, old in zip(turned.valid, data.valid, strict=True):
        assert (turned.images[new] == np.rot90(data.images[old], -1, (1, 2))).all()
        assert turned.labels[new] == data.labels[old]


def test_masks_are_mirrored_with_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right answers for mirrored images cost nothing: they are compared with mirrored masks."""
    masks = np.random.default_rng(0).integers(0, 2, (4, 8, 8)).astype(np.uint8)
    places = np.arange(4)
    data = Scenes(
        ragged([mask[None] for mask in masks]), ragged(list(masks)), ("no", "yes"), tuple("abcd"), places, places, ""
    )
    data = replace(data, valid=places)

    def right(probe: Any, data: Any, indices: Any, group: Any, g: int) -> tuple[Any, Any]:
        seen = moved(data, indices, group, g)
        labels = [seen.labels[i] for i in seen.valid]
        return [label.astype(np.float64) for label in labels], labels

    monkeypatch.setattr(symmetry, "answers", right)
    probe: Any = (None, None)
    found = symmetry.evidence(probe, probe, data)
    assert max(found.turned.max(), found.mirrored.max()) < 0.01


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit", "name the folder of your images"),
        ("fit nowhere", "nowhere does not exist"),
        ("fit DIR --minutes 0", "give a time above zero"),
        ("fit DIR --minutes -3", "give a time above zero"),
        ("fit DIR --minutes inf", "give a time above zero"),
        ("fit DIR --minutes 5 --epochs 3", "give one of the two"),
        ("fit DIR --symmetry D5", "unknown group 'D5'"),
        ("fit DIR --symmetry octa", "octa acts on 3 axes, and an image has two"),
        ("fit DIR --lr inf", "lr: Input should be a finite number"),
        ("fit DIR --epochs 0", "give the number of passes"),
        ("fit DIR --config nowhere.toml", "nowhere.toml cannot be read"),
        ("fit DIR --resume", "there is no run to resume"),
        ("fit DIR --minutes 0.0001 --symmetry C4", "one pass over the 88 training images takes about"),
        ("train folder/roll-all-quarter --group OCTA --data DIR", "octa acts on 3 axes"),
    ],
)
def test_mistakes_are_one_message(
    arguments: str, message: str, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f" --runs-dir {tmp_path / 'runs'}"
    code, _, errors = call(arguments.replace("DIR", str(pairs)) + where, capsys)
    assert code == 2
    assert message in errors
    assert len(errors.strip().splitlines()) == 1 or "expected" in errors


def test_settings_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('epochs = 3\nlabel-smoothing = 0.1\ncolumns = ["a", "b"]\n')
    assert read_file(path) == {"epochs": 3, "label_smoothing": 0.1, "columns": ["a", "b"]}
    path.write_text("epoch = 3\n")
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        read_file(path)
    path.write_text("epochs: 3\n")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_file(path)


def test_the_directory_depends_on_the_request_alone(tmp_path: Path) -> None:
    request = Request(tmp_path / "cells", minutes=5)
    assert request.directory(Path("runs")) == Path("runs/fit/cells/auto/seed0")
    other = checked_request(
        Request(tmp_path / "cells", "d4", seed=2, options={"lr": 0.01, "epochs": 4, "device": "cpu"})
    )
    assert other.directory(Path("runs")) == Path("runs/fit/cells/D4-lr0.01/seed2")
    found = []
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        found.append(Request(tmp_path / "cells", options={"weights": str(tmp_path / name)}).directory(Path("runs")))
    assert found[0] != found[1]  # other pretrained weights are another run


# --- whole fits -------------------------------------------------------------------------------------------------------


def test_a_fit_of_class_folders(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = call(f"fit {pairs} --epochs 2 --compare {SMALL} --runs-dir {tmp_path}", capsys)
    assert code == 0, errors
    run, ordinary = (
        tmp_path / "fit" / "pairs" / name / "seed0"
        for name in (
            "auto-batch16-threads1-side16-width8-blocks1",
            "auto-ordinary-batch16-threads1-side16-width8-blocks1",
        )
    )
    assert sorted(run_directory.finished(tmp_path)) == sorted([run, ordinary])
    for line in (
        "one of 4 classes",
        "symmetry: C4 (not sure)",
        "check: over all orientations",
        "C4 network: ",
        "the same answer for all four orientations",
        "an ordinary network of the same training time",
    ):
        assert line in out
    record = json.loads((run / "fit.json").read_text())
    assert record["choice"]["symmetry"] == record["symmetry"] == "C4"
    code, again, _ = call(f"fit {pairs} --epochs 2 --compare {SMALL} --runs-dir {tmp_path}", capsys)
    assert code == 0
    assert "is finished already" in again
    assert again.splitlines()[-6:] == out.splitlines()[-6:]
    assert (run / "report.html").exists()
    for command in (f"check {run}", f"evaluate {run}", f"predict {run} {pairs} --out {tmp_path / 'p.csv'}"):
        assert call(command, capsys)[0] == 0


@pytest.mark.parametrize("named", [("train", "val", "test"), ("train", "test")], ids=str)
def test_a_fit_of_folders_that_are_split_already(
    named: tuple[str, ...], pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, file in enumerate(sorted(pairs.rglob("*.png"))):
        part = named[1 + number % 2 % (len(named) - 1)] if number % 3 == 0 else "train"
        target = tmp_path / "data" / part / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(file)
    counts = {part: len(list((tmp_path / "data" / part).rglob("*.png"))) for part in named}
    code, out, _ = call(f"fit {tmp_path / 'data'} --epochs 2 {SMALL} --runs-dir {tmp_path / 'runs'}", capsys)
    assert code == 0
    said = next(line for line in out.splitlines() if line.startswith("split: "))
    assert f"{counts['test']} to test" in said
    if "val" in named:
        assert f"{counts['train']} to train, {counts['val']} to validate" in said


def check_resumption(command: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run in `parts` is unfinished, and the command ends it with the weights of the one in `whole`."""
    assert not run_directory.finished(root / "parts")
    code, out, _ = call(command, capsys)
    assert code == 0
    assert "resuming" in out
    [one], [two] = (run_directory.finished(root / name) for name in ("whole", "parts"))
    assert same(one, two)


def test_a_fit_that_is_interrupted_resumes_to_the_same_weights(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"fit {pairs} --epochs 3 --symmetry D4 {SMALL} --checkpoint-seconds 0 --runs-dir"
    assert call(f"{command} {tmp_path / 'whole'}", capsys)[0] == 0
    update = Bars.update

    def stopping(self: Bars, name: str, step: int, total: int, *rest: Any) -> None:
        update(self, name, step, total, *rest)
        if step == total // 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bars, "update", stopping)
        assert call(f"{command} {tmp_path / 'parts'}", capsys)[0] == 130
    check_resumption(f"fit {pairs} --resume --runs-dir {tmp_path / 'parts'}", tmp_path, capsys)


def test_a_fit_that_is_killed_resumes_to_the_same_weights(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"fit {pairs} --epochs 8 --symmetry C4 {SMALL} --checkpoint-seconds 0 --runs-dir"
    assert call(f"{command} {tmp_path / 'whole'}", capsys)[0] == 0
    arguments = [sys.executable, "-m", "quarterturn_lab", *command.split(), str(tmp_path / "parts")]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "parts").rglob("checkpoint.pt")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    check_resumption(f"{command} {tmp_path / 'parts'}", tmp_path, capsys)


def test_a_finished_fit_can_be_made_longer_and_repeated_from_its_file(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"fit {pairs} --symmetry C4 {SMALL} --runs-dir {tmp_path / 'a'}"
    assert call(f"{command} --epochs 2", capsys)[0] == 0
    [run] = run_directory.finished(tmp_path / "a")
    short = weights(run)
    code, out, _ = call(f"fit --config {run / 'run.toml'} --runs-dir {tmp_path / 'b'}", capsys)
    assert code == 0
    [repeated] = run_directory.finished(tmp_path / "b")
    assert same(run, repeated)
    assert read((run / "config.json").read_text()).identity() == read((repeated / "config.json").read_text()).identity()
    code, out, _ = call(f"{command} --epochs 5", capsys)
    assert code == 0
    assert "training it for longer, to 5 epochs" in out
    assert read((run / "config.json").read_text()).earlier_plans == ((2, 2),)
    assert not all(bool((short[name] == value).all()) for name, value in weights(run).items())
    assert "is finished already" in call(f"{command} --epochs 3", capsys)[1]


def test_another_folder_of_the_same_name_is_refused(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"--epochs 1 --symmetry C4 {SMALL} --runs-dir {tmp_path / 'runs'}"
    assert call(f"fit {pairs} {command}", capsys)[0] == 0
    other = tmp_path / "pairs"
    other.symlink_to(pairs)
    assert call(f"fit {other} {command}", capsys)[0] == 0  # the same folder by another name
    other.unlink()
    other.mkdir()
    code, _, errors = call(f"fit {other} {command}", capsys)
    assert code == 2
    assert "holds a run on another folder" in errors


def test_a_fit_of_numbers_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "discs"
    (folder / "images").mkdir(parents=True)
    lines = ["name,size"]
    y, x = np.mgrid[:20, :20] - 9.5
    for i in range(60):
        radius = rng.uniform(2, 9)
        Image.fromarray((200 * (np.hypot(x, y) < radius)).astype(np.uint8)).save(folder / "images" / f"{i}.png")
        lines.append(f"{i}.png,{100 * radius:.1f}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    code, out, errors = call(f"fit {folder} --epochs 30 --symmetry D4 {SMALL} --runs-dir {tmp_path / 'runs'}", capsys)
    assert code == 0, errors
    [run] = run_directory.finished(tmp_path / "runs")
    assert run_directory.summary(run)["task"] == "numbers"
    assert run_directory.summary(run)["test"]["r2"] > 0.5
    assert "D4 network: RMSE " in out
    assert "R² 0." in out
    assert (run / "report.html").exists()


def test_a_fit_of_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nuclei_tree(tmp_path / "cells", 20)
    command = f"fit {folder} --epochs 2 --side 32 --batch 4 --threads 1 --runs-dir {tmp_path / 'runs'}"
    code, out, errors = call(command, capsys)
    assert code == 0, errors
    [run] = run_directory.finished(tmp_path / "runs")
    found, config = run_directory.summary(run), read((run / "config.json").read_text())
    assert found["task"] == "instances"
    assert 0 <= found["test"]["dice"] <= 1
    assert "symmetry: " in out
    assert "--out masks" in out
    assert (config.experiment, config.net.unet) == ("fit-masks", True)


def test_a_fit_of_16_bit_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "cells"
    for name, level in (("dim", 300), ("bright", 500)):  # of 4096: all alike in the upper 8 bits of 16
        (folder / name).mkdir(parents=True)
        for i in range(30):
            pixels = rng.normal(level, 40, (20, 20)).clip(0, 4095).astype(np.uint16)
            Image.fromarray(pixels).save(folder / name / f"{i}.tif")
    code, out, errors = call(f"fit {folder} --epochs 6 --symmetry D4 {SMALL} --runs-dir {tmp_path / 'runs'}", capsys)
    assert code == 0, errors
    [run] = run_directory.finished(tmp_path / "runs")
    assert run_directory.summary(run)["test"]["accuracy"] > 0.9
    assert "16" in next(line for line in out.splitlines() if line.startswith("images: "))


@pytest.mark.slow
def test_minutes_are_kept(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    assert call(f"fit {pairs} --minutes 0.5 {SMALL} --runs-dir {tmp_path}", capsys)[0] == 0
    took = time.monotonic() - start
    assert 10 < took < 60
