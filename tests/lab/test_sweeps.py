"""Many runs: failed ones are tried again; jobs of a cluster (submitit's local one) are followed, saved and requeued."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from labtools import call, tiny
from safetensors.torch import load_file

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.progress import Bars
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training import local_run, training_run
from quarterturn_lab.training.cluster import JOB, Cluster, parsed
from quarterturn_lab.training.sweep import Where, sweep

NETS = """
import os, pathlib
from torch import nn

def net(channels, side, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, outputs))

def fails_once(channels, side, outputs):
    mark = pathlib.Path(__file__).with_name("tried")
    if not mark.exists():
        mark.touch()
        raise MemoryError("no room\\nat all")
    return net(channels, side, outputs)

def fails(channels, side, outputs):
    mark = pathlib.Path(__file__).with_name("count")
    mark.write_text(mark.read_text() + "x" if mark.exists() else "x")
    raise KeyError("some bug")
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with networks, where processes find it."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "sweep_nets.py").write_text(NETS)
    source = str(Path(training_run.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{source}")
    return folder


def run_of(name: str, tmp_path: Path, **options: object) -> tuple[Config, Path]:
    config = tiny(**{"factory": f"sweep_nets:{name}", "epochs": 1, "eval_points": 1, **options})
    return config, tmp_path / "runs" / "synthetic" / name / "seed0"


class Fake:
    """A run that ends at once with the next of these codes, and says so."""

    def __init__(self, config: Config, directory: Path, codes: list[int]) -> None:
        self.config, self.directory, self.code = config, directory, codes.pop(0)

    def poll(self) -> int:
        if self.code == 0:
            (self.directory / "summary.json").write_text("{}")
        return self.code

    def message(self) -> str:
        return f"Traceback\nended with {self.code}"

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("codes", "retries", "left", "ends"),
    [
        ([1, 0], 1, 0, True),  # tried again
        ([1, 1, 0], 1, 1, False),  # only once
        ([1, -9, 1, 0], 3, 0, True),
        ([1, 0], 0, 1, False),
        ([2, 0], 5, 1, False),  # a mistake would come again
    ],
)
def test_how_often_a_run_is_tried(
    codes: list[int], retries: int, left: int, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny(), tmp_path / "row" / "seed0"
    job[1].mkdir(parents=True)
    monkeypatch.setattr(local_run, "start", lambda config, directory: Fake(config, directory, codes))
    with Bars() as bars:
        if ends:
            sweep([job], Where(jobs=1, retries=retries), bars)
        else:
            with pytest.raises(RunError, match="1 of 1 runs failed; row seed 0: "):
                sweep([job], Where(jobs=1, retries=retries), bars)
            assert "Traceback" in (job[1] / "failed.txt").read_text()
    assert len(codes) == left


class FakeCluster:
    """Jobs that end at once with the next of these codes."""

    folder = Path()

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes

    def start(self, runs: list[tuple[Config, Path]]) -> list[Fake]:
        return [Fake(config, directory, self.codes) for config, directory in runs]


def test_a_job_that_gave_way_is_no_failure(tmp_path: Path) -> None:
    """One that SIGTERM has ended is queued again without a retry, however often; a crash is none of these."""
    job = tiny(), tmp_path / "row" / "seed0"
    job[1].mkdir(parents=True)
    codes = [143, 143, -15, 143, 0]
    with Bars() as bars:
        sweep([job], Where(executor="slurm", retries=0), bars, FakeCluster(codes))  # type: ignore[arg-type]
    assert codes == []
    (job[1] / "summary.json").unlink()
    with Bars() as bars, pytest.raises(RunError, match="1 of 1 runs failed"):
        sweep([job], Where(executor="slurm", retries=0), bars, FakeCluster([143, 1, 0]))  # type: ignore[arg-type]


def test_damaged_progress_does_not_end_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"[1]", b"{}", b"\xff\xfe\x00", b'{"step": null, "total": [], "loss": 1}', b"1e999"):
        job = tiny(), tmp_path / "row" / "seed0"
        job[1].mkdir(parents=True)
        (job[1] / "progress.json").write_bytes(content)
        monkeypatch.setattr(local_run, "start", lambda config, directory: Fake(config, directory, [0]))
        with Bars() as bars:
            sweep([job], Where(jobs=1), bars)
        shutil.rmtree(tmp_path / "row")


@pytest.mark.slow
def test_a_failed_run_is_tried_again_and_then_reported(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [run_of("fails_once", tmp_path), run_of("fails", tmp_path)]
    with (
        Bars() as bars,
        pytest.raises(RunError, match="1 of 2 runs failed; fails seed 0: KeyError: 'some bug'") as error,
    ):
        sweep(jobs, Where(jobs=2), bars)
    assert (jobs[0][1] / "summary.json").exists()
    assert (nets / "count").read_text() == "xx"  # once, and once more
    assert "fails_once seed 0 failed, and is tried again" in capsys.readouterr().out
    assert str(jobs[1][1] / "failed.txt") in str(error.value)
    assert "Traceback" in (jobs[1][1] / "failed.txt").read_text()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.slow
def test_jobs_of_a_cluster(nets: Path, tmp_path: Path) -> None:
    """One that is warned on its way saves, is queued again, and ends with the weights of one that was not."""
    config, directory = run_of("net", tmp_path, train_size=2000, batch=2, epochs=12, checkpoint_seconds=3600.0)
    jobs = [(config, directory), run_of("fails", tmp_path)]
    cluster = Cluster(tmp_path / "runs", kind="local")
    found: dict[str, int] = {}

    def warn() -> None:
        """Send SIGUSR1 to the first job in the middle of its training."""
        end = time.monotonic() + 120
        while time.monotonic() < end and not found:
            time.sleep(0.02)
            try:
                step = json.loads((directory / "progress.json").read_text())["step"]
            except (OSError, ValueError):
                continue
            if step > 100:
                os.kill(int(children(started[0].job._process.pid)[0]), signal.SIGUSR1)
                found["step"] = step

    started = []
    begin = cluster.start
    cluster.start = lambda runs: [started.append(run) or run for run in begin(runs)]  # type: ignore[method-assign]
    thread = threading.Thread(target=warn)
    thread.start()
    with Bars() as bars, pytest.raises(RunError, match="1 of 2 runs failed; fails seed 0: KeyError: 'some bug'"):
        sweep(jobs, Where(executor="slurm", retries=0), bars, cluster)
    thread.join()
    assert found["step"] < 12_000
    log = started[0].job.stdout() + started[0].job.stderr()
    assert "Requeued job" in log
    whole = tmp_path / "whole"
    sys.path.insert(0, str(nets))
    try:
        training_run.run(config, whole)
    finally:
        sys.path.remove(str(nets))
    for key, value in load_file(whole / "model.safetensors").items():
        assert torch.equal(value, load_file(directory / "model.safetensors")[key])
    assert not (directory / JOB).exists()
    with Bars() as bars:
        sweep(jobs[:1], Where(executor="slurm"), bars, cluster)  # finished: nothing is submitted
    assert len(started) == 2


def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table = f"table synthetic --runs 1 --rows baseline --runs-dir {tmp_path}"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for options, why in {
        "--executor slurm": "there is no Slurm here",
        "--executor slurm --slurm partition=": "--slurm partition=: give options of sbatch as name=value",
        "--executor slurm --slurm time=4:00:00": "give whole minutes",
        "--slurm partition=gpu": "--slurm has options for --executor slurm",
        "--retries -1": "--retries -1",
        "--jobs 0": "--jobs 0",
    }.items():
        code, _, error = call(f"{table} {options}", capsys)
        assert (code, error.count("\n")) == (2, 1)
        assert why in error
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r'pip install "quarterturn\[lab,slurm\]"'):
        Cluster(tmp_path)
    assert parsed(("time=90",)) == {"time": 90}
