"""One run in its directory: train or resume, score, and write the model and its summary."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from quarterturn_lab import ranks, stopping
from quarterturn_lab.data import voxels
from quarterturn_lab.data.dataset import Data, Dataset, Indices, Scenes
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.errors import ConfigError, Diverged, RunError
from quarterturn_lab.evaluation.score import evaluate, examples, turned_volumes
from quarterturn_lab.evaluation.tasks import answer_scores
from quarterturn_lab.files import clear_unfinished, no_space, sha256, write_atomically
from quarterturn_lab.runs import environment
from quarterturn_lab.runs.loading import load, loader_settings
from quarterturn_lab.runs.model_card import ModelCard
from quarterturn_lab.runs.network import net_for, net_to_train
from quarterturn_lab.runs.run_directory import SEALED, check_config, locked, read_config, summary
from quarterturn_lab.settings.config import Config, checked
from quarterturn_lab.training import checkpoint, loop, order
from quarterturn_lab.training.trackers import closing_all, trackers_of

Progress = Callable[[int, int, float], None]  # step, all steps, loss
Say = Callable[[str], None]
QUARTERS = (0.0, 90.0, 180.0, 270.0)


def run(
    config: Config,
    directory: Path,
    progress: Progress | None = None,
    say: Say | None = None,
    data: Data | None = None,
    replan: loop.Replan | None = None,
) -> dict[str, Any]:
    """Train or resume a run, unless it is finished, and return its summary.

    `say` gets what is worth a line. `data` are those of the run, if they are loaded already. `replan` may change the
    number of epochs on the way, and keeps the change in config.json.
    """
    with no_space(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)
    clear_unfinished(directory)
    if found := _finished(config, directory, data):  # without the lock, which another user's run does not give
        return found
    with locked(directory):
        if found := _finished(config, directory, data):
            return found
        return _run(config, directory, progress=progress, say=say, data=data, replan=replan)


def _finished(config: Config, directory: Path, data: Data | None) -> dict[str, Any] | None:
    """The summary of the run in the directory, if it has these settings and is finished.

    Images are compared where their folder has another name: they may have been moved, or be others.
    """
    check_config(config, directory)
    if not (directory / "summary.json").exists():
        return None
    found = summary(directory)
    moved = "data" in found and config.data != read_config(directory).data
    if moved and (load(config) if data is None else data).fingerprint != found["data"]:
        raise ConfigError(
            f"{directory} holds a run with other images: give the same --data as before, another --runs-dir or "
            "--seed, or remove the directory"
        )
    return found


@ranks.together
def _run(
    config: Config,
    directory: Path,
    *,
    progress: Progress | None = None,
    say: Say | None = None,
    data: Data | None = None,
    replan: loop.Replan | None = None,
) -> dict[str, Any]:
    """Train or resume a run with all processes. Only the first one reads and writes the directory."""
    if ranks.world() > config.batch_images:
        raise ConfigError(
            f"{ranks.world()} processes cannot share batches of {config.batch_images} images: use fewer, or a larger "
            "--batch"
        )
    start = time.perf_counter()
    torch.set_num_threads(config.threads)
    device = environment.pick_device(config.device)
    if config.precision == "bf16" and device.type == "cpu" and (fault := environment.bf16_fault()):
        raise RunError(f"{fault}, or use --precision fp32")
    with ranks.first_on_each_machine():
        data = load(config) if data is None else data
    if data.fingerprint != ranks.agreed(data.fingerprint):
        raise RunError("this machine has other images than that of process 0: give all of them the same --data")
    started = ranks.agreed(checkpoint.exists(directory))  # then it has all weights
    net, notes = (
        (net_for(config, data.classes), [])
        if started
        else net_to_train(config, data.classes, lambda count: examples(config, data, some(data.train, count)))
    )
    _check_that_it_takes(net, config, data)
    if say and notes:
        say("; ".join(notes))
    if ranks.rank() == 0:
        write_atomically(directory / "config.json", config.model_dump_json(indent=1))
        write_atomically(
            directory / "environment.json", json.dumps(environment.describe(config, data, device), indent=1)
        )
    return _train(config, directory, data, net.to(device), device, progress, say, replan, start)


def lengthen(directory: Path, epochs: int) -> Config:
    """Reopen a finished run for more epochs: `run` goes on with the settings that this returns."""
    with locked(directory):
        done, config = summary(directory), read_config(directory)
        if "stopped_epoch" in done:
            raise ConfigError(
                f"{directory} stopped early, at epoch {done['stopped_epoch']}, because validation scores got no "
                "better: start another run, with another --seed or without --patience"
            )
        if epochs <= config.epochs:
            raise ConfigError(f"{directory} has {config.epochs} epochs already: give a larger number, got {epochs}")
        longer = checked(
            {**dict(config), "epochs": epochs, "earlier_plans": (*config.earlier_plans, (config.epochs, config.epochs))}
        )
        (directory / "summary.json").unlink()  # first: without it, the run can be finished again as it was
        write_atomically(directory / "config.json", longer.model_dump_json(indent=1))
    return longer


@torch.no_grad()
def _check_that_it_takes(net: nn.Module, config: Config, data: Data) -> None:
    """Raise before any training if the network cannot take the images."""
    channels, side = config.net.channels, config.net.side
    if len(data.images[0]) != channels:
        raise ConfigError(f"the images have {len(data.images[0])} channels: give --channels {len(data.images[0])}")
    if isinstance(data, Scenes) and data.spacings and config.net.group:
        voxels.check(config.net.group, sorted(set(data.spacings)))
    try:
        net.eval()(torch.zeros(1, channels, *[side] * config.net.axes))
    except (RuntimeError, ValueError) as error:
        why, size = str(error).splitlines()[0], " x ".join([str(side)] * config.net.axes)
        raise ConfigError(f"the network does not take images of {size} ({why}): try a larger --side") from None


def _train(
    config: Config,
    directory: Path,
    data: Data,
    net: nn.Module,
    device: torch.device,
    progress: Progress | None,
    say: Say | None,
    replan: loop.Replan | None,
    start: float,
) -> dict[str, Any]:
    state = loop.new_state(config, net, device)
    writes = ranks.rank() == 0
    records = checkpoint.restore(directory, state, data, say) if writes else []
    checkpoint.share(state)
    state.seconds["setup"] += time.perf_counter() - start
    saved = time.monotonic()
    with (
        stopping.later(says=writes) as asked,  # the others go on until the first has saved and ended
        closing_all(trackers_of(config, directory) if writes else []) as trackers,
    ):
        for step in loop.train(config, data, state, replan):
            if not writes:
                continue
            if step.record:
                records.append(step.record)
                _append(directory, step.record)
                for tracker in trackers:
                    tracker.log(step.step, step.record)
            best = bool(step.record and state.best and state.best.epoch == step.record["epoch"])
            number = asked()
            if best or number or time.monotonic() - saved >= config.checkpoint_seconds:
                checkpoint.save(directory, state, records, data, best)
                saved = time.monotonic()
            if number:
                raise stopping.Stopped(number, f"saved after step {step.step:,} of {step.total:,} in {directory}")
            if progress:
                progress(step.step, step.total, step.loss)
    return _finish(config, directory, data, state, records)


def _finish(
    config: Config,
    directory: Path,
    data: Data,
    state: loop.State,
    records: list[dict[str, Any]],
) -> dict[str, Any]:
    _check_weights(state)
    writes = ranks.rank() == 0
    if writes:
        checkpoint.save(directory, state, records, data)
    net, device = state.scored, state.fabric.device
    if state.best:
        net.load_state_dict(state.best.weights)
    loop.check_outputs(config, net, device)
    wall, cpu = state.seconds["wall"], ranks.summed(torch.tensor(state.seconds["cpu"]))
    epochs = state.step // order.steps_per_epoch(config, data)
    presented = len(data.train) * order.tiles_of(config, data) * epochs
    result = {
        "experiment": config.experiment,
        "row": config.row,
        "seed": config.seed,
        "group": config.net.group,
        "rotate": config.rotate,
        "factory": config.factory,
        **({"backbone": config.backbone, "how": config.how} if config.backbone else {}),
        "parameters": sum(p.numel() for p in net.parameters()),
        "train_images": len(data.train),
        "test_images": len(data.test),
        "skipped_images": len(data.bad),
        "batch_images": config.batch_images,
        "batch_pathways": config.batch_images * config.net.pathways,
        "presentations": presented,
        "task": data.task,
        **({"best_epoch": state.best.epoch} if state.best else {}),
        **({"stopped_epoch": epochs} if state.stopped else {}),
        **_scores("test", config, net, data, data.test, device),
        "train": evaluate(config, net, data, some(data.train, config.eval_train), device),
        **_constant(data),
        **(_scores("valid", config, net, data, data.valid, device) if len(data.valid) else {}),
        "cpu_seconds": round(float(cpu), 2),
        "wall_seconds": round(wall, 2),
        "images_per_second": round(presented / wall, 1) if wall else None,
        "waiting_share": round(state.seconds["waiting"] / wall, 4) if wall else None,
        "data": data.fingerprint,
    }
    if not writes:
        return result
    write_atomically(directory / "model.safetensors", save({k: v.contiguous() for k, v in net.state_dict().items()}))
    write_atomically(directory / "model.json", _model_card(config, data).to_json())
    result["sha256"] = {name: sha256(directory / name) for name in SEALED}
    write_atomically(directory / "summary.json", json.dumps(result, indent=1))
    return result


def some(indices: Indices, count: int) -> Indices:
    """At most so many of these, evenly spread."""
    return indices[:: max(1, len(indices) // count)][:count]


def _constant(data: Data) -> dict[str, Any]:
    """What the mean of the training labels scores on test images, where labels are shares: a network has to beat it."""
    if data.task != "answers" or not isinstance(data, Dataset):
        return {}
    labels = data.labels[data.test]
    mean = data.labels[data.train].mean(axis=0, dtype=np.float64)
    return {"test_constant": answer_scores(np.broadcast_to(mean, labels.shape), labels)}


def _check_weights(state: loop.State) -> None:
    """Raise if the last step has left weights that are not numbers: the loss before it cannot tell."""
    if not all(bool(torch.isfinite(value).all()) for value in state.scored.state_dict().values()):
        raise Diverged(
            "training diverges: weights are not finite after the last step. The last checkpoint is kept. Lower --lr, "
            "or clip the gradient with --clip 1"
        )


def _scores(
    part: str, config: Config, net: nn.Module, data: Data, indices: Indices, device: torch.device
) -> dict[str, Any]:
    found = {part: evaluate(config, net, data, indices, device)}
    if isinstance(data, Scenes) and data.axes == 3:
        turned = turned_volumes(data, indices)
        found[part]["turned_dice"] = evaluate(config, net, turned, turned.test, device)["dice"]
    if config.score_turns:
        found[f"{part}_4_turns"] = evaluate(config, net, data, indices, device, QUARTERS)
    return found


def _model_card(config: Config, data: Data) -> ModelCard:
    """The model card of a run."""
    return ModelCard(
        task=data.task,
        experiment=config.experiment,
        classes=data.classes,
        settings=loader_settings(config).model_copy(update={"folder": None}),
        scaling=scaling_of(data),
        bands=data.bands,
        margin=config.net.margin,
        shrinks=config.net.unet,
        units=data.units if isinstance(data, Dataset) else None,
        values=() if isinstance(data, Dataset) else data.values,
    )


def _append(directory: Path, record: dict[str, Any]) -> None:
    path = directory / "metrics.jsonl"
    with no_space(str(path)), path.open("a") as file:
        file.write(json.dumps(record) + "\n")
