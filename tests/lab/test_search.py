"""The search of `fit`: what is searched, that the best is found, and that it goes on after an interruption."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from labtools import call, class_folders

from quarterturn_lab.errors import RunError
from quarterturn_lab.fit import plan, search
from quarterturn_lab.fit.fitting import read_plan
from quarterturn_lab.fit.request import Request
from quarterturn_lab.fit.search import Search, options_of, searched, space
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.run_directory import NEEDED
from quarterturn_lab.settings.config import Config
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.training.sweep import Job, Where

BASE = config_for("plankton", "residual-c4", lr=0.01)
SPACES = {"lr": (0.002, 0.05), "width": (16, 32, 64)}


class Runs:
    """Stands for the sweep: a run's score is best with a learning rate of 0.02 and a width of 64."""

    def __init__(self, stop_after: int | None = None, fail: bool = False) -> None:
        self.trained: list[str] = []
        self.stop_after, self.fail = stop_after, fail

    def __call__(self, jobs: list[Job], where: Where, bars: Bars) -> None:
        for config, directory in jobs:
            if (directory / "summary.json").exists():
                continue
            if len(self.trained) == self.stop_after:
                raise KeyboardInterrupt
            self.trained.append(directory.parent.name)
            if self.fail:
                raise RunError("1 of 1 runs failed")
            score = abs(config.lr - 0.02) + (64 - config.net.stages[0][0]) / 100
            directory.mkdir(parents=True)
            about = {name: {str: "classes", dict: {}}.get(kind, 0) for name, kind in NEEDED.items()}
            about |= {"group": None, "valid": {"cross_entropy": score}}
            (directory / "summary.json").write_text(json.dumps(about))


def made(params: dict[str, object]) -> Config:
    return config_for("plankton", "residual-c4", **params)


def found_by(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int = 12) -> dict[str, object]:
    monkeypatch.setattr(search, "sweep", runs)
    with Bars() as bars:
        return searched(tmp_path, Search(trials), BASE, "classes", SPACES, made, bars)


def test_the_best_is_found_and_the_plan_is_tried_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best = found_by(Runs(), tmp_path, monkeypatch)
    assert best["width"] == 64
    assert abs(best["lr"] - 0.02) < 0.01  # type: ignore[operator]
    width = BASE.net.stages[0][0]
    assert f"trial 0: lr 0.01, width {width}: cross-entropy" in capsys.readouterr().out


def test_it_goes_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Runs(stop_after=5), Runs()
    with pytest.raises(KeyboardInterrupt):
        found_by(first, tmp_path, monkeypatch)
    found_by(second, tmp_path, monkeypatch)
    assert first.trained == [f"trial-{i:03d}" for i in range(5)]
    assert second.trained == [f"trial-{i:03d}" for i in range(5, 12)]  # the one that was under way is not lost
    again = Runs()
    assert found_by(again, tmp_path, monkeypatch)["width"] == 64
    assert again.trained == []


def test_a_journal_that_a_kill_has_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        found_by(Runs(stop_after=5), tmp_path, monkeypatch)
    with (tmp_path / "search/journal.log").open("ab") as file:
        file.write(b'{"op_code":6,"work')
    rest = Runs()
    found_by(rest, tmp_path, monkeypatch)
    assert rest.trained == [f"trial-{i:03d}" for i in range(5, 12)]
    assert found_by(Runs(), tmp_path, monkeypatch)["width"] == 64  # the journal can be read again


@pytest.mark.parametrize("content", [b"no\n{}\n", b"[1]\n", b'{"op_code": 99}\n', b"{}\n", b"\xff\xfe\x00\n\n"])
def test_a_damaged_journal_is_named(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search/journal.log").write_bytes(content)
    with pytest.raises(RunError, match=r"journal\.log is damaged \(.*\): remove .*/search, and run the same command"):
        found_by(Runs(), tmp_path, monkeypatch)


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    path, request = tmp_path / "plan.json", Request(tmp_path).to_json()
    size = asdict(plan.Size(15, 1, 8))
    whole = {"request": request, "size": size, "symmetry": "C4", "config": BASE.model_dump_json()}
    path.write_text(json.dumps(whole, default=str))
    assert read_plan(path)[1:] == (plan.Size(15, 1, 8), "C4", BASE)
    for change in (
        {"request": 1},
        {"size": 1},
        {"size": {"a": 1}},
        {"symmetry": ...},
        {"config": "{}"},
        {"config": ...},
    ):
        changed = {name: value for name, value in {**whole, **change}.items() if value is not ...}
        path.write_text(json.dumps(changed, default=str))
        with pytest.raises(RunError, match=r"plan\.json is damaged"):
            read_plan(path)


def test_trials_that_all_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(fail=True)
    with pytest.raises(RunError, match="no trial of the search has finished"):
        found_by(runs, tmp_path, monkeypatch, 3)
    assert len(runs.trained) == 3


def test_what_is_searched() -> None:
    found = space(BASE, "D4", {}, group_is_free=True)
    assert found["lr"] == pytest.approx((0.002, 0.05))
    assert set(found["group"]) == {"none", "C4", "D4"}
    assert set(found["head"]) == {"invariants", "mean", "max"}
    assert len(found["width"]) == 3
    assert "group" not in space(BASE, "D4", {}, group_is_free=False)
    assert "none" in space(BASE, "C4", {}, group_is_free=True)["group"]
    assert "D4" not in space(BASE, "C4", {}, group_is_free=True)["group"]  # mirror images differ
    assert set(space(BASE, "C4", {"lr": 0.1, "width": 32, "pool": "max"}, True)) == {"group"}
    assert options_of({"head": "mean"}, "none") == {}


def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = class_folders(tmp_path / "images", 12)
    for options, why in {
        "--search 0": "--search 0: give the number of trials",
        "--search-minutes -1": "--search-minutes -1",
        "--executor slurm": "are for the runs of --search",
    }.items():
        code, _, error = call(f"fit {folder} --runs-dir {tmp_path} {options}", capsys)
        assert (code, error.count("\n")) == (2, 1)
        assert why in error
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    code, _, error = call(f"fit {folder} --runs-dir {tmp_path} --search 3", capsys)
    assert code == 2
    assert 'pip install "quarterturn[lab,search]"' in error
