"""Optimisers, schedules, averaged weights, balanced classes, parts of a batch, the best weights, and all at once."""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labtools import galaxy_tree, small, tiny, weights, worker
from safetensors.torch import load_file
from test_training_runs import losses
from torch import nn

from quarterturn_lab.data.dataset import Dataset
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.runs import run_directory
from quarterturn_lab.runs.loading import load
from quarterturn_lab.settings.config import Config, read
from quarterturn_lab.training import checkpoint, loop, training_run
from quarterturn_lab.training.average import Average
from quarterturn_lab.training.batches import Batches
from quarterturn_lab.training.optimizer import optimizer_for
from quarterturn_lab.training.order import epoch_order, samples_of
from quarterturn_lab.training.schedule import learning_rate, scored_epochs

CPU = torch.device("cpu")
BATCH_NORM = "quarterturn_lab.models.mnist:seven_plain"
EVERYTHING: dict[str, Any] = {
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "schedule": "cosine",
    "warmup": 0.1,
    "ema": 0.9,
    "label_smoothing": 0.1,
    "balanced": True,
    "accumulate": 3,
    "validation": 0.3,
    "keep": "best",
    "clip": 1.0,
    "factory": BATCH_NORM,  # it has statistics to average
    "net": {"side": 28},
    "eval_points": 6,
    "epochs": 6,
    "lr": 3e-3,
}


class Stop(Exception):
    pass


def stop_at(last: int) -> Callable[[int, int, float], None]:
    def stop(step: int, total: int, loss: float) -> None:
        if step == last:
            raise Stop

    return stop


# --- optimisers and schedules -----------------------------------------------------------------------------------------


def after_a_step(net: nn.Module, **settings: Any) -> dict[str, torch.Tensor]:
    """The parameters after one step on the sum of all parameters: every gradient is one."""
    optimizer = optimizer_for(tiny(**settings), net)
    sum(parameter.sum() for parameter in net.parameters()).backward()
    optimizer.step()
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def two_layers() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    for parameter in net.parameters():
        nn.init.constant_(parameter, 2.0)
    return net


def test_adamw_decays_the_weights_by_themselves_and_spares_biases_and_norms() -> None:
    found = after_a_step(two_layers(), optimizer="adamw", lr=0.1, weight_decay=0.5)
    assert found["0.weight"].unique().item() == pytest.approx(2 * (1 - 0.1 * 0.5) - 0.1, abs=1e-6)
    for name in ("0.bias", "1.weight", "1.bias"):
        assert found[name].unique().item() == pytest.approx(2 - 0.1, abs=1e-6)
    coupled = after_a_step(two_layers(), optimizer="adam", lr=0.1, weight_decay=0.5)["0.weight"]
    assert coupled.unique().item() == pytest.approx(2 - 0.1, abs=1e-6)  # the sign of the gradient alone


def test_sgd_has_nesterov_momentum() -> None:
    net = two_layers()
    optimizer = optimizer_for(tiny(optimizer="sgd", lr=0.1, momentum=0.5), net)
    for _ in range(2):
        optimizer.zero_grad()
        sum(parameter.sum() for parameter in net.parameters()).backward()
        optimizer.step()
    first, second = 1 + 0.5, 1 + 0.5 * 1.5  # the gradient, and momentum times the velocity after this step
    assert net[0].bias.detach().unique().item() == pytest.approx(2 - 0.1 * (first + second), abs=1e-6)


def test_a_cosine_after_a_warm_up() -> None:
    for warmup in (0.1, 10):
        config = tiny(schedule="cosine", warmup=warmup, lr=1.0)
        rates = [learning_rate(config, step, 100) for step in range(100)]
        assert rates[:11] == pytest.approx([*(0.1 * i for i in range(1, 11)), 1.0])
        assert rates[55] == pytest.approx(0.5)
        assert rates[10:] == sorted(set(rates[10:]), reverse=True)
        assert 0 < rates[99] < 1e-3
    warm = tiny(warmup=4, lr=1.0, drops=(0.5,))
    assert [learning_rate(warm, step, 10) for step in (0, 3, 4, 5)] == pytest.approx([0.25, 1.0, 1.0, 0.1])


def test_a_schedule_that_begins_anew() -> None:
    config = tiny(schedule="cosine", warmup=0.1, lr=1.0, epochs=5, earlier_plans=((2, 2),))
    rates = [learning_rate(config, step, 50) for step in range(50)]
    alone = tiny(schedule="cosine", warmup=0.1, lr=1.0, epochs=2)
    assert rates[:20] == [learning_rate(alone, step, 20) for step in range(20)]
    assert rates[20:] == [learning_rate(alone, step, 30) for step in range(30)]


@pytest.mark.parametrize("schedule", ["cosine", "drops"])
def test_a_plan_that_is_changed_goes_on_where_it_was_and_reaches_the_end(schedule: str) -> None:
    settings: dict[str, Any] = {"schedule": schedule, "warmup": 0.1, "lr": 1.0, "drops": (0.5,)}
    first = tiny(**settings, epochs=40)
    rates = [learning_rate(first, step, 400) for step in range(400)]
    for epochs in (13, 25, 90):  # from epoch 10 on, which is a quarter of the schedule
        changed = tiny(**settings, epochs=epochs, earlier_plans=((40, 10),))
        found = [learning_rate(changed, step, 10 * epochs) for step in range(10 * epochs)]
        assert found[:101] == rates[:101]
        for step in range(100, 10 * epochs):
            place = 100 + 300 * (step - 100) / (10 * epochs - 100)
            assert [*rates, 0.0][int(place) + 1] - 1e-9 <= found[step] <= rates[int(place)] + 1e-9
    again = tiny(**settings, epochs=60, earlier_plans=((40, 10), (20, 20)))  # shortened, and later trained for longer
    alone = tiny(**settings, epochs=40)
    assert [learning_rate(again, step, 600) for step in range(200, 600)] == [
        learning_rate(alone, step, 400) for step in range(400)
    ]


def test_scores_of_a_changed_plan_are_those_that_were_due() -> None:
    assert scored_epochs(tiny(epochs=40, eval_points=4)) == {10, 20, 30, 40}
    assert scored_epochs(tiny(epochs=40, eval_points=0)) == set()
    assert scored_epochs(tiny(epochs=24, eval_points=4, earlier_plans=((40, 15),))) == {10, 18, 24}
    assert scored_epochs(tiny(epochs=6, eval_points=2, earlier_plans=((2, 2),))) == {1, 2, 3, 6}


def test_settings_of_older_runs_are_read() -> None:
    old = tiny(epochs=5).model_dump(mode="json") | {"restarts": [2]}
    del old["earlier_plans"]
    assert read(json.dumps(old)).earlier_plans == ((2, 2),)


def test_impossible_settings_are_refused() -> None:
    for plans in (((4, 0),), ((3, 3),), ((4, 2), (4, 1)), ((4, 1), (5, 1)), ((1, 2),), ((7, 7),)):
        with pytest.raises(ConfigError, match="rising ends below 3"):
            tiny(earlier_plans=plans)
    with pytest.raises(ConfigError, match="patience needs the best weights"):
        tiny(patience=2)
    with pytest.raises(ConfigError, match="give one of the two"):
        tiny(balanced=True, class_weights=True)
    for name in ("lr", "weight_decay", "clip"):
        for wrong in (float("inf"), float("nan")):
            with pytest.raises(ConfigError, match=name):
                tiny(**{name: wrong})
    with pytest.raises(ConfigError, match=r"a whole number of steps, got 2\.5"):
        tiny(warmup=2.5)
    with pytest.raises(ConfigError, match="takes 50 steps and the run has 9"):
        learning_rate(tiny(warmup=50), 0, 9)
    with pytest.raises(ConfigError, match="a batch of 20 images has no 21 parts"):
        tiny(accumulate=21)
    for wrong in ({"ema": 1.0}, {"label_smoothing": -0.1}, {"momentum": 1.0}, {"optimizer": "lion"}, {"keep": "first"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            tiny(**wrong)


def test_smoothed_labels() -> None:
    task = TASKS["classes"]
    outputs, labels = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
    logs = outputs.log_softmax(1)[0]
    expected = -(0.7 * logs[0] + 0.3 * logs.mean())
    assert loop.loss_for(tiny(label_smoothing=0.3), task)(outputs, labels).item() == pytest.approx(expected.item())
    assert loop.loss_for(tiny(), task)(outputs, labels).item() == pytest.approx(-logs[0].item())


def test_what_is_for_classes_is_refused_elsewhere(tmp_path: Path) -> None:
    data = galaxy_tree(tmp_path / "galaxies")
    for option, message in (("label_smoothing", "--label-smoothing is for classes"), ("balanced", "--balanced is for")):
        config = small("galaxies", "baseline", data, **{option: 0.1 if option == "label_smoothing" else True})
        with pytest.raises(ConfigError, match=message):
            training_run.run(config, tmp_path / option)


def test_weights_of_classes_even_out_their_numbers() -> None:
    data = load(tiny())
    labels = np.array([0] * 6 + [1] * 2 + [3] * 4)
    few = replace(data, labels=labels, classes=("a", "b", "c", "d"), train=np.arange(12))
    weights = loop.class_weights(few)
    assert weights.tolist() == pytest.approx([12 / 3 / 6, 12 / 3 / 2, 0.0, 12 / 3 / 4])
    assert weights[torch.from_numpy(labels)].mean().item() == pytest.approx(1.0)
    outputs = torch.randn(12, 4)
    found = loop.loss_for(tiny(class_weights=True), TASKS["classes"], weights)(outputs, torch.from_numpy(labels))
    each = nn.functional.cross_entropy(outputs, torch.from_numpy(labels), reduction="none")
    classes = [each[torch.from_numpy(labels == label)].mean() for label in (0, 1, 3)]
    assert found.item() == pytest.approx(sum(classes).item() / 3)


# --- early stopping ---------------------------------------------------------------------------------------------------


def test_a_run_stops_when_scores_get_no_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter((0.5, 0.4, 0.45, 0.41, 0.3, 0.2))
    monkeypatch.setattr(loop, "evaluate", lambda *_: {"cross_entropy": next(given), "accuracy": 0.5})
    result = training_run.run(tiny(validation=0.2, keep="best", patience=2, epochs=6, eval_points=6), tmp_path)
    assert result["stopped_epoch"] == 4
    assert result["best_epoch"] == 2
    assert [record["epoch"] for record in run_directory.records(tmp_path)] == [1, 2, 3, 4]


def test_a_run_that_stopped_early_stays_so_when_it_was_killed_before_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(validation=0.2, keep="best", patience=1, epochs=8, eval_points=8, lr=1e-9)
    first = training_run.run(config, tmp_path)
    assert first["stopped_epoch"] < 8
    (tmp_path / "summary.json").unlink()
    assert training_run.run(config, tmp_path)["stopped_epoch"] == first["stopped_epoch"]


# --- averaged weights -------------------------------------------------------------------------------------------------


def test_the_average_is_that_of_weights_and_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    average, expected = Average(net, 0.5), {name: value.clone() for name, value in net.state_dict().items()}
    for step in range(1, 30):
        net(torch.randn(4, 1, 5, 5))  # moves the statistics
        with torch.no_grad():
            net[0].weight.add_(torch.randn(2, 1, 3, 3))
        average.update(net, step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in net.state_dict().items():
            expected[name] = (
                decay * expected[name] + (1 - decay) * value if value.is_floating_point() else value.clone()
            )
    for name, value in average.net.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert average.net[1].num_batches_tracked == 29
    assert not any(parameter.requires_grad for parameter in average.net.parameters())


def test_a_run_scores_and_saves_the_average(tmp_path: Path) -> None:
    config = tiny(ema=0.9, factory=BATCH_NORM, net={"side": 28})
    result = training_run.run(config, tmp_path)
    saved = checkpoint.read(tmp_path / "checkpoint.pt")
    model = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, saved["average"][name]) for name, value in model.items())
    assert not torch.equal(saved["net"]["0.weight"], saved["average"]["0.weight"])
    assert not torch.equal(saved["net"]["1.running_var"], saved["average"]["1.running_var"])
    assert run_directory.records(tmp_path)[-1]["test_cross_entropy"] == result["test"]["cross_entropy"]
    plain = training_run.run(tiny(factory=BATCH_NORM, net={"side": 28}), tmp_path / "plain")
    assert losses(tmp_path) == losses(tmp_path / "plain")  # averaging does not change what is trained
    assert plain["test"] != result["test"]


# --- batches ----------------------------------------------------------------------------------------------------------


def uneven(config: Config) -> Dataset:
    """60 training images: 40, 13, 6 and 1 of four classes."""
    data = load(config)
    assert isinstance(data, Dataset)
    labels = data.labels.copy()
    labels[data.train] = np.repeat([0, 3, 5, 7], [40, 13, 6, 1])
    return replace(data, labels=labels)


def test_balanced_classes_are_drawn_equally_often() -> None:
    config = tiny(balanced=True, train_size=60)
    data = uneven(config)
    for epoch in range(3):
        draws = epoch_order(config, data, epoch)
        samples = samples_of(config, data, draws)
        assert np.bincount(data.labels[samples]).tolist() == [15, 0, 0, 15, 0, 15, 0, 15]
        assert len(set(draws)) == len(draws) == 60  # each draw has an augmentation of its own
        times = np.bincount(samples)[data.train]
        assert set(times[:40]) == {0, 1}
        assert set(times[40:53]) == {1, 2}
        assert set(times[53:59]) == {2, 3}
        assert times[59] == 15
        assert np.array_equal(draws, epoch_order(config, data, epoch))
    assert not np.array_equal(epoch_order(config, data, 0), epoch_order(config, data, 1))
    assert not np.array_equal(epoch_order(config, data, 0), epoch_order(tiny(balanced=True, seed=1), data, 0))
    one_more = replace(data, train=data.train[1:])
    assert sorted(
        np.bincount(data.labels[samples_of(config, data, epoch_order(config, one_more, 0))])[[0, 3, 5, 7]]
    ) == [
        14,
        15,
        15,
        15,
    ]


def test_an_image_that_is_drawn_again_is_augmented_otherwise() -> None:
    config = tiny(balanced=True, train_size=60, batch=60)
    data = uneven(config)
    images, labels, _ = Batches(config, data, CPU).make(0)
    same = images[labels == 7]
    assert len(same) == 15
    assert all(not torch.equal(same[0], other) for other in same[1:])
    draws = epoch_order(config, data, 0)
    assert labels.tolist() == data.labels[samples_of(config, data, draws)].tolist()


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_a_batch(world: int) -> None:
    config = tiny(batch=16)
    data = load(config)
    for step in (0, 3):  # 16 and 12 images
        images, labels, whole = Batches(config, data, CPU).make(step)
        parts = [Batches(config, data, CPU, rank, world).make(step) for rank in range(world)]
        assert torch.equal(torch.cat([part[0] for part in parts]), images)
        assert torch.equal(torch.cat([part[1] for part in parts]), labels)
        assert {part[2] for part in parts} == {whole} == {len(labels)}
        assert len({len(part[1]) for part in parts}) <= 2


def final(config: Config, directory: Path) -> dict[str, torch.Tensor]:
    training_run.run(config, directory)
    return load_file(directory / "model.safetensors")


def test_parts_of_a_batch_give_the_step_of_the_whole_batch(tmp_path: Path) -> None:
    for row in ("baseline", "roll-all-quarter"):  # SGD: Adam turns rounding errors of tiny gradients into steps
        own: dict[str, Any] = {
            "net": {"dropout": 0.0},
            "optimizer": "sgd",
            "lr": 0.05,
            "batch": 16,
            "label_smoothing": 0.1,
        }
        whole = final(tiny(row, **own), tmp_path / row / "whole")
        parts = final(tiny(row, accumulate=3, **own), tmp_path / row / "parts")  # 6, 5, 5 and 4, 4, 4 images
        begin = final(tiny(row, accumulate=3, **{**own, "lr": 1e-9}), tmp_path / row / "begin")
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6)
        assert max((whole[name] - begin[name]).abs().max() for name in whole) > 0.01  # it has learned something
        assert losses(tmp_path / row / "parts") == pytest.approx(losses(tmp_path / row / "whole"), rel=1e-5)


def test_parts_of_a_batch_have_their_own_dropout() -> None:
    config, masks = tiny(accumulate=2), []
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(25, 10))
    net[1].register_forward_hook(lambda _, inputs, outputs: masks.append(outputs == 0))
    state = loop.new_state(config, net, CPU)
    made = torch.ones(8, 1, 5, 5), torch.zeros(8, dtype=torch.long), 8
    for step in (0, 0, 1):
        loop._update(config, state, loop.loss_for(config, TASKS["classes"]), made, step, 0.1)
    first, second, again, _, other, _ = masks
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


# --- validation and the best weights ----------------------------------------------------------------------------------


def test_validation_images_are_held_out_of_the_training_images() -> None:
    whole = load(tiny(train_size=None))
    data = load(tiny(train_size=None, validation=0.25, seed=3))
    assert np.array_equal(np.sort(np.concatenate([data.train, data.valid])), whole.train)
    assert np.array_equal(data.test, whole.test)
    assert np.bincount(data.labels[data.valid]).tolist() == [50] * 10  # of 200 each
    assert np.array_equal(data.valid, load(tiny(train_size=60, validation=0.25)).valid)  # for all seeds and sizes
    assert not set(data.valid) & set(load(tiny(train_size=60, validation=0.25)).train)
    with pytest.raises(ConfigError, match="leaves one part empty"):
        load(tiny(train_size=None, validation=1e-6))


@pytest.mark.parametrize(("better", "best"), [("lower", 2), ("higher", 1)])
def test_the_best_weights_of_the_way_are_kept(
    better: str, best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, seen = iter([0.5, 0.3, 0.3]), []

    def scored(config: Config, net: nn.Module, *_: Any) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in net.state_dict().items()})
        return {"cross_entropy": next(values), "accuracy": 0.5}

    monkeypatch.setattr(loop, "evaluate", scored)
    monkeypatch.setitem(TASKS, "classes", replace(TASKS["classes"], better=better))
    result = training_run.run(tiny(keep="best", validation=0.3, eval_points=3), tmp_path)
    assert result["best_epoch"] == best
    model = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, seen[best - 1][name]) for name, value in model.items())
    assert not torch.equal(model["conv1.weight"], seen[-1]["conv1.weight"])


def test_the_best_weights_need_validation_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--keep best needs validation images"):
        training_run.run(tiny(keep="best"), tmp_path)


# --- all at once, interrupted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 5, 12])
def test_a_run_with_everything_resumes_to_the_same_weights(stop: int, tmp_path: Path) -> None:
    config = tiny(checkpoint_seconds=0.0, **EVERYTHING)
    whole = training_run.run(config, tmp_path / "whole")
    with pytest.raises(Stop):
        training_run.run(config, tmp_path / "stopped", stop_at(stop))
    saved = checkpoint.read(tmp_path / "stopped/checkpoint.pt")
    assert saved["numbers"]["step"] == stop
    assert saved["average"]
    assert (saved["best"] is not None) == (stop >= 3)  # 3 steps make an epoch
    resumed = training_run.run(config, tmp_path / "stopped")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert {name: resumed[name] for name in ("best_epoch", "test", "valid")} == {
        name: whole[name] for name in ("best_epoch", "test", "valid")
    }


def test_a_run_with_everything_killed_at_any_moment_ends_with_the_same_weights(tmp_path: Path) -> None:
    config = tiny(checkpoint_seconds=0.0, **{**EVERYTHING, "train_size": 200, "batch": 10})
    training_run.run(config, tmp_path / "whole")
    killed = tmp_path / "killed"
    process = worker(config, killed)
    deadline = time.monotonic() + 200
    while len(run_directory.records(killed)) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "summary.json").exists()
    assert checkpoint.newest(killed)[1]["best"]
    training_run.run(config, killed)
    assert weights(killed) == weights(tmp_path / "whole")
    assert losses(killed) == losses(tmp_path / "whole")


def test_a_run_with_everything_killed_after_its_last_step_is_finished(tmp_path: Path) -> None:
    config = tiny(**EVERYTHING)
    first, before = training_run.run(config, tmp_path), weights(tmp_path)
    (tmp_path / "summary.json").unlink()
    assert training_run.run(config, tmp_path)["valid"] == first["valid"]
    assert weights(tmp_path) == before


def test_checkpoints_of_older_versions_are_resumed(tmp_path: Path) -> None:
    config = tiny(checkpoint_seconds=0.0)
    training_run.run(config, tmp_path / "whole")
    with pytest.raises(Stop):
        training_run.run(config, tmp_path / "old", stop_at(5))
    path = tmp_path / "old/checkpoint.pt"
    saved = checkpoint.read(path)
    del saved["average"], saved["best"]
    torch.save(saved, path)
    written = json.loads((tmp_path / "old/config.json").read_text())
    for name in EVERYTHING.keys() - {"net", "factory", "epochs", "lr", "clip", "weight_decay", "eval_points"}:
        del written[name]  # what older files lack
    (tmp_path / "old/config.json").write_text(json.dumps(written))
    training_run.run(config, tmp_path / "old")
    assert weights(tmp_path / "old") == weights(tmp_path / "whole")
