"""The benchmarks' harness: which result is the latest, and the script around a measurement."""

import csv
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    module = importlib.import_module("harness")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_the_latest_result_is_that_of_the_newest_torch(harness: ModuleType, tmp_path: Path) -> None:
    for place, name in enumerate(("conv-amd-epyc-torch2.13.0", "conv-amd-epyc-torch2.9.1", "convert-amd-torch3.0")):
        path = tmp_path / f"{name}.csv"
        path.touch()
        os.utime(path, (place, place))  # when a file was written, or checked out, says nothing
    assert harness.latest("conv").name == "conv-amd-epyc-torch2.13.0.csv"
    (tmp_path / "conv-intel-xeon-torch2.13.0.csv").touch()
    with pytest.raises(LookupError, match="amd-epyc, intel-xeon"):
        harness.latest("conv")
    assert harness.latest("conv-intel").name == "conv-intel-xeon-torch2.13.0.csv"
    assert harness.latest("conv-amd-epyc").name == "conv-amd-epyc-torch2.13.0.csv"
    (tmp_path / "conv-amd-zen-5-torch2.13.0.csv").touch()
    assert harness.latest("conv-amd-epyc").name == "conv-amd-epyc-torch2.13.0.csv"
    assert harness.latest("conv-amd-zen-5").name == "conv-amd-zen-5-torch2.13.0.csv"
    with pytest.raises(LookupError, match="nothing"):
        harness.latest("nothing")


def test_a_script_measures_with_each_number_of_threads(
    harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(repeats: int) -> list[dict[str, object]]:
        return [{"threads": torch.get_num_threads(), "repeats": repeats}]

    before = torch.get_num_threads()
    monkeypatch.setattr(harness, "start_again_with_a_warm_allocator", lambda: None)
    found = []
    for arguments, threads in (("", ()), ("--repeats 3", (1, 2)), ("--threads 2", (1, 2))):
        monkeypatch.setattr(sys, "argv", ["script.py", *arguments.split()])
        harness.run("made-up", "What it does.", measure, 9, threads)
        with harness.latest("made-up").open() as file:
            found.append([(row["threads"], row["repeats"]) for row in csv.DictReader(file)])
    torch.set_num_threads(before)
    assert found == [[("1", "9")], [("1", "3"), ("2", "3")], [("2", "9")]]


def test_every_machine_has_its_table_of_faults(harness: ModuleType) -> None:
    summary, folder = importlib.import_module("reliability_summary"), harness.RESULTS
    for name, kills in (("one", 30), ("two", 5)):
        lines = ["part,tried,times,outcome,date", f"kills,SIGKILL,{kills},the same weights,2026-11-18"]
        (folder / f"reliability-{name}-torch2.13.0.csv").write_text("\n".join(lines))
    peaks = ['what,"peak memory, MB"', "a mask of 1 pixel,300", "a mask of 2 pixels,301", "a mask of 3 pixels,302"]
    peaks += ["a table of 1 image,200"]
    (folder / "large_images-two-torch2.13.0.csv").write_text("\n".join(peaks))
    one, two = summary.table().split("\n\n`bench/")
    assert "| SIGKILL | 30 | the same weights |" in one
    assert "MB of memory" not in one
    assert "| SIGKILL | 5 | the same weights |" in two
    assert "| predict, a mask of 3 pixels | once | 302 MB of memory at most |" in two
    assert "a mask of 2 pixels" not in two


def test_families_of_transformers_that_were_refused_count_too(harness: ModuleType) -> None:
    summary = importlib.import_module("convert_summary")
    rows = [
        {"family": "a", "network": "small a1", "rolled": "81 %"},
        {"family": "b", "network": "small b1", "rolled": "refused"},
    ]
    harness.save("transformers", rows)
    text = summary.transformers_table()
    assert "1 of 2 families (50 %)" in text
    assert "Refused: b1" in text
    assert "Not measured yet: " in text
    assert "vit_tiny_patch16_224" in text


def test_families_count_that_mostly_share_filters(harness: ModuleType) -> None:
    summary = importlib.import_module("convert_summary")
    taken = [
        {"family": "a", "network": "timm a1", "rolled": "100 %"},
        {"family": "b", "network": "timm b1", "rolled": "79 %"},
        {"family": "c", "network": "timm c1", "rolled": "80 %"},
    ]
    harness.save("families", taken)
    others = [{"family": "d", "network": "timm d1", "why": ""}, {"family": "", "network": "timm zz", "why": ""}]
    harness.save("refused", others)
    text = summary.table()
    assert "2 of 4 families (50 %)" in text
    assert "b1 (79 %)" in text
    assert "d1" in text
    assert "zz" not in text  # of no family
    harness.save("refused", [], ["family", "network", "why"])
    assert "2 of 3 families (67 %)" in summary.table()
