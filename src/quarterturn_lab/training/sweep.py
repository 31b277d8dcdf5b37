"""Many runs, several at a time, each in its own process. Finished runs are skipped."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.run_directory import check_config
from quarterturn_lab.settings.config import Config
from quarterturn_lab.training import checkpoint
from quarterturn_lab.training.worker import ALLOCATOR, MISTAKE

Job = tuple[Config, Path]
FAILED = "failed.txt"  # the error message of a failed run, until it is tried again


@dataclass
class _Running:
    config: Config
    directory: Path
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    @property
    def name(self) -> str:
        return f"{self.directory.parent.name} seed {self.config.seed}"


def sweep(jobs: Sequence[Job], at_once: int | None, bars: Bars) -> None:
    """Train or resume all runs, by default one for each core at once.

    A failed run does not stop the others; the final error lists all failures.
    """
    if at_once is None:
        at_once = os.cpu_count() or 1
    if at_once < 1:
        raise ConfigError(f"--jobs {at_once}: give the number of runs at the same time, 1 or more")
    for config, directory in jobs:
        check_config(config, directory)
    waiting = [job for job in jobs if not (job[1] / "summary.json").exists()]
    kept = len(jobs) - len(waiting)
    resumed = sum(checkpoint.exists(directory) for _, directory in waiting)
    if kept or resumed:
        bars.say(f"{kept} of {len(jobs)} runs are finished already, {resumed} resume from a checkpoint")
    running: list[_Running] = []
    failed: list[str] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(*waiting.pop(0)))
            time.sleep(0.2)
            for run in list(running):
                code = run.process.poll()
                _show(run, bars)
                if code is not None:
                    running.remove(run)
                    if code:
                        failed.append(f"{run.name}: {_message(run, code)}")
                        bars.say(f"failed: {failed[-1]}")
                    run.errors.close()
    finally:
        for run in running:  # after an interrupt; checkpoints stay
            run.process.terminate()
            run.process.wait()
            run.errors.close()
    if failed:
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed; " + "; ".join(failed))


def _start(config: Config, directory: Path) -> _Running:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("progress.json", FAILED):  # left over from a killed or failed process
        (directory / name).unlink(missing_ok=True)
    threads = str(config.threads)
    variables = {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the run
    command = [sys.executable, "-m", "quarterturn_lab.training.worker", str(directory)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, stdout=errors, env=variables)
    assert process.stdin is not None
    process.stdin.write(config.model_dump_json().encode())
    process.stdin.close()
    return _Running(config, directory, process, errors)


def _show(run: _Running, bars: Bars) -> None:
    try:
        found = json.loads((run.directory / "progress.json").read_text())
    except (OSError, json.JSONDecodeError):
        return
    bars.update(run.name, found["step"], found["total"], found["loss"], run.config.batch_images)


def _message(run: _Running, code: int) -> str:
    """The message of a run that failed, which its directory keeps. Of a traceback, which has code 1, the last line."""
    run.errors.seek(0)
    whole = run.errors.read().decode(errors="replace").strip() or f"exit code {code}"
    (run.directory / FAILED).write_text(whole)
    return whole if code == MISTAKE else f"{whole.splitlines()[-1]} (all of it: {run.directory / FAILED})"
