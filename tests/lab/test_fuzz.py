"""Damaged files of every kind, through the commands; see fuzzing.py for what is a fault."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fuzzing
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzzing.Target]:
    return fuzzing.targets(tmp_path_factory.mktemp("files"))


def test_whole_files_are_read(found: dict[str, fuzzing.Target]) -> None:
    ends = {name: fuzzing.outcome(target, target.file.read_bytes()) for name, target in found.items()}
    assert {name: end for name, end in ends.items() if end != "result"} == {"toml": "error"}  # its folder is missing


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_end_in_a_result_or_our_error(found: dict[str, fuzzing.Target], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(found)))
    rng = data.draw(st.randoms(use_true_random=False))
    assert fuzzing.outcome(found[name], fuzzing.damaged(found[name].file.read_bytes(), rng)) in ("result", "error")


def hangs(waits: bool) -> Callable[[Path], object]:
    def reads(path: Path) -> object:
        while True:
            if waits:
                time.sleep(1)

    return reads


def test_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12")

    def reads(path: Path) -> object:
        content = path.read_bytes()
        return bytearray(1 << 60) if content == b"memory" else int(content)

    target = fuzzing.Target(file, reads)
    assert fuzzing.outcome(target, b"13") == "result"
    assert fuzzing.outcome(target, b"x").startswith("ValueError")
    assert fuzzing.outcome(target, b"memory").startswith("MemoryError")
    for seconds, waits in (("SECONDS", False), ("PATIENCE", True)):
        with monkeypatch.context() as patch:
            patch.setattr(fuzzing, seconds, 0.2)
            assert fuzzing.outcome(fuzzing.Target(file, hangs(waits)), b"13").startswith("it took more than")
    assert file.read_bytes() == b"12"
    changed = {fuzzing.damaged(b'{"a": 1, "b": [2, 3]}', random.Random(seed)) for seed in range(50)}
    assert len(changed) > 40


@pytest.mark.slow
def test_thousands_of_damaged_files_in_limited_memory() -> None:
    command = [sys.executable, "-W", "ignore", fuzzing.__file__, "3000", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout)["faults"] == {}
