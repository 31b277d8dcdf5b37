"""Runs as jobs of a Slurm cluster, by submitit: one array for all that start together.

A job starts the same process as a sweep on this machine. Before its time is over, or another job takes its place, Slurm
sends SIGUSR1: the process saves a checkpoint, and the job goes back into the queue. The driver may end: jobs go on, and
the next driver finds them by the number in `job.txt` of the run directory.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.files import write_atomically
from quarterturn_lab.settings.config import Config, read
from quarterturn_lab.training import local_run
from quarterturn_lab.training.worker import MISTAKE

JOB = "job.txt"  # in the run directory: the number of its job
FOLDER = "jobs"  # below the folder of all runs: what submitit writes
HOURS = 24  # of a job, unless --slurm time= says otherwise; one that needs longer is queued again
GRACE = 20.0  # seconds that a shared disk may take to show what a job has written
PREEMPT = "USR1"


class Task:
    """What a job does. submitit calls `checkpoint` when the job has to give way."""

    def __init__(self, settings: str, directory: str) -> None:
        self.settings, self.directory = settings, directory
        self.run: local_run.LocalRun | None = None

    def __call__(self) -> tuple[int, str]:
        """Train or resume the run; the exit code of its process, and what it said."""
        self.run = local_run.start(read(self.settings), Path(self.directory))
        while (code := self.run.poll()) is None:
            time.sleep(0.2)
        return code, self.run.message()

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        if self.run is not None:
            self.run.process.terminate()  # it saves first
            with suppress(ChildProcessError):  # Popen.wait would wait for itself, in a handler of signals
                os.waitid(os.P_PID, self.run.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Task(self.settings, self.directory))


@dataclass
class ClusterRun:
    """A job that trains."""

    config: Config
    directory: Path
    job: Any  # submitit's
    cluster: "Cluster"
    gone: float | None = field(default=None)  # since when it is no longer in the queue, without a result

    def poll(self) -> int | None:
        if self.job.paths.result_pickle.exists():
            code: int = MISTAKE if self.job.exception() is not None else self.job.result()[0]
            return MISTAKE if code and self.cluster.cancelled(self.job) else code
        if self.cluster.has(self.job):
            self.gone = None
            return None
        self.gone = self.gone or time.monotonic()
        if time.monotonic() - self.gone < GRACE:
            return None
        return MISTAKE if self.cluster.cancelled(self.job) else 1

    def message(self) -> str:
        if self.cluster.cancelled(self.job):
            return f"job {self.job.job_id} was cancelled"
        if self.job.paths.result_pickle.exists():
            error = self.job.exception()
            return str(error) if error is not None else self.job.result()[1]
        log = self.job.stderr() or ""
        return f"{log.strip()}\njob {self.job.job_id} ended without a result, as after a crash".strip()

    def stop(self) -> None:
        """A job goes on when the driver ends."""

    def close(self) -> None:
        (self.directory / JOB).unlink(missing_ok=True)


class Cluster:
    """Where jobs go. `options` are sbatch's, such as ("partition=gpu", "time=240")."""

    def __init__(self, folder: Path, options: Sequence[str] = (), kind: str = "slurm") -> None:
        self.folder, self.kind, self.options = folder, kind, parsed(options)
        os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", PREEMPT)
        try:
            import submitit
        except ImportError:
            raise ConfigError('--executor slurm needs submitit: pip install "quarterturn[lab,slurm]"') from None
        if kind == "slurm" and not (shutil.which("sbatch") and shutil.which("squeue")):
            raise ConfigError(
                "--executor slurm: there is no Slurm here (no sbatch and squeue): start the command on a login node of "
                "the cluster, or use --executor local"
            )
        self.submitit, self.seen, self.queue = submitit, 0.0, frozenset[str]()

    def start(self, runs: Sequence[tuple[Config, Path]]) -> list[ClusterRun]:
        """Follow the jobs of these runs that are in the queue already, and submit the others as one array."""
        found, new = [], []
        for config, directory in runs:
            job = self._submitted(directory)
            if job is None:
                new.append((config, directory))
            else:
                found.append(ClusterRun(config, directory, job, self))
        by_size: dict[tuple[int, int], list[tuple[Config, Path]]] = {}
        for config, directory in new:
            by_size.setdefault((config.threads * config.devices, _gpus(config)), []).append((config, directory))
        for (cpus, gpus), some in by_size.items():
            found += self._submit(cpus, gpus, some)
        return found

    def _submit(self, cpus: int, gpus: int, runs: list[tuple[Config, Path]]) -> list[ClusterRun]:
        executor = self.submitit.AutoExecutor(
            self.folder / FOLDER / "%j", cluster=self.kind, slurm_max_num_timeout=1000
        )
        executor.update_parameters(timeout_min=HOURS * 60, name="quarterturn")
        if self.kind == "slurm":
            given = {"cpus_per_task": cpus, **({"gpus_per_node": gpus} if gpus else {}), **self.options}
            minutes = given.pop("time", HOURS * 60)
            executor.update_parameters(slurm_time=minutes, slurm_array_parallelism=len(runs))
            executor.update_parameters(slurm_additional_parameters={k.replace("-", "_"): v for k, v in given.items()})
        try:
            with executor.batch():
                jobs = [
                    executor.submit(Task(config.model_dump_json(), str(directory.resolve())))
                    for config, directory in runs
                ]
        except self.submitit.core.utils.FailedJobError as error:
            raise RunError(f"Slurm does not take the jobs ({' '.join(str(error).split())}): check --slurm") from None
        self.seen = 0.0
        for job, (_, directory) in zip(jobs, runs, strict=True):
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(directory / JOB, str(job.job_id))
        return [ClusterRun(config, place, job, self) for job, (config, place) in zip(jobs, runs, strict=True)]

    def _submitted(self, directory: Path) -> Any:
        """The job of a run that an earlier driver has submitted, if it is in the queue."""
        path = directory / JOB
        if self.kind != "slurm" or not path.is_file():
            return None
        number = path.read_text(errors="replace").strip()
        self._look()
        return self.submitit.SlurmJob(self.folder / FOLDER / "%j", number) if number in self.queue else None

    def has(self, job: Any) -> bool:
        """Whether a job waits or runs."""
        if self.kind != "slurm":
            return job.state == "RUNNING"
        self._look()
        return job.job_id in self.queue

    def cancelled(self, job: Any) -> bool:
        """Whether someone has ended a job by scancel: then it is not tried again."""
        if self.kind != "slurm":
            return False
        asked = ["scontrol", "show", "job", "--oneliner", job.job_id]
        return "JobState=CANCELLED" in subprocess.run(asked, capture_output=True, text=True, check=False).stdout

    def _look(self) -> None:
        """Ask Slurm for the queue, every other second at most. If it does not answer, nothing has changed."""
        if time.monotonic() - self.seen < 2.0:
            return
        asked = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            self.queue, self.seen = frozenset(answer.stdout.split()), time.monotonic()


def parsed(options: Sequence[str]) -> dict[str, Any]:
    """Options of sbatch as a dictionary.

    >>> parsed(("partition=gpu", "mem=16G", "requeue"))
    {'partition': 'gpu', 'mem': '16G', 'requeue': True}
    """
    found: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.removeprefix("--").partition("=")
        if not name or (equals and not value):
            raise ConfigError(f"--slurm {option}: give options of sbatch as name=value, such as partition=gpu time=240")
        found[name] = value if equals else True
    if "time" in found and not str(found["time"]).isdigit():
        raise ConfigError(f"--slurm time={found['time']}: give whole minutes, such as time=240")
    return {**found, **({"time": int(found["time"])} if "time" in found else {})}


def _gpus(config: Config) -> int:
    """The GPUs that a job asks for: those that its settings name. With `auto`, --slurm gpus-per-node=1 asks for one."""
    return config.devices if config.device.startswith("cuda") else 0
