"""Many runs at a time, as processes or as jobs of a cluster. Finished runs are skipped, failed ones tried again."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.files import write_atomically
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.run_directory import check_config
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training import checkpoint, local_run
from quarterturn_lab.training.cluster import FOLDER, Cluster
from quarterturn_lab.training.local_run import FAILED
from quarterturn_lab.training.worker import MISTAKE

Job = tuple[Config, Path]
STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes


class Running(Protocol):
    """A run that has been started: `local_run.LocalRun` or `cluster.ClusterRun`."""

    config: Config
    directory: Path

    def poll(self) -> int | None: ...
    def message(self) -> str: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Where:
    """Where runs are trained, how many at once, and how often a failed one is tried again."""

    jobs: int | None = None  # at once; by default one for each core, or all of them on a cluster
    executor: str = "local"
    retries: int = 1
    slurm: tuple[str, ...] = ()  # options of sbatch

    def checked(self) -> "Where":
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: give the number of runs at the same time, 1 or more")
        if self.retries < 0:
            raise ConfigError(f"--retries {self.retries}: give how often to try a failed run again, 0 or more")
        if self.slurm and self.executor != "slurm":
            raise ConfigError("--slurm has options for --executor slurm: give both, or none")
        return self


def sweep(jobs: Sequence[Job], where: Where, bars: Bars, cluster: Cluster | None = None) -> None:
    """Train or resume all runs.

    A failed run does not stop the others. It is tried again from its checkpoint, unless it ended with a message about a
    mistake, which would come again; the final error lists all failures.
    """
    where = where.checked()
    for config, directory in jobs:
        check_config(config, directory)
    waiting = [job for job in jobs if not (job[1] / "summary.json").exists()]
    kept = len(jobs) - len(waiting)
    resumed = sum(checkpoint.exists(directory) for _, directory in waiting)
    if kept or resumed:
        bars.say(f"{kept} of {len(jobs)} runs are finished already, {resumed} resume from a checkpoint")
    if waiting and where.executor == "slurm" and cluster is None:
        cluster = Cluster(_common(waiting), where.slurm)
        bars.say(f"jobs of Slurm; their logs are in {cluster.folder / FOLDER}")
    at_once = where.jobs or (len(jobs) if cluster else os.cpu_count() or 1)
    running: list[Running] = []
    failed: list[str] = []
    tries: Counter[Path] = Counter()
    try:
        while waiting or running:
            some, waiting = waiting[: at_once - len(running)], waiting[at_once - len(running) :]
            if some:
                running += cluster.start(some) if cluster else [local_run.start(*job) for job in some]
            time.sleep(0.2)
            for run in list(running):
                code = run.poll()
                _show(run, bars)
                if code is None:
                    continue
                running.remove(run)
                if code:
                    message = _message(run, code)
                    if cluster is None or code not in STOPPED:  # a job that had to give way is no failure
                        tries[run.directory] += 1
                    if code != MISTAKE and tries[run.directory] <= where.retries:
                        bars.say(f"{_name(run)} failed, and is tried again: {message}")
                        waiting.append((run.config, run.directory))
                    else:
                        failed.append(f"{_name(run)}: {message}")
                        bars.say(f"failed: {failed[-1]}")
                run.close()
    finally:
        if cluster and running:
            bars.say(f"{len(running)} jobs go on: run the same command again to follow them, or end them with scancel")
        for run in running:  # after an interrupt; checkpoints stay
            run.stop()
            if not cluster:
                run.close()
    if failed:
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed; " + "; ".join(failed))


def _name(run: Running) -> str:
    return f"{run.directory.parent.name} seed {run.config.seed}"


def _common(jobs: Sequence[Job]) -> Path:
    """The folder that holds all of these runs."""
    return Path(os.path.commonpath([directory.resolve().parents[2] for _, directory in jobs]))


def _show(run: Running, bars: Bars) -> None:
    try:
        found = json.loads((run.directory / "progress.json").read_text())
        step, total, loss = int(found["step"]), int(found["total"]), float(found["loss"])
    except (OSError, ValueError, LookupError, TypeError):  # it is not there, or damaged: nothing depends on it
        return
    bars.update(_name(run), step, total, loss, run.config.batch_images)


def _message(run: Running, code: int) -> str:
    """The message of a run that failed, which its directory keeps. Of a traceback, which has code 1, the last line."""
    whole = run.message() or f"exit code {code}"
    write_atomically(run.directory / FAILED, whole)
    return whole if code == MISTAKE else f"{whole.splitlines()[-1]} (all of it: {run.directory / FAILED})"
