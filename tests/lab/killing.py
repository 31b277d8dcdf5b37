"""Kills a run, or one of its processes, again and again, and compares the weights at the end."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from labtools import tiny, weights, worker

from quarterturn_lab.files import PARTIAL
from quarterturn_lab.training import training_run

SECONDS = 300  # that a process may take to be worth killing, on a machine with other work


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
            ended = process.poll() is not None
            process.kill()
            why = "the run has ended: give it more epochs" if ended else f"no checkpoint in {SECONDS} seconds"
            raise RuntimeError(f"{why} (after {moments} kills)")
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
    """Wait until this process has written a checkpoint; False if it has ended, or takes too long."""
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


# --- processes that train together ------------------------------------------------------------------------------------

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TOGETHER = "--train-size 256 --batch 32 --no-divide-batch --checkpoint-seconds 0 --seed 1 --threads 1"


def killed_ranks(folder: Path, kills: int, victim: Callable[[], int]) -> dict[str, object]:
    """A run of two processes under torchrun, of which one is killed so many times, beside one that is left alone."""
    for kind in ("whole", "killed"):
        killed = _under_torchrun(folder / kind, kills if kind == "killed" else 0, 2 * kills + 2, victim)
    whole, last = (next((folder / kind).rglob("model.safetensors")).parent for kind in ("whole", "killed"))
    return {"kills": killed, "same_weights": weights(whole) == weights(last)}


def _under_torchrun(runs: Path, kills: int, epochs: int, victim: Callable[[], int]) -> int:
    command = [*TORCHRUN, "--max-restarts", str(kills + 1), "-m", "quarterturn_lab", "train", "synthetic/residual-c4"]
    command += [*TOGETHER.split(), "--epochs", str(epochs), "--runs-dir", str(runs)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed, end = 0, time.monotonic() + SECONDS * (2 + kills)
    try:
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            lines = sum(len(path.read_text().splitlines()) for path in runs.rglob("metrics.jsonl"))
            if killed < kills and lines > 2 * killed and (pid := pid_of(victim(), process.pid)):
                os.kill(pid, signal.SIGKILL)
                killed += 1
                time.sleep(1)
    finally:
        if process.poll() is None:
            process.terminate()  # which ends the others too
    if process.wait():
        raise RuntimeError(f"torchrun has ended with code {process.returncode}")
    return killed


def pid_of(rank: int, below: int) -> int | None:
    """The process with this rank below another one."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == below and f"\0RANK={rank}\0" in (path / "environ").read_text():
                return int(path.name)
        except (OSError, ValueError):
            continue
    return None
