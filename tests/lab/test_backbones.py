"""Networks that are not the lab's: made by the user's own function, with a symmetry, with pretrained weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from labtools import call, class_folders, tiny
from safetensors.torch import save
from torch import Tensor, nn

import quarterturn as qt
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.models.backbones import backbone_network
from quarterturn_lab.models.libraries import from_factory
from quarterturn_lab.models.pretrained import load_weights
from quarterturn_lab.runs.naming import directory_of
from quarterturn_lab.runs.network import net_for, net_to_train
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.runs.trust import Trust
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.settings.networks import Net
from quarterturn_lab.training import training_run

OWN = """
from torch import nn
def net(channels, side, outputs):
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, outputs))
def flattened(channels, side, outputs):
    return nn.Sequential(nn.Conv2d(channels, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, outputs))
def maps(channels, side, outputs):
    return nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, outputs, 1))
def words(channels, side, outputs):
    return "a network"
"""
GROUPS = ("C2", "C4", "D4")


def keep(tensors: dict[str, Tensor], file: Path) -> None:
    file.write_bytes(save({name: value.contiguous() for name, value in tensors.items()}))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "backbone_nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def config(group: str | None = "D4", how: str = "convert", **options: Any) -> Any:
    net = {"group": group} if group else {}
    return tiny(net=net, backbone="backbone_nets:net", how=how, **options)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("how", ["convert", "wrap"])
def test_backbones_are_equivariant(group: str, how: str) -> None:
    x = torch.randn(3, 1, 15, 15, dtype=torch.float64)
    net = net_for(config(group, how), tuple("abcd")).double().eval()
    assert net(x).shape == (3, 4)
    qt.assert_equivariant(net, qt.named(group), x)
    plain = net_for(config(None, "plain"), tuple("abcd")).double().eval()
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(plain, qt.named(group), x)
    if how == "wrap":
        assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in plain.parameters())


@pytest.mark.usefixtures("own")
def test_the_last_layer_of_a_converted_backbone_may_see_invariants() -> None:
    x = torch.randn(3, 1, 16, 16, dtype=torch.float64)
    net = Net(channels=1, side=16, stages=(), hidden=(), outputs=4, group="D4", invariants=True)
    with_mean = backbone_network("backbone_nets:net", replace(net, invariants=False), "convert")[0]
    made = backbone_network("backbone_nets:net", net, "convert")[0].double().eval()
    numbers = qt.Invariants(qt.D4).numbers
    last = [layer for layer in made.modules() if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in last] == [16 // 8 * numbers]
    assert [layer.in_features for layer in with_mean.modules() if isinstance(layer, nn.Linear)] == [16 // 8]
    qt.assert_equivariant(made, qt.D4, x)
    without = backbone_network("backbone_nets:flattened", net, "convert")[0].double().eval()  # a mean will do
    qt.assert_equivariant(without, qt.D4, x)


@pytest.mark.usefixtures("own")
def test_a_net_of_pixels_turns_with_the_image() -> None:
    net = Net(channels=2, side=16, stages=(), hidden=(), outputs=5, head="conv", unet=True, group="D4")
    x = torch.randn(2, 2, 17, 12, dtype=torch.float64)
    for how in ("convert", "wrap"):
        made, _ = backbone_network("backbone_nets:maps", net, how)
        assert made.double().eval()(x).shape == (2, 5, 17, 12)
        qt.assert_equivariant(made.double().eval(), qt.D4, x)


@pytest.mark.parametrize("how", ["convert", "wrap"])
def test_a_run_is_resumed_and_loaded_without_the_file_of_weights(own: Path, how: str) -> None:
    net = net_for(config(None, "plain"), tuple("abcd"))
    torch.save({"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, own / "pretrained.pth")
    said: list[str] = []
    here = config("D4", how, weights=str(own / "pretrained.pth"), epochs=1)
    training_run.run(here, own / "run", say=said.append)
    assert "pretrained.pth" in said[0]
    assert "7.weight" in said[0]  # the outputs differ
    assert ("wrap" in said[0]) == (how == "convert")  # what keeps more of the weights
    (own / "pretrained.pth").unlink()
    (own / "run" / "summary.json").unlink()
    found = training_run.run(here, own / "run")  # from its checkpoint
    _, data, loaded = load_with_data(own / "run", None, Trust("backbone_nets:net"))
    assert found["backbone"] == "backbone_nets:net"
    assert loaded(torch.zeros(1, 1, 15, 15)).shape == (1, len(data.classes))


def test_pretrained_weights_are_where_training_starts(own: Path) -> None:
    plain = config(None, "plain")
    source = net_for(plain.model_copy(update={"seed": 9}), tuple("abcd"))
    keep(source.state_dict(), own / "w.safetensors")
    x = torch.randn(2, 1, 15, 15)
    images = torch.randn(300, 1, 15, 15)
    for how, group in (("plain", None), ("wrap", "D4")):
        here = config(group, how, weights=str(own / "w.safetensors"))
        net, _ = net_to_train(here, tuple("abcd"), lambda count: images[:count])
        wanted = source if group is None else qt.wrap(source, qt.D4)
        assert torch.equal(net.eval()(x), wanted.eval()(x))
        assert not torch.equal(net_for(here, tuple("abcd")).eval()(x), net.eval()(x))
    here = config("D4", weights=str(own / "w.safetensors"))
    first, notes = net_to_train(here, tuple("abcd"), lambda count: images[:count])
    assert "200 training images" in notes[-1]
    like = from_factory("backbone_nets:net")(
        channels=1, side=15, outputs=4
    )  # in the memory format of what is converted:
    like.load_state_dict(source.state_dict())  # rounding decides between two matches that are as good
    again = qt.convert(like, qt.D4, init="pretrained", example=x, match=images[:200], head="pool")
    for name, value in again.state_dict().items():
        assert torch.equal(first.state_dict()[name], value), name


def test_a_run_knows_its_weights_by_their_contents(own: Path) -> None:
    tensors = net_for(config(None, "plain"), tuple("abcd")).state_dict()
    for name in ("a", "b"):
        keep(tensors, own / f"{name}.safetensors")
    options = {"backbone": "backbone_nets:net", "group": "D4", "how": "wrap"}
    first, second = (
        config_for("synthetic", "baseline", weights=str(own / f"{name}.safetensors"), **options) for name in "ab"
    )
    assert first.identity() == second.identity()
    assert directory_of(first, own) == directory_of(second, own)
    assert directory_of(first, own).parent.name.startswith("backbone_nets.net-D4-wrap-weights-")
    keep({**tensors, "more": torch.zeros(1)}, own / "a.safetensors")
    third = config_for("synthetic", "baseline", weights=str(own / "a.safetensors"), **options)
    assert directory_of(first, own) != directory_of(third, own)
    with pytest.raises(ConfigError, match="another file"):
        net_to_train(first, tuple("abcd"), torch.zeros)


# --- files of weights -------------------------------------------------------------------------------------------------


def small(channels: int = 3, outputs: int = 4, width: int = 8, depth: int = 3) -> nn.Sequential:
    layers = [nn.Conv2d(channels, width, 3), *(nn.Conv2d(width, width, 3) for _ in range(depth))]
    return nn.Sequential(nn.Sequential(*layers), nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs)))


def ready(net: nn.Module, channels: int = 3) -> nn.Module:
    net(torch.zeros(1, channels, 18, 18))
    return net


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "module.model.", "_orig_mod."])
@pytest.mark.parametrize("nest", [None, "state_dict", "model"])
def test_names_of_weights_are_found_under_usual_prefixes(tmp_path: Path, prefix: str, nest: str | None) -> None:
    source, net = ready(small()), ready(small())
    tensors: dict[str, Any] = {f"{prefix}{k}": v for k, v in source.state_dict().items()}
    torch.save({nest: tensors, "epoch": 3} if nest else tensors, tmp_path / "w.pth")
    load_weights(net, tmp_path / "w.pth", "small")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), source.parameters(), strict=True))


def test_other_outputs_and_channels_are_said(tmp_path: Path) -> None:
    source, net = ready(small()), ready(small(channels=5, outputs=7), channels=5)
    keep(source.state_dict(), tmp_path / "w.safetensors")
    notes = " ".join(load_weights(net, tmp_path / "w.safetensors", "small"))
    assert "1.1.weight" in notes
    assert "1.1.bias" in notes
    assert "0.0.weight" not in notes
    old, new = source[0][0].weight, net[0][0].weight
    torch.testing.assert_close(new.sum(1), old.sum(1))  # grey images look as they did
    assert torch.equal(net[0][1].weight, source[0][1].weight)


def test_weights_of_a_part_are_found(tmp_path: Path) -> None:
    source, net = ready(small()), nn.ModuleDict({"encoder": ready(small()), "decoder": nn.Linear(3, 3)})
    keep(source.state_dict(), tmp_path / "w.safetensors")
    notes = " ".join(load_weights(net, tmp_path / "w.safetensors", "small"))
    assert torch.equal(net["encoder"][0][0].weight, source[0][0].weight)
    assert "decoder.weight" in notes


class Sneaky:
    def __reduce__(self) -> Any:
        return print, ("code from a file runs",)


def files_that_do_not_fit(folder: Path) -> dict[str, tuple[Path, str]]:
    def of(net: nn.Module, name: str) -> Path:
        keep(ready(net).state_dict(), folder / name)
        return folder / name

    torch.save(Sneaky(), folder / "code.pth")
    torch.save(small(), folder / "module.pth")
    torch.save(torch.zeros(3), folder / "tensor.pth")
    (folder / "text.pth").write_text("not weights")
    (folder / "text.safetensors").write_text("not weights")
    (folder / "empty.pth").write_bytes(b"")
    return {
        "code": (folder / "code.pth", "could run any code"),
        "module": (folder / "module.pth", "could run any code"),
        "tensor": (folder / "tensor.pth", "no named tensors"),
        "text": (folder / "text.pth", "--weights"),
        "name": (folder / "text.safetensors", "not a .safetensors file"),
        "empty": (folder / "empty.pth", "cannot be read"),
        "wide": (of(small(width=16), "wide.safetensors"), "for another network"),
        "deep": (of(small(depth=6), "deep.safetensors"), "for another network"),
        "shallow": (of(small(depth=1), "shallow.safetensors"), "for another network"),
    }


def test_files_that_do_not_fit_are_refused_and_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = ready(small())
    before: dict[str, Tensor] = {k: v.clone() for k, v in net.state_dict().items()}
    for file, message in files_that_do_not_fit(tmp_path).values():
        with pytest.raises(ConfigError, match=message) as caught:
            load_weights(net, file, "small")
        assert "\n" not in str(caught.value)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert "code from a file runs" not in capsys.readouterr().out


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_trains_checks_and_predicts_a_backbone(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = class_folders(own / "data", classes=("ant", "bee", "cat"))
    runs = "--runs-dir runs --epochs 1 --side 17 --channels 1"
    asked = f"train folder/baseline --data {data} --backbone backbone_nets:net --group D4 {runs}"
    assert call(f"{asked} --how wrap", capsys)[0] == 0
    assert call(asked, capsys)[0] == 0
    for name in ("backbone_nets.net-D4-wrap", "backbone_nets.net-D4-filters"):
        (run,) = Path("runs/folder").glob(f"{name}*")
        assert call(f"check {run}/seed0 --net backbone_nets:net", capsys)[0] == 0
        assert call(f"predict {run}/seed0 {data}/ant --out {name}.csv --trust", capsys)[0] == 0
        assert Path(f"{name}.csv").read_text().startswith("image,")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--backbone backbone_nets", "package.module:function"),
        ("--backbone backbone_nets:nett", "did you mean"),
        ("--backbone backbone_nets:words", "torch.nn.Module"),
        ("--backbone backbone_nets:maps", "is needed"),
        ("--backbone backbone_nets:net --how wrap", "--group"),
        ("--backbone backbone_nets:net --how plain --group D4", "plain has none"),
        ("--backbone backbone_nets:net --weights none.pth", "none.pth"),
        ("--backbone smp:Unet", "labels pixels"),
        ("--weights none.pth", "none.pth"),
        ("--how wrap", "--backbone"),
        ("--backbone backbone_nets:net --net backbone_nets:net", "leave --net out"),
    ],
)
def test_mistakes_end_in_one_line(options: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = call(f"train synthetic/baseline --runs-dir r {options}", capsys)
    assert code == 2
    assert words in errors
    assert len(errors.strip().splitlines()) == 1
