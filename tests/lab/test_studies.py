"""Studies: their definitions, the statistics, records that outlive runs, and pages that follow from them alone."""

import csv
import io
import json
import re
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labtools import DATA, class_folders, tiny
from torch import nn

import quarterturn as qt
from quarterturn_lab.cli import app
from quarterturn_lab.cli.study import contents, run_study, write
from quarterturn_lab.data import plankton_three_way, splits
from quarterturn_lab.errors import ConfigError, LabError, RunError
from quarterturn_lab.evaluation.statistics import paired_interval, t_quantile
from quarterturn_lab.models import mnist
from quarterturn_lab.runs import network, run_directory
from quarterturn_lab.runs.loading import load
from quarterturn_lab.settings.experiments import PAPER_PLANKTON
from quarterturn_lab.studies import decisions, findings, paper, plankton, recipe, records
from quarterturn_lab.studies.catalogue import STUDIES
from quarterturn_lab.studies.definition import TURNED, Entry, Question, Study, Takeaway, entries
from quarterturn_lab.studies.measures import MEASURES, together
from quarterturn_lab.studies.mnist import CHOSEN
from quarterturn_lab.studies.names import name, names, network_name, split, told
from quarterturn_lab.studies.page import as_csv, page
from quarterturn_lab.studies.plot import MOST, featured, picture
from quarterturn_lab.studies.summary import LONGEST, VERBS, asked, finding, summary
from quarterturn_lab.training import loop, training_run

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SMALL = STUDIES["small-set"]


# --- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_a_study_speaks_of_its_own_entries(study: Study) -> None:
    assert len(study.labels) == len(study.entries)
    sides = [side for q in study.questions for side in (q.one, q.other)]
    sides += [side for t in study.takeaways for side in (t.who, *t.others)]
    sides += [side for line in study.series for side in line]
    sides += [side for case in study.cases for side in (case.equivariant, case.ordinary) if side]
    assert {split(side)[0] for side in sides} <= set(study.labels)
    for text in (*study.limits, *study.reasons):
        assert "{" not in told(study, text)  # an unknown label raises
    assert study.limits
    runs_of_it = study.runs()
    assert len(runs_of_it) == sum(entry.seeds for entry in study.entries) == len(set(map(str, runs_of_it)))
    assert [seed for _, seed in runs_of_it] == sorted(seed for _, seed in runs_of_it)  # whole tables early


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_display_names_are_unique_and_free_of_labels(study: Study) -> None:
    found = [name(study, side) for label in study.labels for side in (label, f"{label}{TURNED}")]
    assert len(set(found)) == len(found)
    assert not any(label in found for label in study.labels)


def test_display_names_say_what_differs() -> None:
    small, digits = names(SMALL), names(STUDIES["mnist-search"])
    assert small["roll-all-half-80epochs-0.5dropout"] == "rolled, half width, C4, 80 epochs, dropout 0.5"
    assert small["baseline"] == "ordinary, 40 epochs"
    assert name(SMALL, "baseline-linear@4") == "ordinary, no last ReLU, 40 epochs, 4 turns averaged at test time"
    assert names(STUDIES["few-labels"])["pool-mean-all"] == "averaged over turns inside, all images, 10 epochs"
    assert names(STUDIES["rotated-mnist"])["seven_d4"] == "rolled, seven layers, D4"
    assert digits["staged_8_fives"] == "rolled, 8-16-32 filters, C4, 5 x 5 windows"
    for entry in SMALL.entries:
        assert ("ordinary" in network_name(entry)) == entry.is_plain


def test_what_two_studies_share_is_one_run() -> None:
    found: dict[tuple[str, str], Any] = {}
    shared = 0
    for study in STUDIES.values():
        for entry in study.entries:
            key, settings = (entry.experiment, entry.label), records.settings_of(entry.config(0))
            shared += key in found
            assert found.setdefault(key, settings) == settings
    assert shared > 10


def test_the_small_set_has_the_papers_rows_and_the_controls() -> None:
    rows = {entry.row for entry in SMALL.entries}
    assert set(PAPER_PLANKTON) <= rows
    assert {"stack", "flip-rotate-pool", "pool-mean-dihedral", "baseline-linear", "baseline-half-linear"} <= rows
    assert {"baseline-160epochs", "baseline-linear-160epochs", "baseline-wide"} <= set(SMALL.labels)
    assert len(SMALL.runs(1)) == len(SMALL.entries)
    assert [(e.label, seed) for e, seed in SMALL.runs(1, ["pool-mean"])] == [("pool-mean", 0)]
    with pytest.raises(LabError, match="did you mean 'pool-mean'"):
        SMALL.runs(1, ["pool-meen"])


def test_all_rows_are_trained_alike() -> None:
    first = SMALL.entries[0].config(0).identity()
    for entry in SMALL.entries:
        own = entry.config(0).identity()
        differ = {name for name in own if own[name] != first[name]}
        assert differ <= {"row", "net", "rotate", "epochs"}, entry.label
        assert ("epochs" in differ) == ("epochs" in entry.label)
        net = {name for name in own["net"] if own["net"][name] != first["net"][name]}
        assert ("dropout" in net) == entry.label.endswith("-0.5dropout")
        net.discard("dropout")
        allowed = {"group", "method", "pool", "relu", "roll", "divide", "divide_dense", "widen"}
        assert net <= allowed, entry.label
    assert (first["output_scale"], first["net"]["dropout"], first["net"]["relu_after"]) == (0.1, 0.2, False)


def test_controls_have_the_compute_of_pooling() -> None:
    counts = {e.label: records.multiply_adds(e.config(0), 121) for e in SMALL.entries if e.row in plankton.MAIN}
    wide = records.multiply_adds(SMALL.labels["baseline-wide"].config(0), 121)
    assert counts["pool-mean"] / counts["baseline"] == pytest.approx(4, rel=0.01)
    assert wide / counts["pool-mean"] == pytest.approx(1, rel=0.02)
    assert counts["roll-all-quarter"] / counts["baseline"] == pytest.approx(1, rel=0.03)
    stages = ((1, 16, 31), (16, 16, 31), (16, 32, 15), (32, 32, 15), (32, 64, 7), (64, 64, 7))
    by_hand = sum(9 * a * b * side**2 for a, b, side in stages) + 576 * 256 + 256 * 256 + 256 * 121
    assert counts["baseline"] == by_hand


def test_seven_layers_and_their_twins() -> None:
    torch.manual_seed(0)
    nets: dict[str, nn.Module] = {
        name: getattr(mnist, name)(1, 28, 10) for name in ("seven_plain", "seven_c4", "seven_d4")
    }
    sizes = {name: sum(p.numel() for p in net.parameters()) for name, net in nets.items()}
    assert sizes == {"seven_plain": 21_750, "seven_c4": 24_680, "seven_d4": 26_799}
    x = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    for label, group in (("seven_c4", qt.C4), ("seven_d4", qt.D4)):
        qt.assert_equivariant(nets[label].double().eval(), group, x)
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(nets["seven_plain"].double().eval(), qt.C4, x)
    counts = [records.multiply_adds(e.config(0), 10) for e in STUDIES["rotated-mnist"].entries]
    assert counts == sorted(counts)  # the kernel's own operations would not have been counted
    assert counts[1] > 3 * counts[0]


def test_networks_for_digits_are_invariant_and_the_search_sees_no_test_image() -> None:
    x = torch.randn(1, 1, 28, 28, dtype=torch.float64)
    study = STUDIES["mnist-search"]
    for entry in study.entries:
        config = entry.config(0)
        assert config.loader == "mnist-rot-held"
        assert config.augment.turn == (0 if entry.label.endswith("-0degrees") else 360)
        qt.assert_equivariant(network.net_for(config, tuple("0123456789")).double().eval(), qt.C4, x)
    assert study.judged == "validation"


def test_the_digit_network_that_is_tested_is_the_one_that_validation_prefers() -> None:
    search, final = STUDIES["mnist-search"], STUDIES["rotated-mnist"]
    tried = records.load(RESULTS / "records", ["mnist-rot-choice"])
    scores = {e.label: findings.values(search, tried, e.label)[0] for e in search.entries}  # "test": those held out
    assert min(scores, key=scores.__getitem__) == CHOSEN
    assert sorted(scores.values())[1] > scores[CHOSEN]  # no tie to be broken
    chosen, tested = search.labels[CHOSEN].config(0), final.labels[CHOSEN].config(0)
    assert (chosen.factory, chosen.augment, chosen.lr) == (tested.factory, tested.augment, tested.lr)
    best = records.load(RESULTS / "records", ["mnist-rot-best"])
    assert set(best.runs) <= {("mnist-rot-best", CHOSEN, 0)}


# --- name lists -------------------------------------------------------------------------------------------------------


def listed() -> dict[str, set[str]]:
    return {part: splits.committed(f"plankton_three_way/{part}.txt") for part in plankton_three_way.PARTS}


def test_the_committed_parts_are_disjoint() -> None:
    parts = listed()
    assert {part: len(names) for part, names in parts.items()} == {"train": 19_377, "valid": 1_211, "test": 3_633}
    assert len(set.union(*parts.values())) == 24_221
    for part, found in parts.items():
        folder = Path(splits.__file__).parent / "committed_splits" / "plankton_three_way"
        assert splits.written(sorted(found)) == (folder / f"{part}.txt").read_text()
    for part in ("train", "test"):
        assert len({name.split("/")[0] for name in parts[part]}) == 121


@pytest.mark.skipif(not (DATA / "plankton.tar.xz").exists(), reason="needs ../shared/data")
def test_the_committed_parts_are_all_images_by_the_rule() -> None:
    with tarfile.open(DATA / "plankton.tar.xz") as file:
        names = sorted("/".join(n.split("/")[-2:]) for n in file.getnames() if n.endswith(".jpg"))
    parts = listed()
    assert set(names) == set.union(*parts.values())
    classes = sorted({name.split("/")[0] for name in names})
    labels = np.array([classes.index(name.split("/")[0]) for name in names])
    found = plankton_three_way.by_rule(names, labels)
    assert [{names[i] for i in indices} for indices in found] == [parts[p] for p in plankton_three_way.PARTS]


def test_a_validation_part_is_what_is_scored_on_the_way(tmp_path: Path) -> None:
    class_folders(tmp_path / "data" / "train", count=40)
    config = tiny(loader="plankton-parts", data=str(tmp_path / "data"), train_size=None, epochs=2, output_scale=1e-9)
    data = load(config)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [64, 4, 12]
    together = np.concatenate([data.train, data.valid, data.test])
    assert sorted(together) == list(range(80))
    summary = training_run.run(config, tmp_path / "run")
    assert {"valid", "valid_4_turns", "test", "test_4_turns"} <= set(summary)
    last = run_directory.records(tmp_path / "run")[-1]
    assert last["valid_cross_entropy"] == summary["valid"]["cross_entropy"]
    assert not any(name.startswith("test") for name in last)  # the test part is looked at once


def test_the_seconds_are_of_training_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = 0.0

    def slow(*arguments: Any) -> dict[str, float]:
        nonlocal now
        now += 1000.0
        return {"cross_entropy": 1.0, "accuracy": 0.5}

    monkeypatch.setattr(loop, "evaluate", slow)
    monkeypatch.setattr(loop.time, "process_time", lambda: now)
    assert training_run.run(tiny(epochs=1), tmp_path)["cpu_seconds"] == 0.0


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_damaged_records_are_named(suffix: str, tmp_path: Path) -> None:
    for content in (b"\xff\xfe\x00", b"{}\n{", b"label,seed\na,b\n", b"a\n" + b"[" * 100_000):
        for path in (RESULTS / "records").glob("synthetic.*"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / f"synthetic.{suffix}").write_bytes(content)
        with pytest.raises(RunError, match=rf"synthetic\.{suffix} is damaged"):
            records.load(tmp_path, ["synthetic"])


# --- statistics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "level", "value"),
    [(1, 0.95, 12.7062), (2, 0.95, 4.3027), (4, 0.95, 2.7764), (9, 0.95, 2.2622), (4, 0.99, 4.6041), (60, 0.9, 1.6706)],
)
def test_quantiles_of_students_t(freedom: int, level: float, value: float) -> None:
    assert t_quantile(freedom, level) == pytest.approx(value, abs=1e-4)


def test_paired_intervals() -> None:
    # Student's own data (1908): the additional hours of sleep of ten patients under two drugs.
    gains = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    assert paired_interval(gains) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert paired_interval([0.5]) is None
    low, high = paired_interval([0.25, 0.25, 0.25]) or (0, 0)
    assert low == high == 0.25


# --- pages from made-up records ---------------------------------------------------------------------------------------


def record(entry: Entry, seed: int, loss: float, cpu: float = 100.0, turned: float | None = None) -> dict[str, Any]:
    scores = {"cross_entropy": loss, "accuracy": 0.5, "rmse": loss}
    scores |= dict.fromkeys(("dice", "average_precision", "auc", "break_even", "turned_dice"), 1 - loss / 10)
    averaged = {**scores, "cross_entropy": loss if turned is None else turned}
    parts = {"train": scores, "test": scores, "test_4_turns": averaged, "valid": scores, "valid_4_turns": averaged}
    about = {"platform": "p", "python": "3", "torch": "2", "processor": "x", "cores": 2}
    sizes = {"parameters": 1000, "multiply_adds": 2_000_000, "train_images": 2009, "test_images": 3633, "data": "1f"}
    return {
        "label": entry.label,
        "seed": seed,
        **parts,
        **sizes,
        "cpu_seconds": cpu,
        "wall_seconds": 2 * cpu,
        "environment": about,
    }


def made_up(losses: dict[str, list[float]], turned: dict[str, list[float]] | None = None) -> records.Records:
    found = records.Records({}, {}, {})
    for label, values in losses.items():
        entry = SMALL.labels[label]
        found.settings[entry.experiment, label] = records.settings_of(entry.config(0))
        for seed, loss in enumerate(values):
            key = (entry.experiment, label, seed)
            cpu = 400.0 if label == "pool-mean" else 100.0
            found.runs[key] = record(entry, seed, loss, cpu, (turned or {}).get(label, values)[seed])
            found.curves[key] = [{"epoch": 1, "train_loss": loss}]
    return found


LOSSES = {
    "baseline": [2.00, 2.02, 1.98],
    "baseline-linear": [1.95, 1.97, 1.94],
    "baseline-half": [2.10, 2.11, 2.13],
    "pool-mean": [1.70, 1.71, 1.69],
    "roll-all-quarter": [2.20, 2.22, 2.21],  # it disappoints
    "pool-max": [1.90],
}


def rows_of(text: str, heading: str) -> list[dict[str, str]]:
    """The first table below a heading of a page."""
    below = text.split(f"{heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert lines is not None
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[0].splitlines()]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def errors(found: records.Records, label: str, values: list[float]) -> None:
    """Give the runs of a label these errors in percent."""
    for seed, value in enumerate(values):
        run = found.runs["plankton-small", label, seed]
        for part in ("valid", "test"):
            run[part] = {**run[part], "accuracy": 1 - value / 100}


@pytest.mark.parametrize(
    ("pool", "verdict"),
    [
        ([1.90, 1.91, 1.89], "better"),
        ([2.10, 2.12, 2.11], "worse"),
        ([2.10, 1.90, 2.00], "open"),
        ([1.00], "one seed"),
        ([], "not run"),
    ],
)
def test_the_interval_decides_the_verdict(pool: list[float], verdict: str) -> None:
    found = made_up({"baseline": [2.0, 2.01, 1.99], "pool-mean": pool})
    gap = findings.gap(SMALL, found, Question("pool-mean", "baseline", ""))
    assert gap.verdict == verdict
    if gap.interval:
        low, high = gap.interval
        assert (high < 0, low > 0) == (verdict == "better", verdict == "worse")


def test_the_summary_names_figures_and_verdicts_of_both_measures() -> None:
    losses = {label: values for label, values in LOSSES.items() if len(values) > 1}
    found = made_up(losses, {"baseline-linear": [1.80, 1.82, 1.79]})
    text = summary(SMALL, found)
    for side in ("pool-mean", "baseline-linear", "roll-all-quarter", "baseline-linear@4"):
        assert name(SMALL, side).casefold() in text.casefold()
        assert findings.figure(SMALL, found, side) in text
    errors(found, "roll-all-quarter", [20.0, 21.0, 22.0])  # the best by error, the worst by cross-entropy
    row = decisions.decisions(SMALL, found)[0]
    assert (row.equivariant, row.chosen) == ("roll-all-quarter", "baseline-linear@4")
    said = decisions.verdict(SMALL, found, row)
    assert said.index("better by cross-entropy") < said.index("worse by error")  # of the ordinary one, which is chosen
    assert summary(SMALL, found) != text
    assert summary(SMALL, made_up({}))
    assert finding(SMALL, found) != finding(SMALL, made_up({}))


def test_one_run_is_never_said_to_win() -> None:
    single = made_up({"baseline": [2.0], "pool-mean": [1.9], "baseline-linear": [2.1]})
    text = summary(SMALL, single)
    assert "1.900 (one run)" in text
    assert not any(verb in text for verb in VERBS.values())
    few = made_up({"baseline-linear": [2.1, 2.0, 2.2], "pool-mean": [1.9]})
    assert "1.900 (one run)" in summary(SMALL, few)
    assert "2.100 (mean of three runs)" in summary(SMALL, few)


@pytest.mark.parametrize("study_name", STUDIES)
def test_sentences_on_top_are_short(study_name: str) -> None:
    study = STUDIES[study_name]
    found = records.load(RESULTS / "records", [entry.experiment for entry in study.entries])
    for sentence in re.split(r"(?<=[.?!])\s+(?:- )?(?=[A-Z*\"])", summary(study, found)):
        assert len(sentence.split()) <= LONGEST, sentence


def test_the_intervals_behind_the_summary_are_in_the_table() -> None:
    found = made_up(LOSSES, {"baseline-half": [1.0, 1.1, 1.2]})
    table = rows_of(page("small-set", SMALL, found), "## Paired comparisons")
    pair = [name(SMALL, side) for side in ("pool-mean", "baseline-half@4")]
    row = next(row for row in table if [row["first"], row["second"]] == pair)
    assert (row["pairs"], row["difference"], row["95 % interval"]) == ("3", "+0.600", "+0.338 to +0.862")
    assert row["the first is"] == "worse"
    pairs = [(gap.question.one, gap.question.other) for gap in asked(SMALL, found)]
    assert len(pairs) == len(set(pairs)) == len(table)
    for decision in decisions.decisions(SMALL, found):
        assert decision.question
        assert (decision.question.one, decision.question.other) in pairs


def test_orders_of_the_paper_that_do_not_hold_are_listed() -> None:
    losses = {**LOSSES, "pool-max": [1.70, 1.72, 1.69], "roll-dense-half": [1.70, 1.71, 1.70]}
    text = paper.claims(SMALL, asked(SMALL, made_up(losses)))
    agree, differ = text.split("\n\n")[1], text.split("\n\n")[3]

    def pair(one: str, other: str) -> str:
        return f"*{name(SMALL, one)}* against *{name(SMALL, other)}*"

    for sides in (("pool-mean", "baseline"), ("roll-dense-half", "pool-mean")):
        assert pair(*sides) in agree
        assert pair(*sides) not in differ
    for sides in (("roll-all-quarter", "baseline-half"), ("pool-max", "pool-mean")):
        assert pair(*sides) in differ
        assert pair(*sides) not in agree
    assert paper.claims(SMALL, asked(SMALL, made_up({"baseline": [2.0] * 3}))) == ""
    digits = page("rotated-mnist", STUDIES["rotated-mnist"], records.Records({}, {}, {}))
    assert "the paper" not in rows_of(digits, "## Paired comparisons")[0]


def test_machines_are_named_with_what_they_ran() -> None:
    found = made_up(LOSSES)
    for label, seed in (("baseline", 1), ("baseline", 2), ("pool-max", 0)):
        run = found.runs["plankton-small", label, seed]
        run["environment"] = {**run["environment"], "processor": "another processor"}
    lines = page("small-set", SMALL, found).splitlines()
    other = next(line for line in lines if "another processor" in line)
    assert "`baseline` (seeds 1, 2)" in other
    assert "`pool-max`" in other
    assert "pool-mean" not in other


def test_cpu_seconds_are_of_the_processor_that_made_most_runs() -> None:
    found = made_up(LOSSES)
    for label, seed in (("baseline", 1), ("pool-max", 0)):
        run = found.runs["plankton-small", label, seed]
        run["environment"] = {**run["environment"], "processor": "a slow processor"}
        run["cpu_seconds"] = 10 * run["cpu_seconds"]
    usual = found.runs["plankton-small", "baseline", 0]["cpu_seconds"]
    assert findings.average(SMALL, found, "baseline", "cpu_seconds") == usual
    assert findings.average(SMALL, found, "pool-max", "cpu_seconds") > usual  # it has no others
    assert findings.cpu_ratio(SMALL, found, "pool-mean", "baseline") == pytest.approx(
        found.runs["plankton-small", "pool-mean", 0]["cpu_seconds"] / usual
    )
    assert findings.cpu_ratio(SMALL, found, "pool-max", "pool-mean") is None  # no seed on one processor
    assert decisions.unevenness(SMALL, found) == 1


def test_turns_that_were_not_scored_leave_a_gap() -> None:
    found = made_up({"baseline": [2.0], "pool-mean": [1.9]})
    turned = found.runs["plankton-small", "pool-mean", 0].pop("test_4_turns")

    def averaged() -> str:
        table = rows_of(page("small-set", SMALL, found), "## All figures")
        return next(row for row in table if row["label"] == "`pool-mean`")["4 turns averaged: c.-e."]

    assert averaged() == "-"
    assert ",0.5,,\n" in as_csv(SMALL, found)
    assert findings.values(SMALL, found, "pool-mean@4") == {}
    assert findings.values(SMALL, found, "baseline@4") == {0: 2.0}
    found.runs["plankton-small", "pool-mean", 0]["test_4_turns"] = turned
    assert averaged() == "1.900"


def test_the_strongest_plain_network_is_chosen_by_validation() -> None:
    found = made_up(LOSSES)
    assert findings.strongest_plain(SMALL, found, "pool-mean") == "baseline-linear"
    for (_, label, _), run in found.runs.items():
        if label == "baseline":
            run["valid_4_turns"] = {"cross_entropy": 1.0, "accuracy": 0.5}  # though not on test
    assert findings.strongest_plain(SMALL, found, "pool-mean") == "baseline@4"
    for (_, label, _), run in found.runs.items():
        if label == "baseline":
            run["train_images"] = 500
    assert findings.strongest_plain(SMALL, found, "pool-mean") == "baseline-linear"
    assert findings.strongest_plain(SMALL, made_up({}), "pool-mean") is None


@pytest.mark.parametrize(("count", "chosen"), [(2, "baseline"), (3, "baseline-wide")])
def test_a_control_of_three_seeds_is_preferred_to_one_of_five_where_it_is_better(count: int, chosen: str) -> None:
    # Over the seeds that both have: the baseline's last two are the best of all.
    losses = {"pool-mean": [1.5] * 5, "baseline": [2.0, 2.0, 2.0, 0.1, 0.1], "baseline-wide": [1.9] * count}
    assert findings.strongest_plain(SMALL, made_up(losses), "pool-mean") == chosen


def some_runs(study: Study, runs: dict[str, tuple[float, float, float]]) -> records.Records:
    """Label -> loss, CPU seconds, loss with turns averaged; one run of each."""
    found = records.Records({}, {}, {})
    for label, (loss, cpu, turned) in runs.items():
        entry = study.labels[label]
        found.runs[entry.experiment, label, 0] = record(entry, 0, loss, cpu, turned)
    return found


COSTS = {
    "baseline-all": (2.0, 200.0, 1.9),
    "baseline-all-40epochs": (1.8, 900.0, 1.7),
    "roll-all-quarter-all": (1.8, 240.0, 1.8),
    "pool-mean-all": (1.6, 750.0, 1.6),
}


def test_for_a_budget_validation_chooses_among_networks_that_finish_in_time() -> None:
    study = STUDIES["equal-cost"]
    found = some_runs(study, COSTS)
    offered = [[o.side for o in decisions.within(study, found, seconds)] for seconds in (100, 220, 250, 1000)]
    assert offered[:2] == [[], ["baseline-all@4", "baseline-all"]]
    assert offered[2] == ["roll-all-quarter-all", "baseline-all@4", "baseline-all"]
    assert offered[3][:3] == ["pool-mean-all", "baseline-all-40epochs@4", "baseline-all-40epochs"]  # the best of a line
    chosen = {row.case: (row.chosen, row.ordinary) for row in decisions.decisions(study, found)}
    assert chosen == {
        "250": ("roll-all-quarter-all", "baseline-all@4"),
        "500": ("roll-all-quarter-all", "baseline-all@4"),
        "1,000": ("pool-mean-all", "baseline-all-40epochs@4"),
    }
    assert decisions.unevenness(study, found) == pytest.approx(22.5 / 20)  # 900 seconds for 40 epochs, 200 for 10
    # Where the picture has a row for each side, each offers itself, and ordinary ones with turns averaged.
    some = made_up(LOSSES, {"baseline-half": [1.0, 1.1, 1.2]})
    first = decisions.within(SMALL, some, 125)[0]
    assert (first.side, first.runs) == ("baseline-half@4", 3)
    assert "pool-mean" not in [offer.side for offer in decisions.within(SMALL, some, 125)]  # it takes 400 seconds
    assert "pool-mean" in [offer.side for offer in decisions.within(SMALL, some, 500)]
    assert decisions.decisions(study, records.Records({}, {}, {})) == []


def test_a_trial_of_one_seed_gives_way_to_a_test_with_three() -> None:
    losses = {"pool-mean": [1.70, 1.71, 1.69], "pool-max": [1.0], "baseline": [2.0]}
    tested = decisions.decisions(SMALL, made_up(losses))[-1]
    assert (tested.equivariant, tested.ordinary, tested.chosen) == ("pool-mean", "baseline", "pool-mean")
    searched = decisions.decisions(replace(SMALL, judged="validation"), made_up(losses))[-1]
    assert searched.equivariant == "pool-max"  # a search has trials alone


def test_the_test_images_have_no_say_in_a_decision() -> None:
    study = STUDIES["equal-cost"]
    found = some_runs(study, COSTS)
    before = decisions.decisions(study, found)
    for label, run in ((label, run) for (_, label, _), run in found.runs.items()):
        worst = 9.0 if label == "pool-mean-all" else 0.1
        run["test"] = run["test_4_turns"] = {"cross_entropy": worst, "accuracy": 0.1}
    assert decisions.decisions(study, found) == before
    for run in found.runs.values():  # but validation has
        run["valid"], run["valid_4_turns"] = (
            {"cross_entropy": -run[p]["cross_entropy"], "accuracy": 0.5} for p in PARTS
        )
    assert decisions.decisions(study, found) != before


PARTS = ("valid", "valid_4_turns")


def test_decisions_by_number_of_images_compare_equal_numbers() -> None:
    study = STUDIES["few-labels"]
    found = records.load(RESULTS / "records", [entry.experiment for entry in study.entries])
    made = decisions.decisions(study, found)
    assert made
    for row in made:
        sides = [side for side in (row.equivariant, row.ordinary) if side]
        sizes = {findings.average(study, found, side, "train_images") for side in sides}
        assert {f"{size:,.0f}" for size in sizes} == {row.case}
        assert row.chosen in sides


def test_settings_are_those_of_the_experiment_and_not_of_its_first_row() -> None:
    few, search = (page(name, STUDIES[name], records.Records({}, {}, {})) for name in ("few-labels", "mnist-search"))
    assert STUDIES["few-labels"].entries[0].config(0).epochs == 160
    assert "\n  - 40 epochs," in few
    assert "\n  - 160 epochs," not in few
    assert STUDIES["mnist-search"].entries[0].config(0).augment.turn == 0
    assert "rotate 360.0," in search


def test_the_page_says_which_networks_were_trained_past_their_best() -> None:
    found = made_up(LOSSES)
    assert findings.past_best(SMALL, found) == {}
    for seed, (lowest, last) in enumerate([(2.0, 3.0), (2.2, 2.6), (2.1, 2.5)]):
        curve = [{"epoch": 1}, *({"epoch": e, "valid_cross_entropy": v} for e, v in ((2, 2.9), (3, lowest), (4, last)))]
        found.curves["plankton-small", "pool-mean", seed] = curve
        found.curves["plankton-small", "baseline", seed] = [*curve[:-1], {"epoch": 4, "valid_cross_entropy": 2.1}]
    assert findings.past_best(SMALL, found) == {"pool-mean": (pytest.approx(2.1), pytest.approx(2.7))}
    assert f"{name(SMALL, 'pool-mean')}: 2.10, 2.70" in page("small-set", SMALL, found)


def test_the_page_has_what_disappoints_fails_or_is_missing() -> None:
    found = made_up(LOSSES)
    found.runs["plankton-small", "stack", 0] = {"label": "stack", "seed": 0, "failed": "training diverges"}
    text = page("small-set", SMALL, found)
    table = {row["label"].strip("`"): row for row in rows_of(text, "## All figures")}
    assert list(table) == list(SMALL.labels)
    runs = {label: table[label]["runs"] for label in ("roll-all-quarter", "pool-max", "stack", "pool-rms")}
    assert runs == {
        "roll-all-quarter": "3 of 5",
        "pool-max": "1 of 3",
        "stack": "0 of 3, 1 failed",
        "pool-rms": "0 of 3",
    }
    assert (table["pool-max"]["test c.-e."], table["pool-rms"]["test c.-e."]) == ("1.900", "-")
    missing = text.split("## Not run, or failed")[1].split("##")[0]
    assert f"{name(SMALL, 'stack')}: seed 0 failed: training diverges; seeds 1, 2 not run" in missing
    assert f"{name(SMALL, 'pool-mean')}: seeds 3, 4 not run" in missing
    assert name(SMALL, "pool-max") in missing
    pairs = {(row["first"], row["second"]): row for row in rows_of(text, "## Paired comparisons")}
    disappoints = pairs[name(SMALL, "roll-all-quarter"), name(SMALL, "baseline-half")]
    assert (disappoints["difference"], disappoints["the first is"]) == ("+0.097", "worse")
    not_run = pairs[name(SMALL, "roll-dense-half"), name(SMALL, "pool-mean")]
    assert (not_run["pairs"], not_run["difference"], not_run["the first is"]) == ("0", "-", "not run")
    later = {(name(SMALL, q.one), name(SMALL, q.other)) for q in SMALL.questions if q.later}
    assert {pair for pair, row in pairs.items() if row["why"].startswith("added later")} == later
    crowded = {line for line in text.splitlines() if "2.0 times its CPU seconds" in line}
    assert crowded
    for run in found.runs.values():
        run["wall_seconds"] = run.get("cpu_seconds")
    assert crowded.isdisjoint(page("small-set", SMALL, found).splitlines())


@pytest.mark.parametrize("study_name", STUDIES)
def test_every_finished_run_is_in_the_csv(study_name: str) -> None:
    study = STUDIES[study_name]
    found = records.load(RESULTS / "records", [entry.experiment for entry in study.entries])
    rows = list(csv.DictReader(io.StringIO(as_csv(study, found))))
    finished = {(entry.label, seed) for entry in study.entries for seed in records_of(found, entry)}
    assert {(row["label"], int(row["seed"])) for row in rows} == finished
    assert len(rows) == len(finished)
    for row in rows:
        entry = study.labels[row["label"]]
        kept = found.runs[entry.experiment, entry.label, int(row["seed"])]
        key = MEASURES[study.measure].key
        assert float(row[f"test_{key}"]) == kept["test"][key]
        assert row["network"] == name(study, row["label"])


def records_of(found: records.Records, entry: Entry) -> list[int]:
    keys = [(entry.experiment, entry.label, seed) for seed in range(entry.seeds)]
    return [key[2] for key in keys if "test" in found.runs.get(key, {})]


@pytest.mark.parametrize("study_name", [name for name, study in STUDIES.items() if not study.series])
def test_pictures_have_few_rows_sorted_by_the_measure(study_name: str) -> None:
    study = STUDIES[study_name]
    found = records.load(RESULTS / "records", [entry.experiment for entry in study.entries])
    sides = featured(study, found)
    assert len(sides) == len(set(sides)) <= MOST
    assert bool(sides) == any(found.of(entry) for entry in study.entries)
    means = [float(np.mean(list(findings.values(study, found, side).values()))) for side in sides]
    assert means == sorted(means)
    for row in decisions.decisions(study, found):
        assert {side for side in (row.equivariant, row.ordinary) if side} <= set(sides)


@pytest.mark.parametrize("name", STUDIES)
def test_pages_and_pictures_with_little_and_with_all(name: str) -> None:
    study = STUDIES[name]
    full = records.Records({}, {}, {})
    for entry, seed in study.runs():
        full.runs[entry.experiment, entry.label, seed] = record(entry, seed, 1.0 + seed / 100)
    one = records.Records(dict(list(full.runs.items())[:1]), {}, {})
    for found in (full, one):
        assert page(name, study, found).startswith(f"# {study.title}")
        assert picture(study, found)[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture(study, full) == picture(study, full)
    assert findings.absent(study, full) == []


@pytest.mark.parametrize("study_name", STUDIES)
@pytest.mark.parametrize(
    "kept",
    [
        lambda entry, seed: entry.is_plain,
        lambda entry, seed: not entry.is_plain,
        lambda entry, seed: seed == int(entry.is_plain),  # no seed in common
    ],
    ids=["ordinary", "equivariant", "other seeds"],
)
def test_pages_of_half_a_study(study_name: str, kept: Callable[[Entry, int], bool]) -> None:
    study = STUDIES[study_name]
    found = records.Records({}, {}, {})
    for entry, seed in study.runs():
        if kept(entry, seed):
            found.runs[entry.experiment, entry.label, seed] = record(entry, seed, 1.0 + seed / 100)
    assert page(study_name, study, found)
    assert picture(study, found)
    assert all(verb not in finding(study, found) for verb in ("win", "beat"))  # there is nothing to compare


# --- other measures, and searches -------------------------------------------------------------------------------------


def scored(entry: Entry, seed: int, **scores: float) -> dict[str, Any]:
    made = record(entry, seed, 1.0)
    return made | {part: dict(scores) for part in ("train", "test", "test_4_turns", "valid", "valid_4_turns")}


def test_networks_of_other_libraries_have_a_label_and_a_name() -> None:
    twins = {entry.label: entry for entry in STUDIES["recipe-timm"].entries}
    plain = [entry for entry in twins.values() if entry.is_plain]
    assert plain
    assert all(entry.config(0).how == "plain" and entry.config(0).net.group is None for entry in plain)
    rolled = [entry for entry in twins.values() if not entry.is_plain]
    assert any(entry.config(0).net.invariants for entry in rolled)
    assert all(entry.config(0).backbone == "timm:resnet10t" and entry.config(0).net.group == "C4" for entry in rolled)
    assert len(set(names(STUDIES["recipe-timm"]).values())) == len(twins)


GALAXIES = (
    recipe.trained("recipe-galaxies", "residual-plain", 32, 60, 3),
    recipe.trained("recipe-galaxies", "residual-c4", 32, 60, 3, invariants=True),
)


@pytest.mark.parametrize(
    ("measure", "scores", "shown"),
    [
        ("rmse", [{"rmse": 0.12}, {"rmse": 0.11}], ["0.12000", "0.11000"]),
        (
            "dice",
            [{"dice": 0.8, "average_precision": 0.5}, {"dice": 0.9, "average_precision": 0.6}],
            ["20.00", "10.00"],
        ),
        ("auc", [{"auc": 0.8, "break_even": 0.5}, {"auc": 0.9, "break_even": 0.6}], ["20.00", "10.00"]),
    ],
)
def test_lower_is_better_by_every_measure(measure: Any, scores: list[dict[str, float]], shown: list[str]) -> None:
    plain, rolled = GALAXIES
    question = Question(rolled.label, plain.label, "")
    study = Study("T", "Which?", "A.", GALAXIES, (), (question,), ("L.",), measure=measure, budgets=(60,))
    found = records.Records({}, {}, {})
    for seed in range(3):
        for entry, own in zip(GALAXIES, scores, strict=True):
            found.runs[entry.experiment, entry.label, seed] = scored(entry, seed, **own)
    assert findings.gap(study, found, question).verdict == "better"
    assert decisions.decisions(study, found)[0].chosen == rolled.label
    table = rows_of(page("t", study, found), "## All figures")
    short = MEASURES[measure].short
    assert [row[f"test {short}"].split(" ")[0] for row in table] == shown
    columns = list(rows_of(page("t", study, found), "## Paired comparisons")[0])
    assert any("test" in column for column in columns) == (len(together(measure)) == 2)
    key = MEASURES[measure].key
    assert f"test_{key}" in as_csv(study, found).splitlines()[0].split(",")
    assert "win" in finding(study, found)
    found.runs[rolled.experiment, rolled.label, 0]["test"] = dict.fromkeys(scores[0], 1 - 0.1)
    assert findings.values(study, found, rolled.label)[0] == pytest.approx(0.9 if measure == "rmse" else 10.0)


def test_a_search_does_not_look_at_test_images() -> None:
    plain, rolled = GALAXIES
    search = Study("T", "Which?", "A.", GALAXIES, (), (), ("L.",), measure="rmse", judged="validation", budgets=(60,))
    found = records.Records({}, {}, {})
    for entry, valid, test in ((plain, 0.10, 0.30), (rolled, 0.20, 0.05)):
        made = scored(entry, 0, rmse=valid)
        found.runs[entry.experiment, entry.label, 0] = made | {"test": {"rmse": test}, "test_4_turns": {"rmse": test}}
    assert decisions.decisions(search, found)[0].chosen == plain.label
    text = page("t", search, found)
    assert "0.10000" in text
    assert not any(figure in text for figure in ("0.05000", "0.30000"))
    judged = replace(search, judged="test")
    assert decisions.decisions(judged, found)[0].chosen == plain.label  # validation chooses, test is reported
    assert "0.30000" in page("t", judged, found)


def test_budgets_are_those_that_networks_were_made_for() -> None:
    slow = dict.fromkeys((GALAXIES[0].label, GALAXIES[1].label), 99.0)  # a busy machine
    study = Study("T", "Which?", "A.", GALAXIES, (), (), ("L.",), measure="rmse", budgets=(60,))
    found = records.Records({}, {}, {})
    for entry in GALAXIES:
        found.runs[entry.experiment, entry.label, 0] = scored(entry, 0, rmse=0.1) | {"cpu_seconds": slow[entry.label]}
    assert {offer.side for offer in decisions.within(study, found, 60)} >= set(slow)
    assert decisions.within(study, found, 59) == []


def test_a_budget_becomes_epochs() -> None:
    short, long = (recipe.trained("recipe-plankton-2000", "residual-d4", 64, seconds) for seconds in (60, 300))
    assert (short.budget, long.budget) == (60, 300)
    assert long.options["epochs"] / short.options["epochs"] == pytest.approx(5, rel=0.05)
    cost = recipe.MILLISECONDS["residual-d4"][64] * short.options["epochs"] * recipe.SIZES["recipe-plankton-2000"]
    assert cost == pytest.approx(60_000, rel=0.05)
    assert short.label != recipe.trained("recipe-plankton-2000", "residual-d4", 64, 60, hidden=128).label


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    found = made_up(LOSSES)
    records.save(tmp_path, found)
    again = records.load(tmp_path, ["plankton-small", "plankton-31"])
    assert again.runs == found.runs
    assert again.curves == found.curves
    assert again.settings == {key: json.loads(json.dumps(value)) for key, value in found.settings.items()}
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    records.save(tmp_path, again)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files
    records.check(again, SMALL.labels["baseline"])
    del again.settings["plankton-small", "baseline"]["clip"]  # a setting that came later has its default
    records.check(again, SMALL.labels["baseline"])
    again.settings["plankton-small", "baseline"]["lr"] = 0.5
    with pytest.raises(ConfigError, match=r"plankton-small/baseline were made with other settings \(lr\)"):
        records.check(again, SMALL.labels["baseline"])


TINY = {"side": 15, "epochs": 1, "batch": 20, "train_size": 60}
NAMES = {row: f"{row}-1epochs-60images-20batch-15pixels" for row in ("baseline", "pool-mean", "roll-all-quarter")}
TINY_STUDY = Study(
    "Tiny",
    "Which?",
    "Seconds.",
    entries("synthetic", 1, NAMES, **TINY),
    (Takeaway(NAMES["pool-mean"], (NAMES["baseline"],)),),
    (Question(NAMES["pool-mean"], NAMES["baseline"] + "@4", "to see"),),
    ("Anything.",),
)


def test_a_study_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(STUDIES, "tiny", TINY_STUDY)
    command = f"study tiny --runs-dir {tmp_path}/runs --output {tmp_path}/out --jobs 2"

    def call(extra: str = "") -> str:
        with suppress(SystemExit):
            app.main([*command.split(), *extra.split()])
        return capsys.readouterr().out

    assert call("--no-train") == ""

    def runs() -> list[str]:
        return [row["runs"] for row in rows_of((tmp_path / "out/tiny.md").read_text(), "## All figures")]

    assert "1 of 1" in call(f"--rows {NAMES['baseline']}")
    assert runs() == ["1 of 1", "0 of 1", "0 of 1"]
    assert "2 of 3" in call()
    assert runs() == ["1 of 1"] * 3
    text = (tmp_path / "out/tiny.md").read_text()
    listed_studies = {
        row["study"]: row for row in rows_of((tmp_path / "out/README.md").read_text(), "# Results on real data")
    }
    assert listed_studies["[Tiny](tiny.md)"]["finding"] == finding(
        TINY_STUDY, records.load(tmp_path / "out/records", ["synthetic"])
    )
    assert "Plankton, small set" in listed_studies  # no page yet, so no link
    (tmp_path / "runs").rename(tmp_path / "gone")  # the records are enough
    call()
    assert (tmp_path / "out/tiny.md").read_text() == text
    found = records.load(tmp_path / "out/records", ["synthetic"])
    kept = found.runs["synthetic", NAMES["pool-mean"], 0]
    directory = records.directory_of(TINY_STUDY.labels[NAMES["pool-mean"]], 0, tmp_path / "gone")
    assert kept["test"] == run_directory.summary(directory)["test"]
    assert kept["environment"]["processor"]
    assert found.curves["synthetic", NAMES["pool-mean"], 0] == run_directory.records(directory)


def test_a_run_that_fails_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = entries("synthetic", 1, ("baseline",), **{**TINY, "output_scale": 1e6, "clip": None})
    study = replace(TINY_STUDY, entries=(*bad, *TINY_STUDY.entries[1:]))
    monkeypatch.setitem(STUDIES, "tiny", study)
    entry = study.entries[0]
    directory = records.directory_of(entry, 0, tmp_path / "runs")
    directory.mkdir(parents=True)
    (directory / "failed.txt").write_text("training diverges")
    assert write("tiny", study, tmp_path / "runs", tmp_path / "out")
    assert "seed 0 failed: training diverges" in (tmp_path / "out/tiny.md").read_text()
    with pytest.raises(ConfigError, match="at least one"):
        run_study("tiny", None, 0, (), 1, tmp_path / "runs", tmp_path / "out", True)


# --- what is committed ------------------------------------------------------------------------------------------------

COMMITTED = sorted(path.stem for path in RESULTS.glob("*.md") if path.stem in STUDIES)


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_pages_are_what_their_records_say(name: str) -> None:
    study = STUDIES[name]
    found = records.load(RESULTS / "records", [entry.experiment for entry in study.entries])
    for entry in study.entries:
        records.check(found, entry)
    assert (RESULTS / f"{name}.md").read_text() == page(name, study, found)
    assert (RESULTS / f"{name}.csv").read_text() == as_csv(study, found)
    assert (RESULTS / f"{name}.png").exists()
    assert (RESULTS / "README.md").read_text() == contents(RESULTS)
