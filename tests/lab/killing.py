"""Kills a run again and again, at random moments and in the middle of writing, and compares its weights at the end."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from labtools import tiny, weights, worker

from quarterturn_lab.files import PARTIAL
from quarterturn_lab.training import training_run

SECONDS = 120  # that a process may take to be worth killing


def killed_run(folder: Path, kills: int, seed: int) -> dict[str, object]:
    """A run that is killed so many times, with a checkpoint after every step, beside one that is not.

    Every other kill comes while a file is being written: as soon as there is an unfinished one.
    """
    config = tiny("roll-all-quarter", train_size=200, epochs=6 * kills, batch=10, checkpoint_seconds=0.0, eval_points=3)
    training_run.run(config, folder / "whole")
    rng, directory, writing, moments = random.Random(seed), folder / "killed", 0, 0
    while moments < kills:
        process = worker(config, directory)
        if not _has_begun(directory, process):
            raise RuntimeError("the run has ended before it was killed often enough: give it more epochs")
        time.sleep(rng.uniform(0.0, 0.4))
        if moments % 2:
            writing += _wait_for_a_write(directory)
        process.send_signal(signal.SIGKILL)
        process.wait()
        moments += 1
    training_run.run(config, directory)
    left = [path for path in directory.iterdir() if PARTIAL.fullmatch(path.name)]
    return {
        "kills": moments,
        "while_writing": writing,
        "steps": config.epochs * 20,
        "same_weights": weights(directory) == weights(folder / "whole"),
        "left_over": len(left),
    }


def _has_begun(directory: Path, process: subprocess.Popen[bytes]) -> bool:
    """Wait until this process has written a checkpoint; False if it has ended."""
    path, since = directory / "checkpoint.pt", time.time()
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if path.stat().st_mtime > since:
                return True
        except FileNotFoundError:
            pass
        time.sleep(0.005)
    return False


def _wait_for_a_write(directory: Path) -> bool:
    """Return as soon as a file is being written; False if none is seen."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if any(PARTIAL.fullmatch(name) for name in os.listdir(directory)):
            return True
    return False
