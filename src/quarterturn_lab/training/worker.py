"""One run as a process: `python -m quarterturn_lab.training.worker DIRECTORY`, with its settings on stdin."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

# Make glibc keep large blocks of memory: returning them costs page faults at the next use.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}

MISTAKE = 2  # the exit code after a message that is meant for the user


def main() -> int:
    for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal, for all: the one who started it sends SIGTERM
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a cluster's warning to the whole job: the one who started this acts
    return train(sys.stdin.read(), Path(sys.argv[1]))


def train(settings: str, directory: Path) -> int:
    """Train or resume a run; returns the exit code. With several devices, in as many processes."""
    from quarterturn.errors import QuarterturnError
    from quarterturn_lab import ranks, stopping
    from quarterturn_lab.errors import LabError, of_system
    from quarterturn_lab.settings.config import read
    from quarterturn_lab.training.training_run import run

    parent = os.getppid()
    last = 0.0

    def report(step: int, total: int, loss: float) -> None:
        nonlocal last
        if os.getppid() != parent:  # the parent process is gone; the checkpoint stays
            raise SystemExit(3)
        if step == total or time.monotonic() - last > 0.5:
            last = time.monotonic()
            scratch = directory / ".progress.json"
            with suppress(OSError):  # progress is optional; other writes report a full disk
                scratch.write_text(json.dumps({"step": step, "total": total, "loss": loss}))
                scratch.replace(directory / "progress.json")

    try:
        config = read(settings)
        with stopping.at_once(), ranks.leading(config.devices) as leads:
            if leads:
                run(config, directory, report)
    except ranks.NeedsProcesses as wanted:
        return ranks.launch(wanted.count, _one_of_several, settings, directory)
    except stopping.Stopped as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except (LabError, QuarterturnError, OSError) as error:
        found = of_system(error) if isinstance(error, OSError) else error
        if found is None:
            raise
        print(found, file=sys.stderr)
        return MISTAKE
    finally:
        (directory / "progress.json").unlink(missing_ok=True)
    return 0


def _one_of_several(settings: str, directory: Path) -> None:
    sys.exit(train(settings, directory))


if __name__ == "__main__":
    sys.exit(main())
