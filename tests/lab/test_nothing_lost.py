"""Faults: damaged files, signals and left-over temporary files. Killed runs are in test_training_runs.py."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import killing
import pytest
import torch
from labtools import call, tiny, weights

from quarterturn_lab import files, stopping
from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.runs import run_directory
from quarterturn_lab.training import checkpoint, training_run


class Stop(Exception):
    pass


def stopped_at(step: int, directory: Path, **options: object) -> Path:
    def stop(now: int, total: int, loss: float) -> None:
        if now == step:
            raise Stop

    with pytest.raises(Stop):
        training_run.run(tiny(checkpoint_seconds=0.0, **options), directory, stop)
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests change copies of it."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    training_run.run(tiny(checkpoint_seconds=0.0), directory)
    return directory


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def flipped(path: Path, bit: int) -> bytes:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    return bytes(content)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_noticed(whole: Path, tmp_path: Path) -> None:
    path = whole / checkpoint.NEWEST
    bits = 8 * path.stat().st_size
    assert checkpoint.read(path)["numbers"]["step"] == 9
    some = random.Random(0).sample(range(bits), 300)
    copy = tmp_path / checkpoint.NEWEST
    for bit in [*range(8 * checkpoint.START), *some, *range(bits - 200, bits)]:
        copy.write_bytes(flipped(path, bit))
        with pytest.raises(RunError, match=r"checkpoint\.pt is damaged"):
            checkpoint.read(copy)
    for length in (0, 1, checkpoint.START, bits // 16, bits // 8 - 1):
        copy.write_bytes(path.read_bytes()[:length])
        with pytest.raises(RunError, match=r"checkpoint\.pt is damaged"):
            checkpoint.read(copy)


def test_a_flipped_bit_in_the_weights_of_an_older_checkpoint_is_noticed(whole: Path, tmp_path: Path) -> None:
    saved, path = checkpoint.read(whole / checkpoint.NEWEST), tmp_path / checkpoint.NEWEST
    torch.save(saved, path)
    assert checkpoint.read(path).keys() == saved.keys()
    numbers = bytes(next(value for value in saved["net"].values() if value.numel() > 100).untyped_storage())
    start = path.read_bytes().index(numbers)
    for bit in range(8 * start, 8 * (start + len(numbers)), 997):
        path.write_bytes(flipped(path, bit))
        with pytest.raises(RunError, match=r"checkpoint\.pt is damaged \(the checksum of .* differs"):
            checkpoint.read(path)
        path.write_bytes(flipped(path, bit))


def test_a_damaged_checkpoint_falls_back_to_the_one_before(whole: Path, tmp_path: Path) -> None:
    directory = stopped_at(5, tmp_path / "run")
    newest = directory / checkpoint.NEWEST
    newest.write_bytes(flipped(newest, 4000))
    said: list[str] = []
    steps: list[int] = []
    training_run.run(
        tiny(checkpoint_seconds=0.0), directory, lambda step, total, loss: steps.append(step), say=said.append
    )
    assert steps[0] == 5  # the one before has 4 steps
    assert said == [
        f"{newest} is damaged (its checksum differs from its content): going on from checkpoint.previous.pt, step 4"
    ]
    assert weights(directory) == weights(whole)
    assert (directory / checkpoint.DAMAGED).exists()


def test_the_best_is_kept_and_is_the_last_resort(tmp_path: Path) -> None:
    options = {"keep": "best", "validation": 0.2, "eval_points": 3}
    directory = stopped_at(8, tmp_path / "run", **options)
    found = {name: checkpoint.read(directory / name) for name in checkpoint.NAMES}
    best = found[checkpoint.BEST]
    assert best["numbers"]["step"] in (3, 6)  # the end of an epoch
    assert all(torch.equal(value, best["net"][name]) for name, value in best["best"]["weights"].items())
    for name in (checkpoint.NEWEST, checkpoint.PREVIOUS):
        (directory / name).write_bytes(b"")
    training_run.run(tiny(**options), directory)
    training_run.run(tiny(**options), tmp_path / "whole")
    assert weights(directory) == weights(tmp_path / "whole")


def test_a_run_killed_between_two_renames_goes_on(whole: Path, tmp_path: Path) -> None:
    directory = stopped_at(5, tmp_path / "run")
    (directory / checkpoint.NEWEST).unlink()
    training_run.run(tiny(), directory)
    assert weights(directory) == weights(whole)


def test_where_no_checkpoint_is_whole_the_run_says_so(tmp_path: Path) -> None:
    directory = stopped_at(3, tmp_path / "run")
    for name in (checkpoint.NEWEST, checkpoint.PREVIOUS):
        (directory / name).write_bytes(b"no")
    with pytest.raises(RunError, match=r"checkpoint\.pt is damaged .*: remove it, and run the same command again"):
        training_run.run(tiny(), directory)


def test_no_code_in_a_checkpoint_runs(whole: Path, tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "was here"),)

    path = tmp_path / checkpoint.NEWEST
    torch.save({**checkpoint.read(whole / checkpoint.NEWEST), "net": Runs()}, path)
    with pytest.raises(RunError, match="is damaged"):
        checkpoint.read(path)
    assert not (tmp_path / "was here").exists()


# --- files of a finished run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", run_directory.SEALED)
def test_a_flipped_bit_in_a_finished_run_is_noticed(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / name
    for bit in random.Random(0).sample(range(8 * path.stat().st_size), 20):
        path.write_bytes(flipped(path, bit))
        code, _, errors = call(f"export {run} --onnx {run}/net.onnx", capsys)
        assert (code, errors.count("\n")) == (2, 1), errors
        assert f"{path} is damaged (it differs from the checksum in summary.json)" in errors
        path.write_bytes(flipped(path, bit))


def test_runs_without_checksums_are_opened(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads((run / "summary.json").read_text())
    del found["sha256"]
    (run / "summary.json").write_text(json.dumps(found))
    code, _, errors = call(f"evaluate {run} --turns 1", capsys)
    assert code == 0, errors


@pytest.mark.parametrize("target", ["torchscript", "hub"])
def test_an_export_to_a_full_disk_is_one_line(target: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # as a quota: no file may grow larger
    try:
        code, _, errors = call(f"export {run} --to {target} --out {run}/out", capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert f"could not write {run}/out: file too large" in errors
    assert not (run / "out").exists()
    assert not list(run.glob(".*"))


# --- signals ----------------------------------------------------------------------------------------------------------

COMMAND = "train synthetic/baseline --side 15 --train-size 200 --epochs 2000 --checkpoint-seconds 1000 --runs-dir"


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)  # SIGINT: test_cli
def test_a_signal_saves_first(number: int, tmp_path: Path) -> None:
    def heard() -> None:  # background jobs of a shell ignore some
        for each in stopping.SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-m", "quarterturn_lab", *COMMAND.split(), str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heard,
    )
    deadline = time.monotonic() + 200
    while not list(tmp_path.rglob("metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    name = signal.Signals(number).name
    assert process.returncode == 128 + number
    first, second = errors.splitlines()
    assert first.startswith(f"quarterturn: {name}: saving a checkpoint")
    assert second.startswith(f"quarterturn: ended by {name}, saved after step")
    [saved] = tmp_path.rglob(checkpoint.NEWEST)
    assert checkpoint.read(saved)["numbers"]["step"] > 0


def test_a_second_signal_ends_at_once() -> None:
    with stopping.later() as asked:
        assert asked() == 0
        signal.raise_signal(signal.SIGTERM)
        assert asked() == signal.SIGTERM
        with pytest.raises(stopping.Stopped) as stopped:
            signal.raise_signal(signal.SIGTERM)
    assert stopped.value.code == 143


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping.later() as asked, stopping.at_once():
            signal.raise_signal(signal.SIGHUP)
            assert asked() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# --- temporary files --------------------------------------------------------------------------------------------------


def test_files_of_killed_writers_are_removed_and_no_others(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    gone, here = int(process.stdout), files._host()
    stale = tmp_path / f".checkpoint.pt.{here}.{gone}.partial"
    folder = tmp_path / f".masks.{here}.{gone}.partial"
    kept = [
        tmp_path / f".checkpoint.pt.{here}.{os.getpid()}.partial",  # of a process that runs
        tmp_path / f".checkpoint.pt.elsewhere.{gone}.partial",  # of another machine, new
        tmp_path / f".checkpoint.pt.{gone}",  # not ours
        tmp_path / f"checkpoint.pt.{here}.{gone}.partial",
    ]
    old = tmp_path / f".checkpoint.pt.elsewhere.{gone + 1}.partial"
    for path in (stale, old, *kept):
        path.write_text("half")
    os.utime(old, (0, 0))
    folder.mkdir()
    (folder / "one.png").write_text("half")
    files.write_atomically(tmp_path / "checkpoint", "another name")
    assert stale.exists()
    assert folder.exists()
    files.clear_unfinished(tmp_path)
    assert not stale.exists()
    assert not folder.exists()
    assert not old.exists()
    assert all(path.exists() for path in kept)


def test_a_run_removes_what_a_killed_one_left(run: Path) -> None:
    left = run / f".checkpoint.pt.{files._host()}.{2**22 + 1}.partial"  # no process has this number
    left.write_text("half")
    training_run.run(tiny(checkpoint_seconds=0.0), run)
    assert not left.exists()


def test_a_finished_run_is_read_without_its_lock(run: Path) -> None:
    """Which cannot be had in the directory of another user."""
    (run / "lock").unlink()
    (run / "lock").mkdir()
    assert training_run.run(tiny(checkpoint_seconds=0.0), run) == run_directory.summary(run)
    with pytest.raises(ConfigError, match="other settings"):
        training_run.run(tiny(checkpoint_seconds=0.0, lr=0.5), run)


def test_names_as_long_as_a_file_system_allows_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    files.write_atomically(path, "whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


# --- kills at random moments ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thirty_kills_at_random_moments_end_in_the_same_weights(tmp_path: Path) -> None:
    found = killing.killed_run(tmp_path, kills=30, seed=0)
    assert found["kills"] == 30
    assert found["while_writing"] > 0
    assert found["same_weights"]
    assert found["left_over"] == 0
