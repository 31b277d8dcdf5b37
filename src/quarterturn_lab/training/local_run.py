"""One run as a process of this machine (`worker.py`), seen from the one who started it."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quarterturn_lab.settings.config import Config
from quarterturn_lab.training.worker import ALLOCATOR

FAILED = "failed.txt"  # the error message of a failed run, until it is tried again


@dataclass
class LocalRun:
    """A process that trains. `poll` gives its exit code when it has ended, and `message` what it said."""

    config: Config
    directory: Path
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def message(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()

    def stop(self) -> None:
        """End it, if it runs; its checkpoint stays."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def close(self) -> None:
        self.errors.close()


def start(config: Config, directory: Path) -> LocalRun:
    """Start a run in a process of its own."""
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
    return LocalRun(config, directory, process, errors)
