"""The lab with networks of timm, torchvision and segmentation_models_pytorch: made, trained, checked, exported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from labtools import call, class_folders, galaxy_tree, nuclei_tree

import quarterturn as qt
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.models.backbones import backbone_network
from quarterturn_lab.settings.networks import Net

IMAGES = Net(channels=1, side=32, stages=(), hidden=(), outputs=3, group="D4")
PIXELS = Net(channels=4, side=32, stages=(), hidden=(), outputs=5, head="conv", unet=True, group="D4")


@pytest.mark.parametrize("spec", ["timm:resnet10t", "torchvision:resnet18", "smp:Unet"])
@pytest.mark.parametrize("how", ["convert", "wrap"])
def test_networks_of_libraries_take_any_channels_and_are_equivariant(spec: str, how: str) -> None:
    net = PIXELS if spec.startswith("smp") else IMAGES
    made, _ = backbone_network(spec, net, how)
    made = made.double().eval()
    x = torch.randn(2, net.channels, 32, 32, dtype=torch.float64)
    assert made(x).shape == ((2, 5, 32, 32) if net is PIXELS else (2, 3))
    qt.assert_equivariant(made, qt.D4, x)


def test_positions_go_with_the_side() -> None:
    net = Net(channels=2, side=48, stages=(), hidden=(), outputs=3)
    made, _ = backbone_network("timm:vit_tiny_patch16_224", net)
    assert made(torch.zeros(1, 2, 48, 48)).shape == (1, 3)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("timm:resnet18x", "did you mean"),
        ("torchvision:resnet18x", "did you mean"),
        ("smp:Unett", "did you mean|labels pixels"),
        ("timm:vit_tiny_patch16_224", "another --side"),
    ],
)
def test_mistakes_are_said(spec: str, words: str) -> None:
    net = Net(channels=1, side=8, stages=(), hidden=(), outputs=3, head="conv" if "smp" in spec else "dense")
    with pytest.raises(ConfigError, match=words):
        backbone_network(spec, net)


@pytest.mark.parametrize("how", ["convert", "wrap"])
def test_a_network_of_timm_from_the_command_line(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = class_folders(tmp_path / "data")
    torch.save(timm.create_model("resnet10t", num_classes=1000).state_dict(), "resnet10t.pth")
    asked = f"train folder/baseline --data {data} --backbone timm:resnet10t --group D4 --how {how} --epochs 1"
    code, out, errors = call(f"{asked} --weights resnet10t.pth --side 32 --channels 1 --runs-dir r", capsys)
    assert code == 0, errors
    assert "fc.weight" in out
    Path("resnet10t.pth").unlink()
    (run,) = Path("r/folder").glob("timm.resnet10t*/seed0")
    assert call(f"check {run}", capsys)[0] == 0
    assert call(f"predict {run} {data}/ant --out torch.csv", capsys)[0] == 0
    assert call(f"export {run} --onnx net.onnx", capsys)[0] == 0
    assert call(f"predict --onnx net.onnx {data}/ant --out onnx.csv", capsys)[0] == 0
    first, second = (table(name) for name in ("torch.csv", "onnx.csv"))
    assert first.keys() == second.keys()
    assert all(abs(a - b) < 1e-4 for name in first for a, b in zip(first[name], second[name], strict=True))


def table(file: str) -> dict[str, list[float]]:
    lines = [line.split(",") for line in Path(file).read_text().splitlines()[1:]]
    return {name: [float(value) for value in values if value[:1].isdigit()] for name, *values in lines}


def test_a_network_of_smp_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = nuclei_tree(tmp_path / "data")
    options = "--backbone smp:Unet/resnet18 --group D4 --epochs 1 --side 32 --runs-dir r"
    code, _, errors = call(f"train nuclei/baseline --data {data} {options}", capsys)
    assert code == 0, errors
    (run,) = Path("r/nuclei").glob("smp.Unet.resnet18*/seed0")
    code, out, errors = call(f"check {run} --whole", capsys)
    assert code == 0, out + errors
    assert call(f"predict {run} {data}/images --out masks", capsys)[0] == 0
    assert len(list(Path("masks").iterdir())) == 12


def test_weights_of_timm_start_a_network(tmp_path: Path) -> None:
    source = timm.create_model("resnet10t", num_classes=1000).eval()
    torch.save({"state_dict": source.state_dict()}, tmp_path / "w.pth")
    net = Net(channels=3, side=32, stages=(), hidden=(), outputs=3, group="D4")
    made: Any
    made, notes = backbone_network("timm:resnet10t", net, "wrap", weights=tmp_path / "w.pth")
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(made.model.eval().forward_features(x), source.forward_features(x))
    assert "fc.weight" in " ".join(notes)
    with pytest.raises(ConfigError, match="for another network"):
        backbone_network("timm:resnet18", net, "wrap", weights=tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("spec", "side", "words"),
    [
        ("timm:resnet10t", 176, ()),
        ("timm:resnet10t", 100, ("176",)),
        ("timm:resnet10t", 30, ("176", "1 x 1")),
        ("torchvision:resnet18", 64, ("224", "2 x 2")),
        ("smp:Unet", 96, ()),
    ],
)
def test_small_images_for_a_large_network_are_said(spec: str, side: int, words: tuple[str, ...]) -> None:
    net = replace(PIXELS if "smp" in spec else IMAGES, side=side, group=None)
    _, notes = backbone_network(spec, net)
    assert len(notes) == len(words)
    for note, word in zip(notes, words, strict=True):
        assert word in note


def test_galaxies_with_networks_of_timm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = galaxy_tree(tmp_path / "data")
    for how in ("convert", "wrap"):
        options = f"--backbone timm:resnet10t --group D4 --how {how} --epochs 1 --side 32 --runs-dir {how}"
        code, _, errors = call(f"train galaxies-small/baseline --data {data} {options}", capsys)
        assert code == 0, errors
        (run,) = Path(f"{how}/galaxies-small").glob("timm.resnet10t*/seed0")
        assert call(f"check {run}", capsys)[0] == 0
        assert call(f"export {run} --onnx {how}.onnx", capsys)[0] == 0
