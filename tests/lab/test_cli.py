"""The command line, as a user meets it: examples, nearest names, one message for a mistake, and the report."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from labtools import call, class_folders, tiny, unsealed
from PIL import Image

from quarterturn_lab.errors import RunError
from quarterturn_lab.progress import Bars
from quarterturn_lab.report import table
from quarterturn_lab.report.html import report
from quarterturn_lab.runs import run_directory
from quarterturn_lab.training import training_run
from quarterturn_lab.training.sweep import Where, sweep

COMMANDS = (
    "fit",
    "train",
    "table",
    "study",
    "evaluate",
    "check",
    "predict",
    "submit",
    "export",
    "report",
    "demo",
    "doctor",
)
COMMANDS += ("data info", "data verify")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=5000"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three rows, two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for row in ("baseline", "pool-mean", "roll-all-quarter"):
        for seed in (0, 1):
            config = tiny(row, seed=seed, epochs=2)
            training_run.run(config, root / "synthetic" / row / f"seed{seed}")
    return root


def appearing(root: Path, name: str) -> list[Path]:
    """Wait until there is a file of that name below a directory."""
    deadline = time.monotonic() + 200
    while not (found := list(root.rglob(name))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(f"{command} --help", capsys)
    assert code == 0
    assert f"Example: quarterturn {command}" in out


@pytest.mark.parametrize(
    "code",
    [
        "import quarterturn_lab.settings.config",
        "import quarterturn_lab.settings.experiments",
        "import quarterturn_lab.cli.app",
        "from quarterturn_lab.cli import app; app.app(['--help'], result_action='return_value')",
        "from quarterturn_lab.cli import app; app.app(['train', '--help'], result_action='return_value')",
    ],
)
def test_settings_and_help_do_not_import_what_is_heavy(code: str) -> None:
    heavy = ("torch", "numpy", "scipy", "matplotlib", "quarterturn")
    code = f"{code}\nimport sys; sys.exit(str([name for name in {heavy} if name in sys.modules] or ''))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train plankton/rol-all-quarter", "unknown row 'rol-all-quarter': did you mean 'roll-all-quarter'"),
        ("train planktn/baseline", "unknown experiment 'planktn': did you mean 'plankton'"),
        ("train plankton/baseline", "give --data DIR"),
        ("train plankton/baseline --data /no/such/folder", "/no/such/folder does not exist; expected"),
        ("train synthetic/pool-mean --group D44", "unknown group 'D44'"),
        ("train synthetic/baseline --group D4", "has no group"),
        ("train synthetic/baseline --lr -1", "lr: Input should be greater than 0"),
        ("train synthetic/baseline --lr inf", "lr: Input should be a finite number"),
        ("train synthetic/baseline --zoom inf", "zoom: Input should be a finite number"),
        ("train synthetic/baseline --dropout nan", "dropout=nan: give a rate"),
        ("train synthetic/baseline --side 0", "side=0"),
        ("train synthetic/baseline --side 1", "the network does not take images of 1 x 1"),
        ("train synthetic/baseline --channels 3", "the images have 1 channels: give --channels 1"),
        ("train synthetic/baseline --side 999999", "give a smaller side"),
        ("train synthetic/baseline --seed 99999999999999999999", "seed: Input should be less than"),
        ("train synthetic/baseline --seed -1", "greater than or equal to 0, got -1\n"),
        ("train synthetic/baseline --net :", "write package.module:function"),
        ("train synthetic/baseline --net os:path", "'os:path' is a module: name a function"),
        ("train synthetic/baseline --net builtins:dict", "--net builtins:dict returned dict: return a torch.nn.Module"),
        ("train synthetic/roll-all-quarter --group OCTA", "3 axes, and an image has two: use C4"),
        ("train synthetic/baseline --runs-dir file", "file is a file, and a folder is needed"),
        ("train synthetic/baseline --runs-dir /proc/none", "/proc/none cannot be used"),
        ("table synthetic --rows baseline --runs-dir /proc/none", "/proc/none cannot be used"),
        ("table synthetic --jobs -1", "--jobs -1: give the number of runs at the same time, 1 or more"),
        ("table synthetic --jobs 0", "--jobs 0"),
        ("demo --jobs 0", "--jobs 0"),
        ("study small-set --data x --jobs -2 --output .", "--jobs -2"),
        ("train synthetic/baseline --device warp", "device 'warp' cannot be used"),
        ("train synthetic/baseline --net no_such_module:f", "cannot import no_such_module"),
        ("train galaxies/baseline", "give --data DIR"),
        ("table synthetic --rows baselin", "unknown row 'baselin': did you mean 'baseline'"),
        ("table sinthetic", "unknown experiment 'sinthetic': did you mean 'synthetic'"),
        ("table synthetic --runs 0", "at least one run"),
        ("evaluate nowhere", "nowhere is not a run directory"),
        ("check nowhere", "nowhere is not a run directory"),
        ("report nowhere", "no finished runs below nowhere"),
        ("data info nowhere", "nowhere does not exist; expected"),
        ("data verify . --max-pixels -1", "max_pixels: Input should be greater than or equal to 1"),
    ],
)
def test_mistakes_are_one_message_and_code_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    code, _, errors = call(arguments, capsys)
    assert code == 2
    assert errors.startswith("quarterturn: ")
    assert message in errors
    assert "Traceback" not in errors


def test_unknown_commands_are_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = call("trian x", capsys)
    assert code != 0
    assert 'Did you mean "train"?' in out + errors


TINY_RUN = "--side 15 --epochs 1 --train-size 60 --batch 20"


def test_train_evaluate_check_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"train synthetic/roll-all-quarter --seed 3 --group D4 --rotate filters {TINY_RUN} --runs-dir {tmp_path}"
    code, out, _ = call(command, capsys)
    assert code == 0
    [directory] = run_directory.finished(tmp_path)
    assert directory.parts[-2].startswith("roll-all-quarter-D4-filters-")
    assert f"-> {directory}" in out
    code, again, _ = call(command, capsys)
    assert code == 0
    assert again.splitlines()[-4:] == out.splitlines()[-4:]
    code, out, _ = call(f"{command} --lr 0.01", capsys)
    assert code == 0
    assert [path for path in run_directory.finished(tmp_path) if path != directory and str(path) in out]
    code, out, _ = call(f"check {directory}", capsys)
    assert code == 0
    assert re.search(r"conv2 +RollConv +orientations permuted", out)
    assert re.search(r"dense1 +Linear +pathways permuted", out)
    assert re.search(r"output +Linear +unchanged", out)
    code, out, _ = call(f"evaluate {directory} --turns 8", capsys)
    assert code == 0
    record = json.loads((directory / "evaluation.json").read_text())
    averaged = next(scores for name, scores in record.items() if "8 turns" in name)
    assert set(averaged) == set(record["test"])
    assert np.sum(record["confusion"]) == 1000
    assert call(f"evaluate {directory} --turns 0", capsys)[0] == 2


def test_a_plain_network_fails_the_check(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(f"check {finished}/synthetic/baseline/seed0", capsys)
    assert code == 1
    assert re.search(r"conv1 +Conv2d +none", out)
    assert "'conv1'" in out.splitlines()[-1]  # the first layer that breaks it
    code, _, errors = call(f"check {finished}/synthetic/baseline/seed0 --group octa", capsys)
    assert code == 2
    assert "3 axes, and an image has two" in errors


def test_table_runs_all_rows_and_reuses_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"table synthetic --runs 1 --rows baseline pool-mean --jobs 2 --group D4 {TINY_RUN} --runs-dir {tmp_path}"
    code, _, errors = call(command, capsys)
    assert code == 0, errors
    assert (tmp_path / "report.html").exists()
    lines = {line.label: line for line in table.lines_of(tmp_path, "synthetic")}
    assert set(lines) == {"baseline", "pool-mean-D4"}  # a plain row has no group
    assert lines["pool-mean-D4"].seeds == (0,)
    assert lines["pool-mean-D4"].pairs == 1
    assert (tmp_path / "synthetic.md").exists()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    assert call(command, capsys)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")} == stamps


def test_a_failure_is_shown_whole_and_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    command = f"table folder --data {tmp_path}/data --runs 1 --rows baseline --runs-dir {tmp_path}/runs"
    code, _, errors = call(command, capsys)
    assert code == 2
    assert "baseline seed 0: no images in" in errors  # the first line of the message
    assert "<class>/<image>.jpg" in errors  # and its last


def test_a_crash_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "crash.py").write_text("def net(**_):\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with Bars() as bars, pytest.raises(RunError, match=r"division by zero \(all of it: .*failed.txt\)"):
        sweep([(tiny(factory="crash:net"), tmp_path / "runs" / "seed0")], Where(1), bars)
    assert "return 1 / 0" in (tmp_path / "runs/seed0/failed.txt").read_text()


def test_a_network_that_the_last_step_spoils_is_not_called_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "train synthetic/baseline --side 15 --train-size 60 --batch 60 --epochs 1 --lr 1e30"  # a single step
    code, _, errors = call(f"{command} --runs-dir {tmp_path}", capsys)
    assert code == 2
    assert "after the last step, the outputs are not finite. Lower --lr" in errors
    assert run_directory.finished(tmp_path) == []


@pytest.mark.parametrize("content", [None, b"", b"no weights", b"\xff" * 100])
def test_wrong_weights(content: bytes | None, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shutil.copytree(finished / "synthetic/baseline/seed0", tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()
    if content is not None:
        (tmp_path / "run/model.safetensors").write_bytes(content)
    for command in ("check", "evaluate"):
        code, _, errors = call(f"{command} {tmp_path}/run", capsys)
        assert code == 2
        assert "model.safetensors" in errors


@pytest.mark.parametrize("name", ["summary.json", "config.json"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\x00"])
def test_damaged_records_are_named(
    name: str, content: bytes | None, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "synthetic/baseline/seed0", tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    if content is not None:
        (tmp_path / "run" / name).write_bytes(content)
    for command in ("check", "evaluate"):
        code, _, errors = call(f"{command} {tmp_path}/run", capsys)
        assert code == 2
        assert name in errors


def test_weights_of_another_network(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished / "synthetic/baseline/seed0", tmp_path / "run")
    shutil.copy(finished / "synthetic/roll-all-quarter/seed0/model.safetensors", tmp_path / "run")
    unsealed(tmp_path / "run")
    code, _, errors = call(f"check {tmp_path}/run", capsys)
    assert code == 2
    assert "the weights do not fit config.json" in errors


def test_a_terminated_table_ends_its_runs(tmp_path: Path) -> None:
    command = (
        f"table synthetic --runs 1 --rows baseline --epochs 100000 --side 15 --train-size 60 --runs-dir {tmp_path}"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "quarterturn_lab", *command.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    [progress] = appearing(tmp_path, "progress.json")
    directory = progress.parent
    process.terminate()
    assert process.wait(timeout=200) == 143
    with run_directory.locked(directory):  # nobody holds it any more
        assert not (directory / "summary.json").exists()


def test_the_table_is_arithmetic_on_the_summaries(finished: Path) -> None:
    lines = {line.label: line for line in table.lines_of(finished, "synthetic")}
    assert list(lines) == ["baseline", "pool-mean", "roll-all-quarter"]
    values = {
        row: [run_directory.summary(finished / f"synthetic/{row}/seed{s}")["test"]["cross_entropy"] for s in (0, 1)]
        for row in lines
    }
    pool = lines["pool-mean"]
    assert pool.test == pytest.approx((np.mean(values["pool-mean"]), np.std(values["pool-mean"], ddof=1)))
    gaps = np.subtract(values["pool-mean"], values["baseline"])
    assert pool.difference == pytest.approx((gaps.mean(), gaps.std(ddof=1)))
    assert lines["baseline"].difference is None
    text = table.markdown(list(lines.values()))
    assert f"| {np.mean(values['pool-mean']):.4f} ± " in text
    assert "paper" not in text  # the embedded set is not in the paper
    assert table.as_csv(list(lines.values())).count("\n") == 4


def test_the_papers_figures_stand_beside_plankton(finished: Path, tmp_path: Path) -> None:
    source = finished / "synthetic/pool-mean/seed0"
    target = tmp_path / "plankton/pool-mean/seed0"
    target.mkdir(parents=True)
    for name in ("summary.json", "config.json"):
        (target / name).write_text(
            (source / name).read_text().replace('"experiment": "synthetic"', '"experiment": "plankton"')
        )
    unsealed(target)
    assert "0.6781 ± 0.0041" in table.markdown(table.lines_of(tmp_path, "plankton"))
    for name in ("summary.json", "config.json"):
        (target / name).write_text((target / name).read_text().replace('"C4"', '"D4"'))
    assert "0.6781" not in table.markdown(table.lines_of(tmp_path, "plankton"))  # the paper had turns alone


def test_the_report_is_one_page_that_needs_nothing_else(finished: Path, tmp_path: Path) -> None:
    page = report(finished, tmp_path).read_text()
    outside = re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#|\'#|"#)[^)]*\)|@import|<script', page)
    assert [found for found in outside if not found.startswith(('href="data:', 'xlink:href="data:'))] == []
    for title in ("Rotation sensitivity", "Predictions for rotated test images", "Confusion matrix"):
        assert title in page
    assert (tmp_path / "synthetic.csv").exists()
    assert "| pool-mean | 2 |" in (tmp_path / "report.md").read_text()
    again = report(finished, tmp_path / "again").read_text()
    assert again == page  # the same runs make the same page


def test_the_report_does_without_the_data(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(finished / "synthetic/baseline/seed0", tmp_path / "synthetic/baseline/seed0")
    config = tmp_path / "synthetic/baseline/seed0/config.json"
    changed = json.loads(config.read_text()) | {"loader": "folder", "data": "/no/such/folder"}
    config.write_text(json.dumps(changed))
    unsealed(config.parent)
    page = report(tmp_path).read_text()
    assert "/no/such/folder does not exist" in page
    assert "Training loss" in page


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_the_report_in_a_browser(finished: Path, tmp_path: Path) -> None:
    page = report(finished, tmp_path)
    picture = tmp_path / "page.png"
    browser = [str(CHROMIUM), *QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,2000"]
    subprocess.run([*browser, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True, timeout=120)
    with Image.open(picture) as image:
        assert image.size == (1200, 2000)
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert pixels.std() > 10  # not blank
    coloured = (pixels.max(2) - pixels.min(2) > 60).mean(axis=1)  # curves, bands, answers, filters
    assert (coloured[:1000] > 0).any()
    assert (coloured[1000:] > 0).sum() > 100
    document = subprocess.run([*browser, "--dump-dom", page.as_uri()], check=True, capture_output=True, timeout=120)
    text = document.stdout.decode()
    assert text.count("<svg") == page.read_text().count("<svg") > 0
    assert "roll-all-quarter" in text


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call("doctor", capsys)
    assert code == 0
    assert re.search(r"ok +torch", out)
    assert re.search(r"ok +equivariance +largest error", out)


def test_data_info_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(tmp_path)
    code, out, _ = call(f"data info {root}", capsys)
    assert code == 0
    assert {"24", "2", "14", "21"} <= set(re.findall(r"\d+", out))  # images, classes, the longest sides
    assert call(f"data verify {root}", capsys)[0] == 0
    (root / "ant" / "0.png").write_bytes(b"broken")
    code, out, _ = call(f"data verify {root}", capsys)
    assert code == 1
    assert "ant/0.png" in out
    assert "bee" not in out


def test_skip_bad_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(tmp_path / "data", count=15)
    (root / "bee" / "7.png").write_bytes(b"broken")
    command = f"train folder/baseline --data {root} --side 15 --channels 1 --epochs 1 --batch 10 --runs-dir {tmp_path}"
    code, _, errors = call(command, capsys)
    assert code == 2
    assert "bee/7.png cannot be read" in errors
    code, _, errors = call(f"{command} --skip-bad", capsys)
    assert code == 0, errors
    [directory] = run_directory.finished(tmp_path)
    assert run_directory.summary(directory)["skipped_images"] == 1


def test_an_interrupt_is_said_and_the_checkpoint_resumes(tmp_path: Path) -> None:
    command = "train synthetic/baseline --side 15 --train-size 200 --epochs 2000 --checkpoint-seconds 0"
    process = subprocess.Popen(
        [sys.executable, "-m", "quarterturn_lab", *command.split(), "--runs-dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )
    [checkpoint] = appearing(tmp_path, "checkpoint.pt")
    process.send_signal(2)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "quarterturn: ended by SIGINT, saved after step" in errors
    assert "Traceback" not in errors
    assert checkpoint.exists()


def test_a_closed_pipe_ends_a_command_quietly() -> None:
    command = [sys.executable, "-m", "quarterturn_lab", "doctor"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()  # as head does when it has seen enough
    _, errors = process.communicate(timeout=200)
    assert (process.returncode, errors) == (141, "")
