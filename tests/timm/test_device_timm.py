"""Converted networks of timm on tensors of another device than the CPU."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "another_device.py"


def test_outputs_and_gradients_are_on_the_device_of_the_input() -> None:
    run = subprocess.run([sys.executable, SCRIPT, "timm"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert "cuda" in found
    for wrong in found.values():
        assert len(wrong) == 4
        assert wrong == dict.fromkeys(wrong)  # nothing
