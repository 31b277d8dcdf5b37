"""Kills and damaged files, counted: writes results/reliability.csv and the table of docs/reliability.md.

python bench/reliability.py --kills 30 --files 5000        or --parts files
"""

import argparse
import csv
import datetime
import json
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "lab"), str(HERE.parent / "tests")]
FUZZING = HERE.parent / "tests" / "lab" / "fuzzing.py"
CSV = HERE / "results" / "reliability.csv"
PAGE = HERE.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- reliability -->", "<!-- /reliability -->"
Row = tuple[str, str, str]  # what was tried, how often, what came of it


def kills(count: int) -> list[Row]:
    """Kill a run again and again."""
    import killing  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        found = killing.killed_run(Path(folder), count, seed=0)
    end = "the weights of a run that was not killed" if found["same_weights"] else "OTHER WEIGHTS"
    return [
        ("SIGKILL at a random moment of training", str(found["kills"]), end),
        ("... of these, while a file was being written", str(found["while_writing"]), end),
        ("unfinished files after the end", str(found["left_over"]), "removed by the next start"),
    ]


def flips(count: int) -> list[Row]:
    """Flip single bits of a checkpoint."""
    import torch
    from labtools import tiny  # type: ignore[import-not-found]

    from quarterturn_lab.errors import RunError
    from quarterturn_lab.training import checkpoint, training_run

    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        training_run.run(tiny(epochs=1), Path(folder) / "run")
        path = Path(folder) / "run" / checkpoint.NEWEST
        whole = path.read_bytes()
        for bit in torch.randperm(8 * len(whole), generator=torch.Generator().manual_seed(0))[:count].tolist():
            content = bytearray(whole)
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            try:
                checkpoint.read(path)
            except RunError:
                noticed += 1
    return [("one flipped bit in a checkpoint", str(count), f"{noticed} noticed")]


def damaged_files(count: int) -> list[Row]:
    """Give damaged files to the commands, in limited memory."""
    command = [sys.executable, "-W", "ignore", str(FUZZING), str(count), "0"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    ends = f"{found.get('error', 0):,} one of our errors, {found.get('result', 0):,} a result, "
    ends += f"{sum(found['faults'].values())} another exception, a hang or more than 2 GB"
    return [(f"damaged files of {found['kinds']} kinds, through the commands", f"{count:,}", ends)]


def cache_speed() -> list[Row]:
    """How long it takes to verify a gigabyte of cached images."""
    block = np.random.default_rng(0).bytes(250_000_000)
    start = time.process_time()
    zlib.crc32(block)
    return [("verifying cached images", "1 GB", f"{4 * (time.process_time() - start):.2f} seconds of CPU")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--bits", type=int, default=5000)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--parts", nargs="+", default=["kills", "flips", "files", "cache"])
    asked = parser.parse_args()
    measure = {
        "kills": lambda: kills(asked.kills),
        "flips": lambda: flips(asked.bits),
        "files": lambda: damaged_files(asked.files),
        "cache": cache_speed,
    }
    before = list(csv.reader(CSV.open()))[1:] if CSV.exists() else []
    today = datetime.date.today().isoformat()
    lines = []
    for part, tried in measure.items():
        kept = [line for line in before if line[0] == part]
        lines += [[part, *row, today] for row in tried()] if part in asked.parts else kept
    with CSV.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["part", "tried", "times", "outcome", "date"], *lines])
    table = ["| tried | times | outcome |", "|---|---|---|", *("| " + " | ".join(line[1:4]) + " |" for line in lines)]
    text = PAGE.read_text()
    start, end = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text("\n".join([start + BEGIN, "", *table, "", END]) + end)


if __name__ == "__main__":
    main()
