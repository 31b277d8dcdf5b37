"""Kills, damaged files and two processes: what came of them, counted and measured.

    python bench/reliability.py [--parts kills ranks ...]

Parts that are not asked for stay as they were recorded. `processes` needs two idle cores. Peak memory is measured by
bench/large_images.py.
"""

import csv
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
from harness import Rows, machine, parser_for, record, save

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "lab"), str(HERE.parent / "tests")]
FUZZING = HERE.parent / "tests" / "lab" / "fuzzing.py"
PARTS = ("kills", "ranks", "flips", "files", "cache", "processes")
COUNTED = ("kills", "ranks", "flips")  # to which others can be added
HEAD = ("part", "tried", "times", "outcome", "date")
Row = tuple[str, str, str]  # what was tried, how often, what came of it


def kills(count: int, seed: int) -> list[Row]:
    """Kill a run again and again."""
    import killing  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        found = killing.killed_run(Path(folder), count, seed)
    end = "the weights of a run that was not killed" if found["same_weights"] else "OTHER WEIGHTS"
    return [
        ("SIGKILL at a random moment of training", str(found["kills"]), end),
        ("... of these, while a file was being written", str(found["while_writing"]), end),
        ("unfinished files after the end", str(found["left_over"]), "removed by the next start"),
    ]


def killed_ranks(count: int, seed: int) -> list[Row]:
    """Kill one of two processes that train together, again and again."""
    import killing

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        found = killing.killed_ranks(Path(folder), count, lambda: rng.randrange(2))
    end = "the weights of a run that was not killed" if found["same_weights"] else "OTHER WEIGHTS"
    return [("SIGKILL of one of two processes, torchrun --max-restarts", str(found["kills"]), end)]


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


def damaged_files(count: int, seed: int) -> list[Row]:
    """Give damaged files to the commands, in limited memory."""
    command = [sys.executable, "-W", "ignore", str(FUZZING), str(count), str(seed)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    ends = f"{found.get('error', 0):,} one of our errors, {found.get('result', 0):,} a result, "
    ends += f"{sum(found['faults'].values())} another exception, a hang or more than 2 GB"
    return [(f"damaged files of {found['kinds']} kinds, through the commands", f"{count:,}", ends)]


def two_processes(repeats: int) -> list[Row]:
    """The speed of two processes that share each batch, and how far their losses are from those of one."""
    import scale

    rows, load = [], os.getloadavg()[0]
    for size in (("none", 64, 128), ("D4", 64, 128)):
        ratio, differs = scale.together(size, repeats)
        name = "an ordinary network" if size[0] == "none" else f"a {size[0]} network"
        end = f"{1 / ratio:.2f} times as fast as one, losses differ by {differs:.0e}"
        where = f"{machine().replace('-', ' ')}, {os.cpu_count()} cores, load {load:.1f} before"
        rows.append((f"{name} in two processes, one thread each ({where})", f"{repeats} steps", end))
    return rows


def cache_speed() -> list[Row]:
    """How long it takes to verify a gigabyte of cached images."""
    block = np.random.default_rng(0).bytes(250_000_000)
    start = time.process_time()
    zlib.crc32(block)
    return [("verifying cached images", "1 GB", f"{4 * (time.process_time() - start):.2f} seconds of CPU")]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=10)
    parser.add_argument("--bits", type=int, default=5000)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills, and of the damage")
    parser.add_argument("--add", action="store_true", help="to what is recorded, where it has come to the same")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    asked = parser.parse_args()
    measure = {
        "kills": lambda: kills(asked.kills, asked.seed),
        "ranks": lambda: killed_ranks(asked.ranks, asked.seed),
        "flips": lambda: flips(asked.bits),
        "files": lambda: damaged_files(asked.files, asked.seed),
        "cache": cache_speed,
        "processes": lambda: two_processes(asked.steps),
    }
    path, today = record("reliability"), datetime.date.today().isoformat()
    for part in asked.parts:
        measured = measure[part]()
        found = {name: [row for row in _recorded(path) if row["part"] == name] for name in PARTS}
        before = {
            (row["tried"], row["outcome"]): int(str(row["times"]))
            for row in found[part]
            if asked.add and part in COUNTED
        }
        rows = [(tried, _sum(times, before.get((tried, outcome), 0)), outcome) for tried, times, outcome in measured]
        found[part] = [dict(zip(HEAD, (part, *row, today), strict=True)) for row in rows]
        save("reliability", [row for name in PARTS for row in found[name]], HEAD)
        print(*found[part], sep="\n", flush=True)


def _sum(times: str, before: int) -> str:
    return str(int(times) + before) if before else times


def _recorded(path: Path) -> Rows:
    return list(csv.DictReader(path.open())) if path.exists() else []


if __name__ == "__main__":
    main()
