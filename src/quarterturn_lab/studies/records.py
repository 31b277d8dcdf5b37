"""The records of studies: what is kept of each run when its weights are gone, and all that pages are made from.

    records/EXPERIMENT.jsonl      a line for each run: label, seed, its summary, what it ran on; or why it failed
    records/EXPERIMENT.json       the settings of each label
    records/EXPERIMENT.csv        the curves

A run that has a record is not run again. Records of several sittings, or machines, come together here.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quarterturn.cost import cost
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.files import damaged, read_json, read_text, write_atomically
from quarterturn_lab.runs import naming, network, run_directory
from quarterturn_lab.runs.trust import NOTHING, check_network
from quarterturn_lab.settings.config import Config, read
from quarterturn_lab.studies.definition import Entry, Study
from quarterturn_lab.training.sweep import FAILED

WAY_OUT = "restore the records from the repository, or give another --output"
MACHINE = ("quarterturn", "torch", "python", "platform", "device", "processor", "cores", "threads")
Key = tuple[str, str, int]  # experiment, label, seed
Record = dict[str, Any]
Curve = list[dict[str, Any]]


@dataclass
class Records:
    """The runs of one or several experiments, by experiment, label and seed; settings and curves beside them."""

    runs: dict[Key, Record]
    settings: dict[tuple[str, str], dict[str, Any]]
    curves: dict[Key, Curve]

    def of(self, entry: Entry) -> dict[int, Record]:
        """The finished runs of an entry, by seed."""
        return {seed: found for seed in range(entry.seeds) if (found := self.finished(entry, seed))}

    def finished(self, entry: Entry, seed: int) -> Record | None:
        record = self.runs.get((entry.experiment, entry.label, seed))
        return record if record is not None and "test" in record else None


def directory_of(entry: Entry, seed: int, root: Path) -> Path:
    return naming.directory_of(entry.config(seed), root)


def settings_of(config: Config) -> dict[str, Any]:
    """The settings that affect the results, without the seed."""
    return {name: value for name, value in config.identity().items() if name != "seed"}


# --- reading and writing ----------------------------------------------------------------------------------------------


def load(folder: Path, experiments: Iterable[str]) -> Records:
    """The records in a folder; those of an experiment that has none are empty."""
    found = Records({}, {}, {})
    for name in sorted(set(experiments)):
        if not (folder / f"{name}.jsonl").exists():
            continue
        with _whole(folder / f"{name}.jsonl") as text:
            for line in text.splitlines():
                record = json.loads(line)
                found.runs[name, record["label"], record["seed"]] = record
        for label, settings in read_json(folder / f"{name}.json", WAY_OUT).items():
            found.settings[name, label] = settings
        with _whole(folder / f"{name}.csv") as text:
            for row in csv.DictReader(io.StringIO(text)):
                key = (name, row.pop("label"), int(row.pop("seed")))
                found.curves.setdefault(key, []).append({k: json.loads(v) for k, v in row.items() if v})
    return found


@contextmanager
def _whole(path: Path) -> Iterator[str]:
    """The text of a file; whoever cannot make sense of it raises that it is damaged."""
    text = read_text(path, WAY_OUT)
    try:
        yield text
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        raise damaged(path, error, WAY_OUT) from None


def save(folder: Path, records: Records) -> None:
    """Write all records, sorted, so that a new run is a new line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({experiment for experiment, _, _ in records.runs}):
        keys = sorted(key for key in records.runs if key[0] == name)
        lines = "".join(json.dumps(records.runs[key]) + "\n" for key in keys)
        write_atomically(folder / f"{name}.jsonl", lines)
        settings = {label: records.settings[name, label] for label in sorted({key[1] for key in keys})}
        write_atomically(folder / f"{name}.json", json.dumps(settings, indent=1) + "\n")
        write_atomically(folder / f"{name}.csv", _curves(records, keys))


def _curves(records: Records, keys: list[Key]) -> str:
    points = [(key, point) for key in keys for point in records.curves.get(key, [])]
    columns = list(dict.fromkeys(name for _, point in points for name in point))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["label", "seed", *columns])
    for (_, label, seed), point in points:
        writer.writerow([label, seed, *(json.dumps(point[name]) if name in point else "" for name in columns)])
    return buffer.getvalue()


# --- collecting -------------------------------------------------------------------------------------------------------


def collect(study: Study, root: Path, folder: Path) -> Records:
    """The records in the folder, with those of all runs of the study below `root` that have ended."""
    records = load(folder, [entry.experiment for entry in study.entries])
    for entry in study.entries:
        check(records, entry)
        for seed in range(entry.seeds):
            directory, key = directory_of(entry, seed, root), (entry.experiment, entry.label, seed)
            if records.finished(entry, seed):
                continue
            if (directory / "summary.json").exists():
                run_directory.check_config(entry.config(seed), directory)
                records.runs[key] = _record(entry, seed, directory)
                records.curves[key] = run_directory.records(directory)
            elif (directory / FAILED).exists():
                why = (directory / FAILED).read_text(errors="replace").strip().rpartition("\n")[2]
                records.runs[key] = {"label": entry.label, "seed": seed, "failed": why}
            else:
                continue
            records.settings[entry.experiment, entry.label] = settings_of(entry.config(seed))
    return records


def check(records: Records, entry: Entry) -> None:
    """Refuse records that were made with other settings than the study has now."""
    kept = records.settings.get((entry.experiment, entry.label))
    if kept is None:
        return
    kept = settings_of(read(json.dumps({**kept, "seed": 0})))  # a setting that came later has its default
    now = settings_of(entry.config(0))
    if kept != now:
        names = sorted(name for name in {*kept, *now} if kept.get(name) != now.get(name))
        raise ConfigError(
            f"the records of {entry.experiment}/{entry.label} were made with other settings ({', '.join(names)}): "
            "remove its lines from the records, or give another --output"
        )


def _record(entry: Entry, seed: int, directory: Path) -> Record:
    config = run_directory.config_of(directory)
    check_network(config, directory / "config.json", NOTHING)
    environment = read_json(directory / "environment.json", run_directory.WAY_OUT)
    return {
        "label": entry.label,
        "seed": seed,
        **{
            name: value
            for name, value in run_directory.summary(directory).items()
            if name not in ("seed", "experiment", "sha256")
        },
        "multiply_adds": multiply_adds(config, len(environment["classes"])),
        "environment": {name: environment[name] for name in MACHINE if name in environment},
    }


def multiply_adds(config: Config, outputs: int) -> int:
    """Multiply-adds of one image in the network, counted from the definition of its layers."""
    net = network.net_for(config.model_copy(update={"rotate": "maps"}), tuple(map(str, range(outputs))))
    example = torch.zeros(1, config.net.channels, *[config.net.side] * config.net.axes)
    return cost(net, [example]).multiply_adds
