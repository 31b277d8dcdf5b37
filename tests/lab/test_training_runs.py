"""Runs: the same seeds give the same losses, a killed run ends with the same weights, and nothing is half written."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from labtools import tiny, weights, worker
from torch import nn

from quarterturn_lab import files
from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.evaluation.score import evaluate
from quarterturn_lab.models.libraries import from_factory
from quarterturn_lab.progress import Bars, clock
from quarterturn_lab.report.table import lines_of, shown
from quarterturn_lab.runs import environment, network, run_directory
from quarterturn_lab.runs.loading import load
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.runs.trust import Trust
from quarterturn_lab.settings.config import Config, difference, read
from quarterturn_lab.training import checkpoint, loop, training_run
from quarterturn_lab.training.batches import Batches
from quarterturn_lab.training.order import epoch_order
from quarterturn_lab.training.schedule import learning_rate
from quarterturn_lab.training.sweep import Where, sweep


@pytest.fixture(autouse=True)
def threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def losses(directory: Path) -> list[float]:
    return [record["train_loss"] for record in run_directory.records(directory)]


# --- the same again ---------------------------------------------------------------------------------------------------


def test_two_runs_have_the_same_losses_and_weights(tmp_path: Path) -> None:
    config = tiny("roll-all-quarter")
    first, again = training_run.run(config, tmp_path / "a"), training_run.run(config, tmp_path / "b")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert len(losses(tmp_path / "a")) == 3
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert first["test"] == again["test"]
    training_run.run(tiny("roll-all-quarter", seed=1), tmp_path / "c")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


def test_the_ways_to_rotate_give_the_same_run_up_to_rounding(tmp_path: Path) -> None:
    maps = training_run.run(tiny("roll-all-quarter"), tmp_path / "maps")
    filters = training_run.run(tiny("roll-all-quarter", rotate="filters", net={"dropout": 0.2}), tmp_path / "filters")
    assert losses(tmp_path / "maps") == pytest.approx(losses(tmp_path / "filters"), rel=1e-4)
    assert maps["parameters"] == filters["parameters"]


def test_turns_are_scored_where_they_are_wanted(tmp_path: Path) -> None:
    result = training_run.run(tiny(epochs=1, score_turns=False), tmp_path / "once")
    assert "test" in result
    assert "test_4_turns" not in result
    [line] = lines_of(tmp_path, "synthetic")
    assert line.turned is None
    assert "4 turns averaged" not in shown([line])[0]
    assert "test_4_turns" in training_run.run(tiny(epochs=1), tmp_path / "both")


def test_a_run_directory_has_everything(tmp_path: Path) -> None:
    config = tiny("pool-mean", net={"group": "D4"}, divide_batch=True, batch=32, weight_decay=1e-3, clip=1.0)
    result = training_run.run(config, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "checkpoint.pt",
        "model.safetensors",
        "summary.json",
    }
    assert read((tmp_path / "config.json").read_text()) == config
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert (environment["batch_images"], environment["batch_pathways"]) == (4, 32)
    assert (result["batch_images"], result["batch_pathways"]) == (4, 32)
    assert result["test"] == result["test_4_turns"] or result["test"]["cross_entropy"] == pytest.approx(
        result["test_4_turns"]["cross_entropy"], abs=1e-5
    )
    assert {"cross_entropy", "kaggle", "accuracy"} <= set(result["train"])
    assert [record["epoch"] for record in run_directory.records(tmp_path)] == [1, 2, 3]
    assert [("test_cross_entropy" in record) for record in run_directory.records(tmp_path)] == [False, True, True]
    opened, data, net = load_with_data(tmp_path)
    assert opened == config
    again = evaluate(config, net, data, data.test, torch.device("cpu"))
    assert again["cross_entropy"] == pytest.approx(result["test"]["cross_entropy"], abs=1e-9)


@pytest.mark.parametrize(
    ("row", "rotate", "last"),
    [
        ("baseline", "maps", True),
        ("pool-mean", "maps", True),
        ("pool-mean", "filters", False),
        ("roll-all-quarter", "maps", True),
        ("roll-all-quarter", "filters", True),
    ],
)
def test_networks_are_in_the_memory_format_in_which_they_are_faster(row: str, rotate: str, last: bool) -> None:
    net = network.net_for(tiny(row, rotate=rotate), tuple("abc"))
    weights = [parameter for parameter in net.parameters() if parameter.dim() == 4 and parameter.shape[1] > 1]
    assert weights
    assert all((weight.stride(1) == 1) == last for weight in weights)


def test_training_learns(tmp_path: Path) -> None:
    result = training_run.run(tiny("pool-mean", train_size=400, epochs=12, lr=4e-3), tmp_path)
    assert losses(tmp_path)[-1] < 0.85 * losses(tmp_path)[0]
    assert result["test"]["accuracy"] > 0.2


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = training_run.run(tiny(), tmp_path)
    before = (tmp_path / "model.safetensors").stat().st_mtime_ns
    assert training_run.run(tiny(), tmp_path) == first
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_training_core has one with everything
def test_a_run_killed_at_any_moment_ends_with_the_same_weights(tmp_path: Path) -> None:
    config = tiny("roll-all-quarter", train_size=200, epochs=8, batch=10, checkpoint_seconds=0.0)
    training_run.run(config, tmp_path / "whole")
    killed = tmp_path / "killed"
    steps = []
    for stop_after in (1, 4):  # epochs: then at once, in the middle of whatever is being written
        process = worker(config, killed)
        deadline = time.monotonic() + 200
        while len(run_directory.records(killed)) < stop_after and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL
        assert not (killed / "summary.json").exists()
        steps.append(checkpoint.newest(killed)[1]["numbers"]["step"])
    assert 0 < steps[0] < steps[1] < 8 * 20
    messages = []
    training_run.run(config, killed, lambda step, total, loss: messages.append(step))
    assert messages[0] == steps[1] + 1  # it went on, it did not begin again
    assert weights(killed) == weights(tmp_path / "whole")
    assert losses(killed) == losses(tmp_path / "whole")


def test_a_run_interrupted_inside_an_epoch_goes_on_there(tmp_path: Path) -> None:
    config = tiny(checkpoint_seconds=0.0)
    training_run.run(config, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(step: int, total: int, loss: float) -> None:
        if step == 5:  # 3 steps make an epoch
            raise Stop

    with pytest.raises(Stop):
        training_run.run(config, tmp_path / "stopped", stop)
    training_run.run(config, tmp_path / "stopped")
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_run_killed_after_its_last_step_is_finished(tmp_path: Path) -> None:
    first = training_run.run(tiny(), tmp_path)
    before = weights(tmp_path)
    (tmp_path / "summary.json").unlink()
    (tmp_path / "model.safetensors").unlink()
    again = training_run.run(tiny(), tmp_path)
    assert again["test"] == first["test"]
    assert weights(tmp_path) == before
    assert len(losses(tmp_path)) == 3


def test_a_directory_that_another_process_writes_to_is_refused(tmp_path: Path) -> None:
    with run_directory.locked(tmp_path):
        code = (
            "import sys; from pathlib import Path; from quarterturn_lab.runs import run_directory\n"
            "try:\n  with run_directory.locked(Path(sys.argv[1])): print('got it')\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"RunError {tmp_path} is in use by another process (PID {os.getpid()})" in run.stdout
    with run_directory.locked(tmp_path):  # free again
        pass


def test_a_config_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    training_run.run(tiny(), tmp_path)
    with pytest.raises(ConfigError, match=r"other settings \(lr: 0\.001 -> 0\.01\)"):
        training_run.run(tiny(lr=0.01), tmp_path)
    with pytest.raises(ConfigError, match=r"net\.hidden"):
        training_run.run(tiny(net={"hidden": (8, 8)}), tmp_path)
    assert difference(tiny(), tiny(checkpoint_seconds=1.0, device="cpu")) == []
    (tmp_path / "summary.json").unlink()
    text = (tmp_path / "config.json").read_text().replace("16", "8")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"checkpoint\.pt does not fit the network"):
        training_run.run(read(text), tmp_path)
    (tmp_path / "config.json").write_text(text.replace('"epochs"', '"epoch"'))
    with pytest.raises(ConfigError, match="epoch"):
        training_run.run(tiny(), tmp_path)


def test_other_images_than_the_checkpoints_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training_run.run(tiny(), tmp_path)
    (tmp_path / "summary.json").unlink()
    data = load(tiny())
    monkeypatch.setattr(training_run, "load", lambda config: replace(data, fingerprint="other"))
    with pytest.raises(ConfigError, match="other images"):
        training_run.run(tiny(), tmp_path)


def test_a_finished_run_is_not_taken_for_one_of_other_images(tmp_path: Path) -> None:
    found = training_run.run(tiny(data="here"), tmp_path)
    data = load(tiny())
    assert training_run.run(tiny(data="moved"), tmp_path, data=data) == found
    with pytest.raises(ConfigError, match=r"other images: give the same --data"):
        training_run.run(tiny(data="others"), tmp_path, data=replace(data, fingerprint="other"))


# --- a full disk ------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"could not write .*file: no space left on device"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_run_on_a_full_disk_fails_with_a_message_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    config = tiny(checkpoint_seconds=0.0)

    class Stop(Exception):
        pass

    def stop(step: int, total: int, loss: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        training_run.run(config, tmp_path, stop)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))  # as a quota: no file may grow larger
    try:
        with pytest.raises(RunError, match=r"could not write .*checkpoint\.pt: file too large.*same command again"):
            training_run.run(config, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    training_run.run(config, tmp_path)
    training_run.run(config, tmp_path.with_name("whole"))
    assert weights(tmp_path) == weights(tmp_path.with_name("whole"))


# --- divergence, options ----------------------------------------------------------------------------------------------


def test_divergence_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = tiny(lr=1e6, epochs=20, checkpoint_seconds=0.0)
    with pytest.raises(RunError, match=r"training diverges: the loss is .* Lower --lr"):
        training_run.run(config, tmp_path)
    saved = checkpoint.read(tmp_path / "checkpoint.pt")
    assert np.isfinite(saved["numbers"]["recent_loss"])
    assert not (tmp_path / "summary.json").exists()


def test_weights_that_the_last_step_spoils_are_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(epochs=1)
    step = torch.optim.Adam.step
    taken = []

    def spoilt(self: torch.optim.Adam, *args: object, **options: object) -> None:
        step(self, *args, **options)
        taken.append(1)
        if len(taken) == 3:  # the last: no loss comes after it
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(float("nan"))

    monkeypatch.setattr(torch.optim.Adam, "step", spoilt)
    with pytest.raises(RunError, match="weights are not finite after the last step"):
        training_run.run(config, tmp_path)
    assert not (tmp_path / "summary.json").exists()


def test_nan_is_divergence() -> None:
    state = loop.new_state(tiny(), nn.Linear(2, 2), torch.device("cpu"))
    loop._watch(state, 2.0, 0)
    with pytest.raises(RunError, match="diverges"):
        loop._watch(state, float("nan"), 1)


def test_the_learning_rate_drops_tenfold() -> None:
    config = tiny(drops=(0.5, 0.9))
    rates = [learning_rate(config, step, 100) for step in (0, 49, 50, 89, 90, 99)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])


def test_weight_decay_spares_biases() -> None:
    groups = loop.new_state(tiny(weight_decay=0.1), nn.Linear(3, 2), torch.device("cpu")).optimizer.param_groups
    assert [(group["params"][0].dim(), group["weight_decay"]) for group in groups] == [(2, 0.1), (1, 0.0)]


def test_every_image_is_seen_once_in_an_epoch() -> None:
    config = tiny(batch=7)
    data = load(config)
    orders = [epoch_order(config, data, epoch) for epoch in (0, 1)]
    assert all(np.array_equal(np.sort(order), data.train) for order in orders)
    assert not np.array_equal(*orders)
    batches = Batches(config, data, torch.device("cpu"))
    labels = torch.cat([labels for _, (_, labels, _), _ in batches.from_step(0, batches.per_epoch)])
    assert labels.tolist() == data.labels[orders[0]].tolist()
    ahead = list(batches.from_step(3, 5))
    assert torch.equal(ahead[1][1][0], batches.make(4)[0])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_an_option(precision: str, tmp_path: Path) -> None:
    training_run.run(tiny(precision=precision), tmp_path / "half")
    assert losses(tmp_path / "half") != losses_of_fp32(tmp_path)
    assert losses(tmp_path / "half") == pytest.approx(losses_of_fp32(tmp_path), rel=0.05)


def test_half_precision_that_would_crash_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "CPUINFO", tmp_path / "cpuinfo")
    found = []
    for flags, program in (("avx512", "1 / 0"), ("amx_bf16", "pass"), ("amx_bf16", "import os; os.abort()")):
        (tmp_path / "cpuinfo").write_text(f"flags: {flags}\n")
        monkeypatch.setattr(environment, "PRODUCT", program)
        environment.bf16_fault.cache_clear()
        found.append(environment.bf16_fault() is None)
    assert found == [True, True, False]
    with pytest.raises(RunError, match="set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before starting, or use --precision"):
        training_run.run(tiny(precision="bf16"), tmp_path / "run")
    environment.bf16_fault.cache_clear()


def losses_of_fp32(tmp_path: Path) -> list[float]:
    training_run.run(tiny(), tmp_path / "fp32")
    return losses(tmp_path / "fp32")


@pytest.mark.slow
def test_compiled_runs_agree(tmp_path: Path) -> None:
    training_run.run(tiny("roll-all-quarter", net={"dropout": 0.0}), tmp_path / "eager")
    training_run.run(tiny("roll-all-quarter", net={"dropout": 0.0}, compile=True), tmp_path / "compiled")
    assert losses(tmp_path / "eager") == pytest.approx(losses(tmp_path / "compiled"), rel=1e-3)


class Noted:
    """A tracker that keeps what it is told."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory, self.seen, self.closed = directory, [], 0
        NOTED.append(self)

    def log(self, step: int, values: dict[str, float]) -> None:
        self.seen.append((step, values))

    def close(self) -> None:
        self.closed += 1


NOTED: list[Noted] = []


def test_a_tracker_of_ones_own_sees_what_is_recorded(tmp_path: Path) -> None:
    NOTED.clear()
    training_run.run(tiny(track=f"{__name__}:Noted"), tmp_path)
    [tracker] = NOTED
    assert [values for _, values in tracker.seen] == run_directory.records(tmp_path)
    assert tracker.closed == 1
    assert tracker.directory == tmp_path


def test_a_tracker_is_closed_when_a_run_fails(tmp_path: Path) -> None:
    NOTED.clear()
    with pytest.raises(RunError, match="diverges"):
        training_run.run(tiny(track=f"{__name__}:Noted", lr=1e6), tmp_path)
    assert NOTED[0].closed == 1


def test_what_is_no_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gave int: an object with log\(step, values\)"):
        training_run.run(tiny(track=f"{__name__}:no_tracker"), tmp_path)


def no_tracker(directory: Path, config: Config) -> int:
    return 3


def test_tensorboard_is_a_tracker(tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    training_run.run(tiny(tensorboard=True), tmp_path)
    events = loading.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    shown, records = events.Scalars("train_loss"), run_directory.records(tmp_path)
    assert [event.step for event in shown] == [record["step"] for record in records]
    assert [event.value for event in shown] == pytest.approx([record["train_loss"] for record in records])


def test_tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match="pip install"):
        training_run.run(tiny(tensorboard=True), tmp_path)


def test_unusable_devices_are_refused(tmp_path: Path) -> None:
    for device in ("cuda:7", "warp-drive"):
        with pytest.raises(RunError, match=f"device '{device}' cannot be used"):
            environment.pick_device(device)


# --- networks of one's own --------------------------------------------------------------------------------------------

FACTORY = """
from torch import nn
def net(channels, side, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, outputs))
"""


def test_a_network_of_ones_own_may_import_its_neighbours_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_neighbour.py").write_text(FACTORY)
    (tmp_path / "late_nets.py").write_text(
        "def net(**sizes):\n    from late_neighbour import net\n    return net(**sizes)"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path not in ("", str(tmp_path))])
    assert network.net_for(tiny(factory="late_nets:net"), ("a", "b"))[1].out_features == 2


def test_a_network_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_nets.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    config = tiny(factory="own_nets:net")
    result = training_run.run(config, tmp_path / "run")
    assert result["parameters"] == 15 * 15 * 10 + 10
    assert load_with_data(tmp_path / "run", None, Trust("own_nets:net"))[2][1].out_features == 10
    for name, message in {
        "own_nets": "write package",
        "no_such:net": "cannot import",
        "own_nets:ne": "did you mean",
    }.items():
        with pytest.raises(Exception, match=message):
            from_factory(name)


# --- many runs --------------------------------------------------------------------------------------------------------


def test_a_sweep_reuses_resumes_and_names_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tiny(), tiny("pool-mean", lr=1e6, epochs=20)
    jobs = [(good, tmp_path / "good/seed0"), (bad, tmp_path / "bad/seed0")]
    with (
        Bars(interval=0.1) as bars,
        pytest.raises(RunError, match=r"1 of 2 runs failed; bad seed 0: training diverges"),
    ):
        sweep(jobs, Where(2), bars)
    assert run_directory.summary(tmp_path / "good/seed0")["row"] == "baseline"
    stamp = (tmp_path / "good/seed0/summary.json").stat().st_mtime_ns
    with Bars() as bars:
        sweep(jobs[:1], Where(2), bars)
    assert (tmp_path / "good/seed0/summary.json").stat().st_mtime_ns == stamp
    assert "1 of 1 runs are finished already" in capsys.readouterr().out
    with Bars() as bars, pytest.raises(ConfigError, match="other settings"):
        sweep([(tiny(lr=0.5), tmp_path / "good/seed0")], Where(1), bars)


def test_a_worker_does_not_outlive_the_one_who_started_it(tmp_path: Path) -> None:
    config = tiny(epochs=100_000, checkpoint_seconds=0.0)
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'quarterturn_lab.training.worker',"
        " sys.argv[1]], stdin=subprocess.PIPE); p.stdin.write(sys.stdin.buffer.read()); p.stdin.close();"
        " print(p.pid, flush=True);p.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    parent.stdin.write(config.model_dump_json().encode())
    parent.stdin.close()
    child = int(parent.stdout.readline())
    deadline = time.monotonic() + 200
    while not (tmp_path / "checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(child)
    assert (tmp_path / "checkpoint.pt").exists()
    with run_directory.locked(tmp_path):
        pass


def running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_plain_lines_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(interval=0.0) as bars:
        bars.update("net", 1, 4, 2.0, 32)
        time.sleep(0.01)
        bars.update("net", 2, 4, 1.5, 32)
        bars.update("net", 4, 4, 1.0, 32)
        bars.update("net", 4, 4, 1.0, 32)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "net:  25%  loss 2.000"
    assert "images/s" in lines[1]
    assert "left" in lines[1]
    assert len(lines) == 3
    assert clock(61) == "1:01"
