"""Each data set trains, resumes to the same weights and is equivariant afterwards: answers, masks, whole images."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import labtools
import numpy as np
import pytest
import torch
from labtools import DATA, SMALL, TREES, small

import quarterturn as qt
from quarterturn_lab.data.dataset import Scenes
from quarterturn_lab.data.galaxies import IMAGES, TABLE
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.score import evaluate, examples, labels_of, predict, scene_error
from quarterturn_lab.inference.network import for_whole_images, runner
from quarterturn_lab.inference.whole_images import BLOCK, object_map
from quarterturn_lab.models.build import build, filters_twin, initialise
from quarterturn_lab.runs import network, run_directory
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.settings.networks import BUILDINGS, NUCLEI, edited
from quarterturn_lab.training import training_run

CPU = torch.device("cpu")
QUARTERS = (0.0, 90.0, 180.0, 270.0)
ROWS = [
    ("galaxies", "roll-all-quarter", "maps"),
    ("galaxies", "roll-dense-half", "filters"),
    ("galaxies", "pool-mean-dihedral", "maps"),
    ("buildings", "roll-all-quarter", "maps"),
    ("buildings", "roll-all-half-dihedral", "filters"),
    ("buildings", "pool-mean", "filters"),
    ("nuclei", "pool-mean", "maps"),
    ("nuclei", "roll-all-quarter", "filters"),
    ("nuclei", "roll-all-half-dihedral", "maps"),
]


def tree(name: str, root: Path) -> Path:
    return getattr(labtools, TREES[name])(root, **({"side": 60} if name == "galaxies" else {}))


@pytest.mark.parametrize(("name", "row", "rotate"), ROWS)
def test_each_set_trains_and_is_equivariant_afterwards(name: str, row: str, rotate: str, tmp_path: Path) -> None:
    config = small(name, row, tree(name, tmp_path / "data"), rotate=rotate)
    result = training_run.run(config, tmp_path / "run")
    _, data, net = load_with_data(tmp_path / "run")
    group = qt.named(config.net.group)
    fresh = network.net_for(config, data.classes)
    assert any(not torch.equal(a, b) for a, b in zip(net.parameters(), fresh.parameters(), strict=True))
    x = examples(config, data, data.test[:2]).double()
    qt.assert_equivariant(net.double(), group, x)
    assert net(x).std() > 1e-9
    assert result["test"] == pytest.approx(result["test_4_turns"], abs=1e-5)  # turning them changes nothing
    if isinstance(data, Scenes):
        for i in data.test:  # whole images, square or not
            assert scene_error(config, net.float(), data, int(i), group) < 1e-5


@pytest.mark.parametrize("name", ["galaxies", "buildings", "nuclei"])
def test_a_plain_network_is_found_out(name: str, tmp_path: Path) -> None:
    config = small(name, "baseline", tree(name, tmp_path / "data"))
    result = training_run.run(config, tmp_path / "run")
    _, data, net = load_with_data(tmp_path / "run")
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(net, qt.C4, examples(config, data, data.test[:2]))
    assert result["test"] != result["test_4_turns"]
    if isinstance(data, Scenes):
        assert scene_error(config, net, data, int(data.test[0]), qt.C4) > 1e-4
        assert "test_constant" not in result
    else:  # what the mean of the training labels scores
        mean = data.labels[data.train].mean(0)
        wanted = np.sqrt(((data.labels[data.test] - mean) ** 2).mean())
        assert result["test_constant"]["rmse"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", ["galaxies", "buildings", "nuclei"])
def test_an_interrupted_run_ends_with_the_same_weights(name: str, tmp_path: Path) -> None:
    config = small(name, "roll-all-quarter", tree(name, tmp_path / "data"), checkpoint_seconds=0.0)
    training_run.run(config, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(step: int, total: int, loss: float) -> None:
        if step == total // 2 + 1:
            raise Stop

    with pytest.raises(Stop):
        training_run.run(config, tmp_path / "stopped", stop)
    training_run.run(config, tmp_path / "stopped")
    weights = [(tmp_path / where / "model.safetensors").read_bytes() for where in ("whole", "stopped")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("name", ["galaxies", "buildings", "nuclei"])
def test_training_learns(name: str, tmp_path: Path) -> None:
    config = small(name, "roll-all-half", tree(name, tmp_path / "data"), epochs=8, tiles=4, lr=1e-2)
    result = training_run.run(config, tmp_path / "run")
    losses = [record["train_loss"] for record in run_directory.records(tmp_path / "run")]
    assert losses[-1] < 0.8 * losses[0]
    if name == "buildings":  # the objects are bright
        assert result["test"]["auc"] > 0.95
    if name == "nuclei":
        assert result["test"]["dice"] > 0.8
        assert result["test"]["average_precision"] > 0.5


def test_the_decision_tree_as_output(tmp_path: Path) -> None:
    config = small("galaxies", "pool-mean", tree("galaxies", tmp_path / "data"), net={"output": "questions"}, epochs=6)
    training_run.run(config, tmp_path / "run")
    losses = [record["train_loss"] for record in run_directory.records(tmp_path / "run")]
    assert losses[-1] < losses[0]
    _, data, net = load_with_data(tmp_path / "run")
    answers = predict(config, net, data, data.test, CPU)
    assert np.allclose(answers[:, 0:3].sum(1), 1, atol=1e-5)
    assert np.allclose(answers[:, 3:5].sum(1), answers[:, 1], atol=1e-5)
    assert np.allclose(answers[:, 18:25].sum(1), answers[:, 13], atol=1e-5)
    qt.assert_equivariant(net.double(), qt.C4, examples(config, data, data.test).double())


# --- whole images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["roll-all-quarter", pytest.param("pool-mean", marks=pytest.mark.slow)])
def test_a_whole_1500_x_1500_tile_turns_along(row: str) -> None:
    """Through the ten layers of the paper's network, narrow; with blocks, and a part of it without."""
    record = edited(replace(BUILDINGS, stages=((4,) * 5 + (4,) * 5,), hidden=(8,)), row)
    net = build(record, "filters")
    initialise(net, 0)
    image = np.random.default_rng(0).normal(size=(3, 1500, 1500)).astype(np.float32)
    whole = object_map(runner(net, CPU), image, record.margin)
    assert whole.shape == (1460, 1460)
    turned = np.ascontiguousarray(np.rot90(image, -1, (1, 2)))
    again = object_map(runner(net, CPU), turned, record.margin)
    assert np.abs(np.rot90(again, 1) - whole).max() < 1e-5
    assert np.abs(again - whole).max() > 1e-4  # it did turn
    at_once = object_map(runner(net, CPU), image[:, :400, :330], record.margin, shrinks=True)
    assert np.abs(at_once - whole[:360, :290]).max() < 1e-5


def test_blocks_do_not_show() -> None:
    config_net = edited(SMALL["buildings"], "roll-all-half")
    net = build(config_net, "filters")
    initialise(net, 0)
    image = np.random.default_rng(0).normal(size=(3, BLOCK + 70, 2 * BLOCK + 33)).astype(np.float32)
    parts = object_map(runner(net, CPU), image, config_net.margin)
    assert parts.shape == (BLOCK + 58, 2 * BLOCK + 21)
    assert np.abs(parts - object_map(runner(net, CPU), image, config_net.margin, shrinks=True)).max() < 1e-5


@pytest.mark.parametrize("group", ["C4", "D4"])
@pytest.mark.parametrize("sizes", [(16, 16), (17, 17), (31, 24), (40, 23), (9, 50)])
def test_the_u_net_is_exact_at_every_size(sizes: tuple[int, int], group: str) -> None:
    for row in ("pool-mean", "roll-all-quarter"):
        net = build(edited(SMALL["nuclei"], row, group=group), "filters").double()
        initialise(net, 0)
        x = torch.randn(1, 3, *sizes, dtype=torch.float64)
        assert net(x).shape == (1, 2, *sizes)
        qt.assert_equivariant(net, qt.named(group), x)


@pytest.mark.parametrize("side", [31, 32])
def test_the_u_net_is_one_network_in_both_modes(side: int) -> None:
    for row in ("baseline", "pool-mean", "roll-all-quarter", "roll-all-half-dihedral"):
        record = edited(SMALL["nuclei"], row)
        maps = build(record).double()
        initialise(maps, 0)
        x = torch.randn(2, 3, side, side, dtype=torch.float64)
        twin = filters_twin(record, maps.float()).double()
        torch.testing.assert_close(twin(x), maps.double()(x), rtol=1e-10, atol=1e-12)


def test_the_u_nets_rows() -> None:
    """Convolutions 3-16-16, 16-32-32, 32-64-64, then 96-32-32, 48-16-16; 1x1: 16-32 and 32-2."""

    def count(row: str) -> int:
        return sum(p.numel() for p in build(edited(NUCLEI, row)).parameters())

    pairs = [(3, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (96, 32), (32, 32), (48, 16), (16, 16)]
    assert count("baseline") == sum(9 * a * b + b for a, b in pairs) + 16 * 32 + 32 + 32 * 2 + 2 == 118_866
    assert count("pool-mean") == count("baseline")
    quarter = [(3, 4)] + [(a, b // 4) for a, b in pairs[1:]]
    assert count("roll-all-quarter") == sum(9 * a * b + b for a, b in quarter) + 16 * 32 + 32 + 32 * 2 + 2 == 30_174
    names = [name for name, _ in build(edited(NUCLEI, "roll-all-quarter")).named_children()]
    assert names.index("keep2") < names.index("shrink2") < names.index("join2") < names.index("join1")


def test_masks_are_averaged_over_quarter_turns_alone(tmp_path: Path) -> None:
    config = small("buildings", "baseline", tree("buildings", tmp_path / "data"))
    training_run.run(config, tmp_path / "run")
    _, data, net = load_with_data(tmp_path / "run")
    by_hand = [predict(config, net, data, data.test[:1], CPU, (angle,))[0] for angle in QUARTERS]
    assert np.allclose(predict(config, net, data, data.test[:1], CPU, QUARTERS)[0], np.mean(by_hand, axis=0))
    assert labels_of(config, data, data.test)[0].shape == by_hand[0].shape == (118, 118)
    with pytest.raises(ConfigError, match="quarter turns only"):
        evaluate(config, net, data, data.test, CPU, (0.0, 45.0))


# --- real data --------------------------------------------------------------------------------------------------------


def unpacked(name: str, root: Path) -> Path:
    if not (DATA / f"{name}.tar").exists():
        pytest.skip("needs ../shared/data")
    subprocess.run([DATA / "unpack", root, name], check=True, stdout=subprocess.DEVNULL)
    return root


def test_real_roads_train_and_whole_tiles_turn_along(tmp_path: Path) -> None:
    root = unpacked("roads", tmp_path / "data") / "mass_roads"
    shutil.rmtree(root / "valid")
    for kind in ("sat", "map"):  # one of the two is enough
        next((root / "test" / kind).glob("tile09.*")).unlink()
    config = small("roads", "roll-all-quarter", root, epochs=1, eval_train=1)
    result = training_run.run(config, tmp_path / "run")
    assert (result["train_images"], result["test_images"], result["presentations"]) == (7, 1, 28)
    assert result["test"] == pytest.approx(result["test_4_turns"], abs=1e-5)
    _, data, net = load_with_data(tmp_path / "run")
    assert data.images[int(data.test[0])].shape == (3, 1500, 1500)
    assert scene_error(config, net, data, int(data.test[0]), qt.C4) < 1e-5


def test_real_galaxies_train_and_answers_are_invariant(tmp_path: Path) -> None:
    root = unpacked("galaxies", tmp_path / "data") / "galaxies"
    lines = (root / TABLE).read_text().splitlines()[:81]
    few = tmp_path / "few"
    (few / IMAGES).mkdir(parents=True)
    (few / TABLE).write_text("\n".join(lines))
    for line in lines[1:]:
        shutil.move(root / IMAGES / f"{line.split(',')[0]}.jpg", few / IMAGES)
    config = small("galaxies", "roll-all-quarter", few, net={"output": "questions"})
    result = training_run.run(config, tmp_path / "run")
    assert result["test"] == pytest.approx(result["test_4_turns"], abs=1e-6)
    _, data, net = load_with_data(tmp_path / "run")
    assert len(data.classes) == 17  # a part of the tree
    qt.assert_equivariant(net.double(), qt.C4, examples(config, data, data.test).double())


def test_real_nuclei_train_and_masks_turn_along(tmp_path: Path) -> None:
    root = unpacked("nuclei", tmp_path / "data") / "nuclei"
    for number, path in enumerate(sorted((root / "images").iterdir())):
        if number % 15:
            path.unlink()
            (root / "labels" / path.name).unlink()
    config = small("nuclei", "roll-all-quarter", root, epochs=1)
    result = training_run.run(config, tmp_path / "run")
    assert result["test"] == pytest.approx(result["test_4_turns"], abs=1e-5)
    _, data, net = load_with_data(tmp_path / "run")
    for i in data.test:
        assert scene_error(config, net, data, int(i), qt.C4) < 1e-5
    assert for_whole_images(config, net) is not net  # trained by turning maps, used by turning filters
