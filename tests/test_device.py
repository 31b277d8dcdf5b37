"""Nothing is for the CPU by accident: every layer, and converted networks, on tensors of another device."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from another_device import PLANTED, layer_cases, network_cases

SCRIPT = Path(__file__).with_name("another_device.py")
SOURCE = Path(__file__).parents[1] / "src" / "quarterturn"
CASES = [*layer_cases(), *network_cases()]


def wrong_cases(*which: str) -> dict[str, str | None]:
    """What went wrong in each case. A device that was registered stays, so that is done in another process."""
    run = subprocess.run([sys.executable, SCRIPT, *which], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, str | None] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, str | None]:
    return wrong_cases()


def test_outputs_and_gradients_are_on_the_device_of_the_input(found: dict[str, str | None]) -> None:
    assert set(CASES) <= set(found)
    assert {name: found[name] for name in CASES if found[name] is not None} == {}


def test_tensors_left_on_the_cpu_and_calls_of_the_kernel_are_found(found: dict[str, str | None]) -> None:
    wrong = {name: str(found[name]) for name in PLANTED}
    assert "aten.add.Tensor gets tensors on cpu and" in wrong["planted"]
    assert "aten.convolution.default gets tensors on cpu and" in wrong["hidden"]
    assert "the kernel was asked for" in wrong["kernel"]


def test_the_library_asks_for_no_device_but_the_cpu() -> None:
    """So that one device stands for all others."""
    asked = re.compile(
        r"device\.type (?:==|!=|in|not in) (\(.*?\)|\".*?\")|(torch\.(?:cuda|mps|xpu)|\.is_(?:cuda|mps|xpu))"
    )
    found = {match[1] or match[2] for path in SOURCE.rglob("*.py") for match in asked.finditer(path.read_text())}
    assert found == {'"cpu"', '("cpu", "meta")'}
