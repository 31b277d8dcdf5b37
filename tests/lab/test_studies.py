"""Studies: their definitions, the statistics, records that outlive runs, and pages that follow from them alone."""

import json
import tarfile
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
from quarterturn_lab.errors import ConfigError, LabError
from quarterturn_lab.evaluation.statistics import paired_interval, t_quantile
from quarterturn_lab.models import mnist
from quarterturn_lab.runs import network, run_directory
from quarterturn_lab.runs.loading import load
from quarterturn_lab.settings.experiments import PAPER_PLANKTON
from quarterturn_lab.studies import budgets, catalogue, findings, records
from quarterturn_lab.studies.catalogue import STUDIES
from quarterturn_lab.studies.definition import Entry, Question, Study, Takeaway, entries
from quarterturn_lab.studies.page import as_csv, page
from quarterturn_lab.studies.plot import picture
from quarterturn_lab.training import loop, training_run

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SMALL = STUDIES["small-set"]


# --- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_speaks_of_its_own_entries(name: str) -> None:
    study = STUDIES[name]
    assert len(study.labels) == len(study.entries)
    sides = [side for q in study.questions for side in (q.one, q.other)]
    sides += [side for t in study.takeaways for side in (t.who, t.cost_of, *t.others)]
    sides += [side for line in study.series.values() for side in line]
    assert {findings.split(side)[0] for side in sides} <= set(study.labels)
    assert len(study.takeaways) == 2
    assert study.limits
    runs_of_it = study.runs()
    assert len(runs_of_it) == sum(entry.seeds for entry in study.entries) == len(set(map(str, runs_of_it)))
    assert [seed for _, seed in runs_of_it] == sorted(seed for _, seed in runs_of_it)  # whole tables early


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
    assert {entry.seeds for entry in SMALL.entries if entry.row in catalogue.MAIN and not entry.options} == {5}
    assert [len(SMALL.runs(seeds)) for seeds in (1, 3, None)] == [30, 90, 104]
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
    counts = {e.label: records.multiply_adds(e.config(0), 121) for e in SMALL.entries if e.row in catalogue.MAIN}
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
    for name, group in (("seven_c4", qt.C4), ("seven_d4", qt.D4)):
        qt.assert_equivariant(nets[name].double().eval(), group, x)
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
    committed = records.load(RESULTS / "records", ["mnist-rot-choice"])
    assert "of the test" not in page("mnist-search", study, committed)
    assert "test" not in findings.sentence(study, committed, study.takeaways[0])


def test_the_digit_network_that_is_tested_is_the_one_that_validation_prefers() -> None:
    search, final = STUDIES["mnist-search"], STUDIES["rotated-mnist"]
    tried = records.load(RESULTS / "records", ["mnist-rot-choice"])
    scores = {e.label: findings.values(search, tried, e.label)[0] for e in search.entries}  # "test": those held out
    assert min(scores, key=scores.__getitem__) == catalogue.CHOSEN
    assert sorted(scores.values())[1] > scores[catalogue.CHOSEN]  # no tie to be broken
    chosen, tested = search.labels[catalogue.CHOSEN].config(0), final.labels[catalogue.CHOSEN].config(0)
    assert (chosen.factory, chosen.augment, chosen.lr) == (tested.factory, tested.augment, tested.lr)
    spent = [run["cpu_seconds"] for run in tried.runs.values()]
    best = records.load(RESULTS / "records", ["mnist-rot-best"])
    assert set(best.runs) <= {("mnist-rot-best", catalogue.CHOSEN, 0)}
    assert sum(spent) + sum(run["cpu_seconds"] for run in best.runs.values()) < 6 * 3600  # three hours of two cores


# --- name lists -------------------------------------------------------------------------------------------------------


def listed() -> dict[str, set[str]]:
    return {part: splits.committed(f"plankton_three_way/{part}.txt") for part in plankton_three_way.PARTS}


def test_the_committed_parts_are_disjoint() -> None:
    parts = listed()
    assert {part: len(names) for part, names in parts.items()} == {"train": 19_377, "valid": 1_211, "test": 3_633}
    assert len(set.union(*parts.values())) == 24_221
    for part, names in parts.items():
        folder = Path(splits.__file__).parent / "committed_splits" / "plankton_three_way"
        assert splits.written(sorted(names)) == (folder / f"{part}.txt").read_text()
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
    scores = {"cross_entropy": loss, "accuracy": 0.5}
    averaged = {"cross_entropy": loss if turned is None else turned, "accuracy": 0.5}
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


def test_sentences_follow_from_the_figures() -> None:
    pool, roll = SMALL.takeaways
    found = made_up(LOSSES, {"baseline-linear": [1.80, 1.82, 1.79]})
    text = findings.sentence(SMALL, found, pool)
    preferred = "`baseline-linear` with 4 turns averaged (1.803), the plain network here that validation prefers"
    assert (
        f"test cross-entropy of 1.700: lower than `baseline` (2.000), `baseline-linear` (1.953) and {preferred};"
        in text
    )
    assert text.endswith(
        "; by test error it is not told apart from the latter; it takes 4.0 times the CPU seconds of `baseline` and "
        "4.0 times those of `baseline-linear`."
    )
    for (_, label, seed), run in found.runs.items():
        if label == "pool-mean":
            run["test"] = {**run["test"], "accuracy": 0.6 + 0.01 * seed}
    assert "; by test error it is lower than the latter;" in findings.sentence(SMALL, found, pool)
    text = findings.sentence(SMALL, found, roll)
    assert "of 2.210: higher than `baseline-half` (2.113), `baseline-linear` (1.953) and `baseline-linear` with" in text
    assert text.count("lower") == 0
    open_one = made_up({"baseline": [2.0, 2.1, 1.9], "pool-mean": [2.1, 1.9, 2.0]})
    text = findings.sentence(SMALL, open_one, pool)
    assert "of 2.000: not set against `baseline-linear`, and not told apart from `baseline` (2.000), the plain" in text
    single = findings.sentence(SMALL, made_up({"baseline": [2.0], "pool-mean": [1.9]}), pool)
    assert "lower than `baseline` (2.000, one seed, which decides nothing), the plain network here" in single
    assert findings.sentence(SMALL, made_up({}), pool).endswith("(`pool-mean`): not run yet.")


def test_the_intervals_behind_the_sentences_are_in_the_table() -> None:
    found = made_up(LOSSES, {"baseline-half": [1.0, 1.1, 1.2]})
    lines = page("small-set", SMALL, found).splitlines()
    row = next(line for line in lines if line.startswith("| `pool-mean` | `baseline-half` with 4 turns averaged |"))
    assert "| 3 | +0.600 | +0.338 to +0.862 |" in row
    assert "| worse | +0.00 (+0.00 to +0.00) |" in row
    assert row.endswith("that validation prefers |")
    asked = findings.asked(SMALL, found)
    assert len(asked) == len(set(asked)) == len(SMALL.questions) + 2
    usual = made_up({**LOSSES, "baseline-linear": [1.0, 1.1, 1.2]})
    assert len(findings.asked(SMALL, usual)) == len(SMALL.questions)  # both are questions of the study anyway


def test_orders_of_the_paper_that_do_not_show_are_said() -> None:
    losses = {**LOSSES, "pool-max": [1.70, 1.72, 1.69], "roll-dense-half": [1.70, 1.71, 1.70]}
    text = page("small-set", SMALL, made_up(losses))
    assert (
        "As in the paper: `pool-mean` against `baseline` (better), `roll-dense-half` against `pool-mean` (not" in text
    )
    differ = text.split("Otherwise than in the paper:")[1].split("##")[0]
    assert "- `roll-all-quarter` against `baseline-half`: better in the paper, worse here (+0.097 test cross" in differ
    assert "- `pool-max` against `pool-mean`: worse in the paper, not told apart here (+0.003 test cross" in differ
    assert "| 0.7048, 0.6781: worse | asked later: another function |" in text
    assert "What of the paper shows here" not in page("small-set", SMALL, made_up({"baseline": [2.0] * 3}))
    assert "| the paper |" not in page("rotated-mnist", STUDIES["rotated-mnist"], records.Records({}, {}, {}))


def test_machines_are_named_with_what_they_ran() -> None:
    found = made_up(LOSSES)
    assert "- Ran on p, Python 3, torch 2, x, 2 cores.\n" in page("small-set", SMALL, found)
    for label, seed in (("baseline", 1), ("baseline", 2), ("pool-max", 0)):
        run = found.runs["plankton-small", label, seed]
        run["environment"] = {**run["environment"], "processor": "y"}
    text = page("small-set", SMALL, found)
    assert "- Ran on p, Python 3, torch 2, x, 2 cores, where nothing else is said.\n" in text
    assert "- On p, Python 3, torch 2, y, 2 cores: `baseline` (seeds 1, 2), `pool-max` (seed 0). CPU" in text


def test_turns_that_were_not_scored_leave_a_gap() -> None:
    found = made_up({"baseline": [2.0], "pool-mean": [1.9]})
    whole = picture(SMALL, found)
    turned = found.runs["plankton-small", "pool-mean", 0].pop("test_4_turns")
    text = page("small-set", SMALL, found)
    assert "| pool-mean | 1 of 5 | 1,000 | 2.0 | 1.900 | 1.900 | 50.0 | - | - | 400 |" in text
    assert ",0.5,,\n" in as_csv(SMALL, found)
    assert findings.values(SMALL, found, "pool-mean@4") == {}
    assert findings.values(SMALL, found, "baseline@4") == {0: 2.0}
    assert picture(SMALL, found) == whole  # where averaging changes nothing, its dot is not drawn either
    found.runs["plankton-small", "pool-mean", 0]["test_4_turns"] = turned
    assert "| 1.900 | 1.900 | 50.0 | 1.900 | 50.0 | 400 |" in page("small-set", SMALL, found)


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


def test_the_best_network_for_a_budget_is_the_one_that_validation_prefers() -> None:
    study = STUDIES["equal-cost"]
    found = records.Records({}, {}, {})

    def add(label: str, loss: float, cpu: float, turned: float) -> None:
        entry = study.labels[label]
        found.runs[entry.experiment, label, 0] = record(entry, 0, loss, cpu, turned)

    assert budgets.ranking(study, found)[0] == "No run of these has been made."
    add("baseline-all", 2.0, 200, 1.9)
    add("baseline-all-40epochs", 1.8, 900, 1.7)
    add("roll-all-quarter-all", 1.8, 240, 1.8)
    add("pool-mean-all", 1.6, 750, 1.6)
    shown = [[(o.line, o.valid) for o in budgets.offers(study, found, seconds)] for seconds in (100, 220, 250, 1000)]
    plain = [("baseline, 4 turns averaged", 1.9), ("baseline", 2.0)]
    turned, long = ("baseline, 4 turns averaged", 1.7), ("baseline", 1.8)
    assert shown[:3] == [[], plain, [("roll-all-quarter", 1.8), *plain]]
    assert shown[3] == [("pool-mean", 1.6), turned, long, ("roll-all-quarter", 1.8)]
    verdict, rows = budgets.ranking(study, found)
    assert verdict.endswith("other networks for other budgets: roll-all-quarter and pool-mean.")
    assert ("1,000", "2", "`baseline-all-40epochs` with 4 turns averaged", "1", "900", "1.700", "1.700") in rows
    for entry, cpu in ((study.labels["pool-mean-all-2epochs"], 150), (study.labels["pool-mean-all"], 750)):
        add(entry.label, 1.5, cpu, 1.5)
        best = found.runs[entry.experiment, entry.label, 0]
        best["test"] = {"cross_entropy": 9.0, "accuracy": 0.1}  # of which the choice knows nothing
    assert budgets.ranking(study, found)[0].endswith("at every budget: pool-mean.")
    only = {key: run for key, run in found.runs.items() if not key[1].startswith("baseline")}
    assert "No plain network is among" in budgets.ranking(study, records.Records(only, {}, {}))[0]
    # The baseline: 900 seconds for 40 epochs, 200 for 10.
    assert budgets.unevenness(study, found) == pytest.approx(22.5 / 20)
    assert "## The best network for a budget" in page("equal-cost", study, found)
    assert "## The best network for a budget" not in page("all-images", STUDIES["all-images"], made_up(LOSSES))
    # Where the picture has a line of dots for each entry, each offers itself, and plain ones with turns averaged.
    some = made_up(LOSSES, {"baseline-half": [1.0, 1.1, 1.2]})
    first = budgets.offers(SMALL, some, 125)[0]
    assert (first.side, first.runs) == ("baseline-half@4", 3)
    assert "pool-mean" not in [offer.side for offer in budgets.offers(SMALL, some, 125)]  # it takes 400 seconds
    assert "pool-mean" in [offer.side for offer in budgets.offers(SMALL, some, 500)]


def test_settings_are_those_of_the_experiment_and_not_of_its_first_row() -> None:
    few, search = (page(name, STUDIES[name], records.Records({}, {}, {})) for name in ("few-labels", "mnist-search"))
    assert STUDIES["few-labels"].entries[0].config(0).epochs == 160
    assert "- `plankton-small`, where the row does not say otherwise: 40 epochs," in few
    assert STUDIES["mnist-search"].entries[0].config(0).augment.turn == 0
    assert "Warps of training images: rotate 360.0," in search
    assert "dropout 0.2" in few
    assert "dropout as the network has it" in search


def test_the_page_says_which_networks_were_trained_past_their_best() -> None:
    found = made_up(LOSSES)
    assert findings.past_best(SMALL, found) == {}
    for seed, (lowest, last) in enumerate([(2.0, 3.0), (2.2, 2.6), (2.1, 2.5)]):
        curve = [{"epoch": 1}, *({"epoch": e, "valid_cross_entropy": v} for e, v in ((2, 2.9), (3, lowest), (4, last)))]
        found.curves["plankton-small", "pool-mean", seed] = curve
        found.curves["plankton-small", "baseline", seed] = [*curve[:-1], {"epoch": 4, "valid_cross_entropy": 2.1}]
    assert findings.past_best(SMALL, found) == {"pool-mean": (pytest.approx(2.1), pytest.approx(2.7))}
    assert "lowest and last: `pool-mean` 2.10 and 2.70." in page("small-set", SMALL, found)


def test_the_page_has_what_disappoints_fails_or_is_missing() -> None:
    found = made_up(LOSSES)
    found.runs["plankton-small", "stack", 0] = {"label": "stack", "seed": 0, "failed": "training diverges"}
    text = page("small-set", SMALL, found)
    top = text.split("\n\n")
    assert top[0] == "# Plankton, small set"
    assert [part.count(". ") for part in top[1:3]] == [0, 0]  # a sentence each
    assert top[3].startswith("![")
    assert "| roll-all-quarter | 3 of 5 |" in text
    assert "| pool-max | 1 of 3 | 1,000 | 2.0 | 1.900 | 1.900 |" in text
    assert "| stack | 0 of 3, 1 failed | - |" in text
    assert "| pool-rms | 0 of 3 | - |" in text
    assert "- `stack`: seed 0 failed: training diverges; seeds 1, 2 not run" in text
    assert "- `pool-mean`: seeds 3, 4 not run" in text
    assert "16 of 104 runs" in text
    row = next(line for line in text.splitlines() if line.startswith("| `roll-all-quarter` | `baseline-half` |"))
    assert "| 3 | +0.097 | +0.059 to +0.135 |" in row
    assert "| worse |" in row
    assert "| `roll-dense-half` | `pool-mean` | 0 | - | - | - | - | not run |" in text
    assert "The comparisons were chosen before the runs, but for those asked later, and" in text
    assert text.count("| asked later: ") == len(catalogue.LATER)
    assert text.index("## How to reproduce it") < text.index("## What it does not show")
    assert "quarterturn study small-set --data DIR" in text
    assert as_csv(SMALL, found).count("\n") == 17
    assert "training took 2.0 times its CPU seconds" in text
    for run in found.runs.values():
        run["wall_seconds"] = run.get("cpu_seconds")
    assert "Other processes" not in page("small-set", SMALL, found)


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
    assert "Not run, or failed" not in page(name, study, full)


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
NAMES = {row: f"{row}-1epochs-60images" for row in ("baseline", "pool-mean", "roll-all-quarter")}
TINY_STUDY = Study(
    "Tiny",
    "Seconds.",
    entries("synthetic", 1, NAMES, **TINY),
    (Takeaway(NAMES["pool-mean"], "pooling", (NAMES["baseline"],), NAMES["baseline"]),),
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
    out = call(f"--rows {NAMES['baseline']}")
    assert "1 of 1 runs are to be made" in out
    assert "1 of 3 runs have been made" in (tmp_path / "out/tiny.md").read_text()
    assert "2 of 3 runs are to be made" in call()
    text = (tmp_path / "out/tiny.md").read_text()
    assert "3 of 3 runs have been made" in text
    listing = (tmp_path / "out/README.md").read_text()
    assert "| [Tiny](tiny.md) | Seconds. | 3 of 3 |" in listing
    assert "| Plankton, small set | About 2,000" in listing  # no page yet, so no link
    (tmp_path / "runs").rename(tmp_path / "gone")  # the records are enough
    assert "to be made" not in call()
    assert (tmp_path / "out/tiny.md").read_text() == text
    found = records.load(tmp_path / "out/records", ["synthetic"])
    kept = found.runs["synthetic", NAMES["pool-mean"], 0]
    directory = records.directory_of(TINY_STUDY.labels[NAMES["pool-mean"]], 0, tmp_path / "gone")
    assert kept["test"] == run_directory.summary(directory)["test"]
    assert kept["environment"]["processor"]
    assert found.curves["synthetic", NAMES["pool-mean"], 0] == run_directory.records(directory)


def test_a_run_that_fails_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = entries("synthetic", 1, ("baseline",), **{**TINY, "lr": 1e6, "clip": None})
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
