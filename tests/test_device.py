"""Nothing is for the CPU by accident: every layer, and converted networks, on tensors of another device."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from another_device import layer_cases, network_cases

SCRIPT = Path(__file__).with_name("another_device.py")
SOURCE = Path(__file__).parents[1] / "src" / "quarterturn"
CASES = [*layer_cases()]


def wrong_cases(*which: str) -> dict[str, dict[str, str | None]]:
    """What went wrong on each device in each case. What was registered stays, so that is done in another process."""
    run = subprocess.run([sys.executable, SCRIPT, *which], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, dict[str, str | None]] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str | None]]:
    return wrong_cases()


def test_outputs_and_gradients_are_on_the_device_of_the_input(found: dict[str, dict[str, str | None]]) -> None:
    """On "cuda", forward, and on another device also backward (tests/another_device.py says why)."""
    assert set(found) == ({"cuda"} if torch.cuda.is_available() else {"cuda", "gpu"})
    for wrong in found.values():
        assert set(CASES) <= set(wrong)
        assert {name: wrong[name] for name in CASES if wrong[name] is not None} == {}


@pytest.mark.slow
def test_networks_are_on_the_device_of_the_input() -> None:
    for wrong in wrong_cases("networks").values():
        assert wrong == dict.fromkeys(network_cases())


def test_tensors_left_on_the_cpu_and_calls_of_the_kernel_are_found(found: dict[str, dict[str, str | None]]) -> None:
    for device, wrong in found.items():
        assert f"aten.add.Tensor gets tensors on cpu and {device}:0" in str(wrong["planted"])
        assert f"aten.convolution.default gets tensors on cpu and {device}:0" in str(wrong["hidden"])
        assert "the kernel was asked for" in str(wrong["kernel"])
        assert "instead of [(2, 3, 8, 8)]" in str(wrong["other shape"])


def test_the_library_asks_for_no_device_but_the_cpu() -> None:
    """So that one device stands for all others."""
    asked = re.compile(
        r"device\.type (?:==|!=|in|not in) (\(.*?\)|\".*?\")|(torch\.(?:cuda|mps|xpu)|\.is_(?:cuda|mps|xpu))"
    )
    found = {match[1] or match[2] for path in SOURCE.rglob("*.py") for match in asked.finditer(path.read_text())}
    assert found == {'"cpu"', '("cpu", "meta")'}
