"""The command `evaluate`: the scores of a finished run, overall and for each class, answer or image."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.classification import confusion, f1_by_tag, recalls, rmse
from quarterturn_lab.evaluation.score import labels_of, predict, scores_of
from quarterturn_lab.files import write_atomically
from quarterturn_lab.runs.environment import pick_device
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.runs.trust import Trust


def evaluate_run(directory: Path, turns: int, data_folder: str | None, output: Path | None, trust: Trust) -> None:
    """Print the scores, overall and for each class, answer or image, and write them to evaluation.json."""
    if turns < 1:
        raise ConfigError(f"--turns {turns}: give the number of rotations to average over, 1 or more")
    config, data, net = load_with_data(directory, data_folder, trust)
    device = pick_device(config.device)
    angles = tuple(360.0 * i / turns for i in range(turns))
    plain = predict(config, net.to(device), data, data.test, device)
    labels = labels_of(config, data, data.test)
    record: dict[str, Any] = {"test": scores_of(data, data.test, plain, labels)}
    if config.net.axes == 2:
        averaged = predict(config, net, data, data.test, device, angles)
        record[f"test, {turns} turns averaged"] = scores_of(data, data.test, averaged, labels)
    for name, found in record.items():
        print(f"{name}: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    if data.task == "classes":
        record |= _class_by_class(plain, labels, data.classes)
    elif data.task in ("answers", "numbers"):
        record |= _answer_by_answer(plain, labels, data.classes)
    elif data.task == "tags":
        record |= _tag_by_tag(plain, labels, data.classes)
    else:
        each = [scores_of(data, data.test[i : i + 1], [plain[i]], [labels[i]]) for i in range(len(plain))]
        record["images"] = {data.names[i]: found for i, found in zip(data.test, each, strict=True)}
        for name, found in record["images"].items():
            print(f"{name}: " + "  ".join(f"{key} {value:.4f}" for key, value in found.items()))
    path = (output or directory) / "evaluation.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record))
    print(f"\nwritten to {path}")


def _class_by_class(probabilities: Any, labels: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    counts = confusion(probabilities, labels)
    print(f"\n{'recall':>8}  {'images':>6}  class (most often confused with)")
    for label in np.argsort(np.nan_to_num(recalls(counts), nan=2.0)):
        others = np.where(np.arange(len(counts)) == label, -1, counts[label])
        taken = f" ({classes[others.argmax()]}, {others.max()})" if others.max() > 0 else ""
        print(f"{recalls(counts)[label]:8.3f}  {counts[label].sum():6d}  {classes[label]}{taken}")
    return {"classes": list(classes), "confusion": counts.tolist()}


def _tag_by_tag(predicted: Any, labels: Any, tags: tuple[str, ...]) -> dict[str, Any]:
    """F1 of each tag at probability one half, and how many images have it."""
    found = f1_by_tag(predicted >= 0.5, labels > 0.5)
    print(f"\n{'F1':>8}  {'images':>6}  tag")
    for i, name in enumerate(tags):
        print(f"{found[i]:8.3f}  {int((labels[:, i] > 0.5).sum()):6d}  {name}")
    return {"tags": dict(zip(tags, found.tolist(), strict=True))}


def _answer_by_answer(predicted: Any, labels: Any, answers: tuple[str, ...]) -> dict[str, Any]:
    """The error of each answer, next to the error of always predicting its mean."""
    found = {}
    print(f"\n{'RMSE':>8}  {'of mean':>8}  answer")
    for i, name in enumerate(answers):
        found[name] = rmse(predicted[:, i], labels[:, i])
        print(f"{found[name]:8.4f}  {float(labels[:, i].std()):8.4f}  {name}")
    return {"answers": found}
