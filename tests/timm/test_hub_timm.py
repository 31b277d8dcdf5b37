"""timm loads a folder that the lab has exported, after one import."""

from pathlib import Path

import pytest
import timm
import torch
from labtools import tiny
from torch import nn

import quarterturn as qt
import quarterturn_lab.hub.timm_models  # noqa: F401  registers the architecture
from quarterturn_lab import hub
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.inference.export import export
from quarterturn_lab.inference.source import About
from quarterturn_lab.training import training_run


def exported(folder: Path, row: str, **options: object) -> Path:
    training_run.run(tiny(row, epochs=1, **options), folder / "run")
    export(folder / "run", "hub", folder / "hub", About())
    return folder / "hub"


@pytest.mark.parametrize("row", ["roll-all-quarter-dihedral", "residual-d4", "baseline"])
def test_timm_loads_a_folder(row: str, tmp_path: Path) -> None:
    net = {"stages": ((8,), (16,))} if "residual" in row else {}
    folder = exported(tmp_path, row, net=net)
    ours, theirs = hub.from_pretrained(folder), timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = torch.randn(2, 1, 15, 15)
    torch.testing.assert_close(theirs(x), ours(x), rtol=0, atol=0)
    if row != "baseline":
        qt.assert_equivariant(theirs, qt.D4, x)
    fresh = timm.create_model(f"local-dir:{folder}").eval()  # without the weights
    assert not torch.equal(fresh(x), ours(x))
    settings = timm.data.resolve_model_data_config(theirs)
    assert tuple(settings["input_size"]) == (1, 15, 15)
    pixels = torch.randint(0, 256, (1, 15, 15)).float()
    mean, std = (torch.tensor(settings[name])[:, None, None] for name in ("mean", "std"))
    scaled = ours.card.scaled(pixels.numpy())
    torch.testing.assert_close((pixels / 255 - mean) / std, torch.from_numpy(scaled), rtol=1e-4, atol=1e-4)


def test_another_number_of_classes_gets_a_new_output_layer(tmp_path: Path) -> None:
    folder = exported(tmp_path, "roll-all-quarter")
    model = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=3)
    trained = hub.from_pretrained(folder)
    assert model(torch.randn(2, 1, 15, 15)).shape == (2, 3)
    torch.testing.assert_close(model.conv1.weight, trained.conv1.weight, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="in_chans=3: this network takes 1"):
        timm.create_model(f"local-dir:{folder}", in_chans=3)
    with pytest.raises(ConfigError, match="images of 15 x 15"):
        timm.create_model(f"local-dir:{folder}", img_size=(16, 16))
    with pytest.raises(ConfigError, match="made from an exported folder"):
        timm.create_model("quarterturn_network")


@pytest.mark.parametrize("how", ["convert", "wrap", "plain"])
def test_networks_of_timm_come_back(how: str, tmp_path: Path) -> None:
    net = {"channels": 1, "side": 32, "group": "C4" if how != "plain" else None}
    folder = exported(tmp_path, "baseline", backbone="timm:resnet10t", how=how, net=net)
    ours, theirs = hub.from_pretrained(folder), timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert isinstance(theirs, nn.Module)
    x = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(theirs(x), ours(x), rtol=0, atol=0)
    with pytest.raises(ConfigError, match="num_classes=3"):
        timm.create_model(f"local-dir:{folder}", num_classes=3)
    script = export(tmp_path / "run", "torchscript", tmp_path / "a.pt", About())
    assert ("equivariant to C4" in script) == (how != "plain")
