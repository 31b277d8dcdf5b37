"""`quarterturn fit --minutes`, on a clock of the test's own: steps take seconds, and the machine's speed changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labtools import call, class_folders
from safetensors.torch import load_file

from quarterturn_lab.evaluation import score
from quarterturn_lab.fit import fitting, symmetry, timing
from quarterturn_lab.fit.pace import epochs_in
from quarterturn_lab.progress import Bars
from quarterturn_lab.report import judged
from quarterturn_lab.runs import run_directory
from quarterturn_lab.settings.config import Config, read
from quarterturn_lab.training import loop

SMALL = "--side 16 --width 8 --blocks 1 --threads 1 --batch 16"
STEP, IMAGE = 10.0, 0.05  # seconds of a step of training, and of scoring an image
Slowness = Callable[[float], float]  # the factor on these at a time


class Clock:
    """Stands for the module `time`: nothing takes time but training steps and scoring."""

    def __init__(self, slowness: Slowness) -> None:
        self.now, self.slowness = 0.0, slowness

    def perf_counter(self) -> float:
        return self.now

    monotonic = process_time = perf_counter

    def pass_by(self, seconds: float) -> None:
        self.now += seconds * self.slowness(self.now)


Start = Callable[..., Clock]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a clock for all that follows; `trains` if weights matter, since real steps take real time too."""
    update, predict = loop._update, score.predict

    def started(slowness: Slowness, trains: bool = False) -> Clock:
        clock = Clock(slowness)

        def slow_update(*values: Any) -> float:
            clock.pass_by(STEP)
            return update(*values) if trains else 1.0

        def slow_predict(config: Any, net: Any, data: Any, indices: Any, *rest: Any, **named: Any) -> Any:
            clock.pass_by(IMAGE * len(indices) * (len(rest[1]) if len(rest) > 1 else 1))
            return predict(config, net, data, indices, *rest, **named)

        for module in (loop, fitting, timing):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(loop, "_update", slow_update)
        for reader in (score, symmetry, judged):
            monkeypatch.setattr(reader, "predict", slow_predict)
        return clock

    return started


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("data") / "bugs", 30)


def from_time(when: float, factor: float) -> Slowness:
    return lambda now: factor if now > when else 1.0


def config_of(run: Path) -> Config:
    return read((run / "config.json").read_text())


def same(a: Path, b: Path) -> bool:
    one, two = (load_file(run / "model.safetensors") for run in (a, b))
    return all(bool((one[name] == two[name]).all()) for name in one)


@pytest.mark.parametrize(
    ("slowness", "how"),
    [
        (from_time(0, 1), "C4"),
        (from_time(60, 2), "C4"),  # as soon as it is planned
        (from_time(60, 0.5), "C4"),
        (from_time(400, 2), "C4"),
        (from_time(100, 2), "auto"),  # while the symmetry is chosen
        (lambda now: 2.0 if now % 120 > 60 else 1.0, "C4"),  # again and again
    ],
)
def test_minutes_hold_while_the_machine_becomes_slower_or_faster(
    slowness: Slowness,
    how: str,
    start: Start,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = start(slowness)
    code, _, errors = call(f"fit {images} --minutes 15 --symmetry {how} {SMALL} --runs-dir {tmp_path}", capsys)
    assert code == 0, errors
    assert 0.9 * 900 < clock.now < 1.1 * 900


def test_a_changed_plan_is_repeated_without_a_clock(
    start: Start, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(from_time(300, 2), trains=True)
    options = f"--keep best {SMALL}"
    command = f"fit {images} --minutes 15 --symmetry D4 {options} --runs-dir"
    assert call(f"{command} {tmp_path / 'a'}", capsys)[0] == 0
    [run] = run_directory.finished(tmp_path / "a")
    assert len(config_of(run).earlier_plans) >= 1
    assert config_of(run).epochs < config_of(run).earlier_plans[0][0]
    start(lambda now: 5.0, trains=True)
    assert call(f"fit --config {run / 'run.toml'} --runs-dir {tmp_path / 'b'}", capsys)[0] == 0
    [again] = run_directory.finished(tmp_path / "b")
    assert config_of(again).identity() == config_of(run).identity()
    assert same(run, again)


@pytest.mark.slow
def test_a_run_that_is_killed_after_a_change_resumes_and_can_be_repeated(
    start: Start,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = start(from_time(60, 2), trains=True)
    command = f"fit {images} --minutes 15 --symmetry C4 {SMALL} --runs-dir {tmp_path / 'a'}"
    update = Bars.update

    def stopping(self: Bars, name: str, step: int, total: int, *rest: Any) -> None:
        update(self, name, step, total, *rest)
        if clock.now > 500:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bars, "update", stopping)
        assert call(command + " --checkpoint-seconds 1e9", capsys)[0] == 130  # no checkpoint: it begins at step 0
    [unfinished] = (tmp_path / "a").rglob("config.json")
    before = config_of(unfinished.parent)
    assert before.earlier_plans
    start(
        lambda now: 1.0, trains=True
    )  # the machine is idle now: the plans that were made stay, and later ones may differ
    assert call(command, capsys)[0] == 0
    [run] = run_directory.finished(tmp_path / "a")
    assert config_of(run).earlier_plans[: len(before.earlier_plans)] == before.earlier_plans
    assert call(f"fit --config {run / 'run.toml'} --runs-dir {tmp_path / 'b'}", capsys)[0] == 0
    [again] = run_directory.finished(tmp_path / "b")
    assert same(run, again)


@pytest.mark.parametrize("length", ["--minutes 15", "--epochs 12"])
def test_the_ordinary_network_gets_the_same_seconds(
    length: str, start: Start, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = start(from_time(1000 if "minutes" in length else 300, 2))  # while the ordinary network is trained
    assert call(f"fit {images} {length} --compare --symmetry C4 {SMALL} --runs-dir {tmp_path}", capsys)[0] == 0
    runs = run_directory.finished(tmp_path)
    rolled, plain = (run_directory.summary(run)["wall_seconds"] for run in runs)
    epoch = 2 * STEP * 3
    assert abs(plain - rolled) <= 0.03 * rolled + epoch
    assert config_of(runs[1]).earlier_plans
    if "minutes" in length:
        assert clock.now < 1.1 * 1800


def test_a_finished_run_gets_the_minutes_that_are_added(
    start: Start, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = start(from_time(1200, 2), trains=True)
    command = f"fit {images} --symmetry C4 {SMALL} --runs-dir {tmp_path / 'a'} --minutes"
    assert call(f"{command} 15", capsys)[0] == 0
    before = clock.now
    assert call(f"{command} 25", capsys)[0] == 0
    assert 0.8 * 600 < clock.now - before < 1.2 * 600
    [run] = run_directory.finished(tmp_path / "a")
    assert call(f"fit --config {run / 'run.toml'} --runs-dir {tmp_path / 'b'}", capsys)[0] == 0
    [again] = run_directory.finished(tmp_path / "b")
    assert same(run, again)


def test_the_command_line_wins_over_the_length_in_a_file(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("epochs = 5\nearlier_plans = [[9, 2]]\n")
    command = f"fit {images} --config {file} --symmetry C4 {SMALL} --epochs 1 --runs-dir {tmp_path}"
    assert call(command, capsys)[0] == 0
    [run] = run_directory.finished(tmp_path)
    assert (config_of(run).epochs, config_of(run).earlier_plans) == (1, ())


def test_small_errors_change_no_plan() -> None:
    assert epochs_in(10, 40, 10.9, 300, 400) == 40  # less than a tenth of what is left
    assert epochs_in(38, 40, 15.0, 20, 400) == 40  # less than 3 % of all
    assert epochs_in(38, 40, 50.0, 20, 400) == 39
    assert epochs_in(39, 40, 50.0, -20, 400) == 40  # the learning rate has to reach zero
