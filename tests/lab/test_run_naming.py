"""Where runs go: one directory for each set of settings, and tables that find runs by their settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from quarterturn_lab.cli import table
from quarterturn_lab.report.table import lines_of
from quarterturn_lab.runs.naming import LONGEST, directory_of
from quarterturn_lab.settings.config import Config
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.settings.networks import ROWS
from quarterturn_lab.studies import records
from quarterturn_lab.studies.catalogue import STUDIES
from quarterturn_lab.studies.definition import Entry


def place(name: str, row: str, **options: Any) -> str:
    return str(directory_of(config_for(name, row, **options), Path("r")))


def test_directories_say_what_differs() -> None:
    assert place("synthetic", "pool-mean") == "r/synthetic/pool-mean/seed0"
    assert place("synthetic", "pool-mean", group="D4", seed=2) == "r/synthetic/pool-mean-D4/seed2"
    found = place("synthetic", "roll-all-quarter", rotate="filters", group="D4", epochs=80, dropout=0.5, turn=90.0)
    assert found == "r/synthetic/roll-all-quarter-D4-filters-dropout0.5-turn90.0-epochs80/seed0"
    assert place("plankton", "baseline", data="/any", device="cpu") == "r/plankton/baseline/seed0"  # the same run
    assert place("synthetic", "baseline", factory="nets.own:net") == "r/synthetic/nets.own.net/seed0"
    for row in ROWS:
        assert place("synthetic", row) == f"r/synthetic/{row}/seed0"


def test_the_demo_shares_its_runs_with_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Swept(Exception):
        pass

    def swept(todo: list[tuple[Config, Path]], *_: Any) -> None:
        raise Swept([directory.parent.name for _, directory in todo])

    monkeypatch.setattr(table, "sweep", swept)
    with pytest.raises(Swept) as found:
        table.run_demo(tmp_path, 1)
    assert set(found.value.args[0]) == {"pool-mean", "roll-all-quarter-filters", "baseline"}


def test_other_settings_have_another_directory() -> None:
    values: dict[str, list[Any]] = {
        "epochs": [1, 11],
        "lr": [1e-5, 0.1],
        "drops": [(), (0.5,), (0.5, 0.25)],
        "clip": [1.0],
        "divide_batch": [True],
        "skip_bad": [True],
        "longest": [30, 31],
        "precision": ["bf16", "fp16"],
        "rotate": ["filters"],
        "output": ["relu", "sigmoid"],
        "relu_after": [True],
        "border": ["reflection"],
        "turn": [0.0, 90.0],
        "stages": ["1-1-4", "1-2-3"],
        "factory": ["a.b:net", "a:b", "odd name/net:f"],
    }
    single = [{name: value} for name, some in values.items() for value in some]
    pairs = [{**a, **b} for a in single for b in single if a.keys() < {*a, *b}]
    everything = {name: some[-1] for name, some in values.items()}
    asked_for = {
        config_for("synthetic", "pool-mean", **o).model_dump_json(): o for o in [{}, *single, *pairs, everything]
    }
    places = [place("synthetic", "pool-mean", **options) for options in asked_for.values()]
    assert len(set(places)) == len(places)
    assert all(len(Path(found).parts) == 4 and len(Path(found).parts[2]) <= LONGEST for found in places)


def test_a_study_and_a_command_share_a_run_where_they_ask_for_the_same() -> None:
    options = {"epochs": 3, "dropout": 0.5, "train_size": 60}
    entry = Entry("synthetic", "roll-all-quarter", 1, options)
    of_study = records.directory_of(entry, 0, Path("r"))
    by_hand = {**options, "rotate": "filters"}  # as a study has it
    assert str(of_study) == place("synthetic", "roll-all-quarter", **by_hand)
    assert config_for("synthetic", "roll-all-quarter", **by_hand) == entry.config(0)
    for other in ({"epochs": 4}, {"dropout": 0.2}, {"lr": 0.1}, {"rotate": "maps"}, {"side": 15}):
        assert str(of_study) != place("synthetic", "roll-all-quarter", **{**by_hand, **other})
    for study in STUDIES.values():
        found = [(records.directory_of(entry, 0, Path("r")), entry.config(0).identity()) for entry in study.entries]
        assert len({path for path, _ in found}) == len({str(identity) for _, identity in found})


def test_tables_find_runs_by_their_settings_and_not_by_their_directories(tmp_path: Path) -> None:
    def finished(where: str, config: Config, loss: float) -> None:
        (tmp_path / where).mkdir(parents=True)
        scores = {"cross_entropy": loss, "accuracy": 0.5}
        about = {"experiment": config.experiment, "row": config.row, "seed": config.seed, "group": config.net.group}
        about |= {"parameters": 1, "test": scores, "train": scores, "cpu_seconds": 1.0, "wall_seconds": 1.0}
        about |= {"task": "classes", "train_images": 9, "test_images": 9, "skipped_images": 0, "presentations": 9}
        (tmp_path / where / "summary.json").write_text(json.dumps(about))
        (tmp_path / where / "config.json").write_text(config.model_dump_json())

    finished("synthetic/baseline/seed0", config_for("synthetic", "baseline", epochs=2), 3.0)
    finished("old/names/seed0", config_for("synthetic", "pool-mean", epochs=2), 2.0)
    finished("copy/of/seed0", config_for("synthetic", "pool-mean", epochs=2), 9.0)
    lines = lines_of(tmp_path, "synthetic")
    assert [(line.label, len(line.seeds)) for line in lines] == [("baseline", 1), ("pool-mean", 1)]
    assert lines[1].difference == ((-1.0, None) if lines[1].test[0] == 2.0 else (6.0, None))
    finished("new/pool/seed1", config_for("synthetic", "pool-mean", seed=1, epochs=2, group="D4"), 1.0)
    finished("new/long/seed0", config_for("synthetic", "pool-mean", epochs=4), 1.0)
    finished("new/base/seed0", config_for("synthetic", "baseline", epochs=4), 1.5)
    gaps = {line.label: line.difference for line in lines_of(tmp_path, "synthetic")}
    assert gaps["pool-mean-epochs4"] == (-0.5, None)  # against the baseline of four epochs
    assert gaps["baseline-epochs4"] is None
    assert gaps["pool-mean-D4-epochs2"] is None  # the baseline has no seed 1
    assert set(gaps) == {f"{name}-epochs{n}" for name in ("baseline", "pool-mean") for n in (2, 4)} | {
        "pool-mean-D4-epochs2"
    }
