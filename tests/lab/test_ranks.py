"""Several processes that train one network: they take the steps of one, and what goes wrong is said in one line."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import TORCHRUN, killed_ranks
from labtools import call, class_folders, nuclei_tree, small, tiny
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

import quarterturn as qt
from quarterturn_lab import ranks
from quarterturn_lab.cli import app, doctor
from quarterturn_lab.errors import ConfigError, Lost
from quarterturn_lab.runs.run_directory import records
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training import loop, training_run
from quarterturn_lab.training.batches import shares


class Doubled(nn.Module):
    """A network in float64, so that two orders of summation agree to many digits."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.double())


def normed(channels: int, side: int, outputs: int) -> nn.Module:
    """A D4 network with batch norms of ours and of torch's, and a layer that gets no gradient."""
    net = nn.Sequential(
        qt.SliceConv(qt.D4, channels, 4, 3, rotate="filters"),
        qt.BatchNorm(qt.D4, 4, rotate="filters"),
        nn.ReLU(),
        qt.RollConv(qt.D4, 4, 4, 3, rotate="filters"),
        qt.BatchNorm(qt.D4, 4, rotate="filters"),
        qt.Pool(qt.D4, rotate="filters"),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, outputs),
    )
    net[0].unused = nn.Linear(2, 2)
    return Doubled(net)


# 60 images: batches of 19, 19, 19 and 3. In three parts, those are of 7, 6, 6, and of one image each.
NORMED: dict[str, Any] = {
    "factory": "test_ranks:normed",
    "optimizer": "sgd",
    "lr": 0.05,
    "batch": 19,
    "validation": 0.3,
    "keep": "best",
    "ema": 0.5,
    "clip": 1.0,
    "eval_points": 3,
    "train_size": 60,
}


def configs(folder: Path) -> dict[str, Config]:
    return {
        "norms": tiny(**NORMED, label_smoothing=0.1),
        "parts": tiny(**NORMED, accumulate=3, class_weights=True),
        "scenes": small("nuclei", "roll-all-quarter", folder / "tree", optimizer="sgd", batch=3),
    }


def train_all(folder: Path) -> None:
    with ranks.leading(2) as leads:
        if leads:
            for name, config in configs(folder).items():
                training_run.run(config, folder / "two" / name)
            (folder / "two" / "apart").mkdir()
            apart(folder / "two" / "apart")


@ranks.together
def apart(folder: Path) -> None:
    """Train with batch norms that are not synchronised."""
    loop.sync_batch_norm = lambda net, on=True: net  # type: ignore[assignment]
    training_run._run(tiny(**NORMED), folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of one process and those of two."""
    folder = tmp_path_factory.mktemp("ranks")
    nuclei_tree(folder / "tree")
    for name, config in {**configs(folder), "apart": tiny(**NORMED)}.items():
        training_run.run(config, folder / "one" / name)
    assert ranks.launch(2, train_all, folder) == 0
    return folder


def scores(directory: Path) -> list[float]:
    """The losses and scores of all epochs and of the end."""
    found = json.loads((directory / "summary.json").read_text())
    last = [value for part in ("test", "valid", "train") for value in found.get(part, {}).values()]
    return [value for record in records(directory) for value in record.values()] + last


@pytest.mark.parametrize("name", ["norms", "parts", "scenes"])
def test_two_processes_take_the_steps_of_one(trained: Path, name: str) -> None:
    one, two = (trained / kind / name for kind in ("one", "two"))
    close = 1e-8 if name != "scenes" else 1e-4  # float64, but for scenes
    assert scores(two) == pytest.approx(scores(one), rel=max(close, 1e-6))  # losses are in float32
    weights = load_file(two / "model.safetensors")
    for key, value in load_file(one / "model.safetensors").items():
        torch.testing.assert_close(weights[key], value, rtol=close, atol=close)
    assert json.loads((two / "environment.json").read_text())["processes"] == 2
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir())


def test_batch_norms_that_are_not_synchronised_would_differ(trained: Path) -> None:
    one, two = (records(trained / kind / "apart") for kind in ("one", "two"))
    assert one[-1]["train_loss"] != pytest.approx(two[-1]["train_loss"], rel=1e-4)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_image_of_a_batch_is_shared_once(parts: int, world: int) -> None:
    for images in range(1, 20):
        seen: dict[int, float] = {}
        found = [shares(images, parts, rank, world) for rank in range(world)]
        assert len({len(mine) for mine in found}) == 1  # all have as many parts, or they would wait for each other
        for mine in found:
            for part, whole in mine:
                assert part.stop > part.start
                for i in range(part.start, part.stop):
                    seen[i] = seen.get(i, 0) + (1 / world if whole else 1)
        assert seen == pytest.approx(dict.fromkeys(range(images), 1.0))


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_numbers_of_devices_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = f"train synthetic/baseline --runs-dir {tmp_path} --devices"
    for wrong, why in (("0", "devices"), ("500", "500 devices cannot share a batch of 32 images")):
        code, _, error = call(f"{run} {wrong}", capsys)
        assert code == 2
        assert why in error
        assert error.count("\n") == 1
    (tmp_path / "images").mkdir()
    code, _, error = call(f"fit {tmp_path / 'images'} --runs-dir {tmp_path} --devices 0", capsys)
    assert code == 2
    assert "--devices 0: give the number of processes" in error


@pytest.mark.slow
def test_a_mistake_that_shows_in_the_processes_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app.main(["fit", str(class_folders(tmp_path / "images", 2)), "--devices", "2"])
    assert end.value.code == 2
    error = capfd.readouterr().err
    assert error.startswith("quarterturn: 4 files leave")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_torchrun_ends_with_the_mistake_as_the_root_cause(tmp_path: Path) -> None:
    command = [*TORCHRUN, "-m", "quarterturn_lab", "fit", str(class_folders(tmp_path / "images", 2))]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    said = run.stderr.splitlines()
    assert next(line for line in said if line.startswith("quarterturn: ")).startswith("quarterturn: 4 files leave")
    cause = run.stderr.rpartition("Root Cause")[2]
    assert "rank      : 0" in cause
    assert "traceback : quarterturn: 4 files leave" in cause


def test_what_torchrun_is_told_is_in_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    ranks.tell_torchrun("nobody listens")
    for place in (tmp_path / "error.json", tmp_path / "missing" / "error.json"):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(place))
        ranks.tell_torchrun("first")
        ranks.tell_torchrun("second")  # of what came after the cause
    failure = ProcessFailure(0, 1, 2, str(tmp_path / "error.json"))
    assert "traceback : first" in str(ChildFailedError("quarterturn_lab", {0: failure}))
    assert abs(failure.timestamp - time.time()) < 60


def test_torchrun_is_told_the_cause_and_no_consequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))

    def ends(with_error: Exception) -> None:
        def looks() -> bool:
            raise with_error

        monkeypatch.setattr(doctor, "doctor", looks)
        assert call("doctor", capsys)[0] == 2

    ends(Lost("another process has ended"))
    assert not (tmp_path / "error.json").exists()
    ends(ConfigError("a mistake"))
    assert "quarterturn: a mistake" in (tmp_path / "error.json").read_text()


def test_other_numbers_than_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="2 processes were started: leave --devices out"), ranks.leading(3):
        pass


def test_a_slurm_job_with_tasks_needs_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    with pytest.raises(ConfigError, match="not started by srun"), ranks.leading():
        pass
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(ConfigError, match="--ntasks-per-node"), ranks.leading():
        pass
    monkeypatch.setenv("SLURM_NTASKS", "1")
    with ranks.leading() as leads:
        assert leads


# --- killed processes -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_resumes_after_a_process_is_killed(tmp_path: Path, victim: int) -> None:
    found = killed_ranks(tmp_path, kills=2, victim=lambda: victim)
    assert found == {"kills": 2, "same_weights": True}
