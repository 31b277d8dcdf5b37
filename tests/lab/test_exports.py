"""Exports to other programs: each file, opened by itself, answers to pixels what `predict` answers to the image."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labtools import call, nuclei_tree, small, tiny
from PIL import Image

import quarterturn as qt
from quarterturn_lab import hub
from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.inference import tables, torchscript
from quarterturn_lab.inference.agreement import Written, agreement
from quarterturn_lab.inference.masks import probability_map
from quarterturn_lab.inference.network import trained_network
from quarterturn_lab.runs.trained import card_of, load_with_card
from quarterturn_lab.training import training_run

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # bioimageio.spec leaves files open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes of grey images (D4), of inverted colour images (C4), an ordinary network, and masks (C4)."""
    root, rng = tmp_path_factory.mktemp("exports"), np.random.default_rng(0)
    for name in ("ant", "bee"):
        (root / "data" / name).mkdir(parents=True)
        for i in range(15):
            Image.fromarray(rng.integers(0, 256, (20, 15, 3), dtype=np.uint8)).save(root / "data" / name / f"{i}.png")
    folder = {"experiment": "folder", "loader": "folder", "data": str(root / "data"), "invert": True}
    configs = {
        "grey": tiny("roll-all-quarter-dihedral", epochs=1),
        "colour": tiny("roll-all-quarter", net={"channels": 3}, epochs=1, train_size=None, **folder),
        "plain": tiny("baseline", epochs=1),
        "masks": small("nuclei", "roll-all-quarter", nuclei_tree(root / "nuclei"), epochs=1),
    }
    for name, config in configs.items():
        training_run.run(config, root / name)
    return root


def picture(root: Path, run: Path, size: tuple[int, int] | None = None) -> tuple[Path, np.ndarray]:
    """An image file of the network's side, or of this size, and its pixels `(1, C, H, W)`."""
    settings = card_of(run).settings
    height, width = size or (settings.side, settings.side)
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, settings.channels), dtype=np.uint8)
    Image.fromarray(pixels.squeeze()).save(root / "a.png")
    return root / "a.png", pixels.transpose(2, 0, 1)[None].astype(np.float32)


def predicted(run: Path, path: Path) -> np.ndarray:
    network, card = trained_network(run, "cpu")
    if card.is_dense:
        return probability_map(network, card, path, True)
    return tables.vectors(network.run, card, [("a", path)], 1, True, lambda *_: None)[0]


def softmax(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).double().softmax(1).numpy()


# --- the files, as others open them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grey", "masks", "plain"])
def test_torchscript(name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "new" / "network.pt"
    code, out, errors = call(f"export {runs / name} --to torchscript --out {file}", capsys)
    assert code == 0, errors
    assert {"grey": "equivariant to D4", "masks": "equivariant to C4", "plain": "ordinary"}[name] in out
    assert [path.name for path in file.parent.iterdir()] == ["network.pt"]
    extra = {"quarterturn.json": ""}
    network = torch.jit.load(str(file), _extra_files=extra)
    assert json.loads(extra["quarterturn.json"])["classes"] == list(card_of(runs / name).classes)
    path, pixels = picture(tmp_path, runs / name, (37, 50) if name == "masks" else None)
    found = softmax(network(torch.from_numpy(card_of(runs / name).scaled(pixels))).detach().numpy())[0]
    assert np.abs((found[1] if name == "masks" else found) - predicted(runs / name, path)).max() < 1e-5


@pytest.mark.parametrize("name", ["colour", pytest.param("masks", marks=pytest.mark.slow)])
def test_bioimageio_packages(name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    spec = pytest.importorskip("bioimageio.spec")
    file = tmp_path / "package.zip"
    code, out, errors = call(f"export {runs / name} --to bioimageio --out {file} --license MIT --author A", capsys)
    assert code == 0, errors
    assert "torch.jit and onnxruntime" in out
    assert "equivariant to C4" in out
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "open")
    package = spec.load_model_description(tmp_path / "open" / "rdf.yaml")
    assert package.license == "MIT"
    assert package.authors[0].name == "A"
    assert "Cyclic Symmetry" in package.cite[0].text
    assert package.outputs[0].axes[1].channel_names == list(card_of(runs / name).classes)
    path, pixels = picture(tmp_path, runs / name, (37, 50) if name == "masks" else None)
    stored = np.load(tmp_path / "open" / "test_input.npy")
    assert stored.dtype == np.uint8
    for given in (pixels, stored):
        [scale] = [step.kwargs for step in package.inputs[0].preprocessing if step.id == "scale_linear"]
        x = given * np.reshape(scale.gain, (-1, 1, 1)) + np.reshape(scale.offset, (-1, 1, 1))
        network = torch.jit.load(str(tmp_path / "open" / "weights.pt"))
        found = softmax(network(torch.from_numpy(x).float()).detach().numpy())
        if given is stored:
            assert np.abs(found - np.load(tmp_path / "open" / "test_output.npy")).max() < 1e-5
        else:
            assert np.abs((found[0, 1] if name == "masks" else found[0]) - predicted(runs / name, path)).max() < 1e-5


def test_wsinfer_folders(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "zoo"
    code, out, errors = call(f"export {runs}/colour --to wsinfer --out {folder} --spacing 0.5", capsys)
    assert code == 0, errors
    assert "equivariant to C4" in out
    assert {path.name for path in folder.iterdir()} == {"config.json", "torchscript_model.pt"}
    about = json.loads((folder / "config.json").read_text())
    client = pytest.importorskip("wsinfer_zoo.client")
    config = client.ModelConfiguration.from_dict(about)  # validates
    assert (config.class_names, config.patch_size_pixels, config.spacing_um_px) == (["ant", "bee"], 15, 0.5)
    with pytest.raises(client.InvalidModelConfiguration):
        client.ModelConfiguration.from_dict({**about, "num_classes": "two"})
    path, pixels = picture(tmp_path, runs / "colour")
    last = config.transform[-1].arguments
    mean, std = (np.reshape(last[key], (3, 1, 1)) for key in ("mean", "std"))
    x = torch.from_numpy((pixels / 255 - mean) / std).float()
    found = softmax(torch.jit.load(str(folder / "torchscript_model.pt"))(x).detach().numpy())[0]
    assert np.abs(found - predicted(runs / "colour", path)).max() < 1e-5


@pytest.mark.parametrize("name", ["colour", "masks"])
def test_hub_folders(name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()  # an empty one may be there
    code, out, errors = call(f"export {runs / name} --to hub --out {folder} --license MIT", capsys)
    assert code == 0, errors
    assert "equivariant to C4" in out
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert str(runs) not in (folder / "config.json").read_text()  # no places of this machine
    assert (folder / "README.md").read_text().startswith("---\nlicense: mit\n")
    network = hub.from_pretrained(folder)
    assert network.card == card_of(runs / name)
    assert not network.training
    _, _, trained = load_with_card(runs / name)
    x = torch.randn(2, 3, *((32, 32) if name == "masks" else (15, 15)))
    torch.testing.assert_close(network(x), trained(x), rtol=1e-5, atol=1e-5)


def test_a_hub_folder_by_its_name(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As huggingface_hub keeps what it has downloaded; there is no network here."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = tmp_path / "models--me--cells"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    (place / "snapshots").mkdir()
    call(f"export {runs}/grey --to hub --out {place}/snapshots/{'0' * 40}", capsys)
    assert hub.from_pretrained("me/cells").card == card_of(runs / "grey")
    with pytest.raises(RunError, match="me/fish is not a folder, and cannot be loaded from the hub"):
        hub.from_pretrained("me/fish")


def test_hub_folders_of_strangers(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "hub"
    call(f"export {runs}/grey --to hub --out {folder}", capsys)
    about = json.loads((folder / "config.json").read_text())
    about["model_args"]["settings"]["factory"] = "os:getcwd"
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="os:getcwd: give run_code=True"):
        hub.from_pretrained(folder)
    about["model_args"]["settings"] |= {"factory": None, "row": "baseline"}
    about["model_args"]["classes"] = ["one", "two"]
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="does not fit config.json"):
        hub.from_pretrained(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(RunError, match="is not from `quarterturn export --to hub`"):
        hub.from_pretrained(folder)


# --- the check can fail -----------------------------------------------------------------------------------------------


def invariant(x: np.ndarray) -> np.ndarray:
    return np.stack([x.mean((1, 2, 3)) + 3, (x**2).mean((1, 2, 3))], axis=1)


INPUT = np.random.default_rng(0).standard_normal((2, 1, 6, 6)).astype(np.float32)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x: invariant(x) + 0.01, "differs from the network by"),
        (lambda x: invariant(x) * np.nan, "differs from the network by nan"),
        (lambda x: invariant(x)[:, :1], "gives (2, 1)"),
        (lambda x: invariant(x) + (not np.array_equal(x, INPUT)), "the export in there is not"),
    ],
)
def test_exports_that_differ_are_refused(run: Callable[[np.ndarray], np.ndarray], words: str) -> None:
    with pytest.raises(RunError) as error:
        agreement(Written({"there": run}, invariant, [INPUT]), qt.D4)
    assert words in str(error.value)
    assert "equivariant to D4" in agreement(Written({"there": invariant}, invariant, [INPUT]), qt.D4)


def test_networks_that_are_not_equivariant_are_said_to_be_so() -> None:
    def upright(x: np.ndarray) -> np.ndarray:
        return x[:, 0, 0, :2]

    found = agreement(Written({"there": upright}, upright, [INPUT]), qt.C4)
    assert "not equivariant to C4, as the network is not" in found


def test_an_export_that_differs_is_not_kept(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    save = torchscript.save

    def wrong(source: Any, net: torch.nn.Module, path: Path) -> None:
        save(source, torch.nn.Sequential(net, torch.nn.Tanh()), path)

    monkeypatch.setattr(torchscript, "save", wrong)
    code, _, errors = call(f"export {runs}/grey --to torchscript --out {tmp_path}/a.pt", capsys)
    assert code == 2
    assert "differs from the network" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{grey}", "say what to write"),
        ("{grey} --to onnx", "say what to write"),
        ("{grey} --to onnx --out a.onnx --onnx b.onnx", "not both"),
        ("{grey} --to torchscript --out there", "there is a folder"),
        ("{grey} --to hub --out there", "there exists"),
        ("{grey} --to hub --out file", "file exists"),
        ("{grey} --to torchscript --out file/a.pt", "file"),
        ("{grey} --to wsinfer --out a --spacing 1", "8-bit colour"),
        ("{masks} --to wsinfer --out a --spacing 1", "8-bit colour"),
        ("{colour} --to wsinfer --out a", "give --spacing"),
        ("{colour} --to wsinfer --out a --spacing nan", "--spacing nan"),
        ("{colour} --to wsinfer --out a --spacing -1", "--spacing -1"),
        ("{grey} --to bioimageio --out a.zip --license Mine", "--license Mine"),
    ],
)
def test_mistakes(
    arguments: str,
    message: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("there/a").touch()
    Path("file").touch()
    before = sorted(tmp_path.rglob("*"))
    places = {name: runs / name for name in ("grey", "colour", "masks")}
    code, _, errors = call(f"export {arguments.format(**places)}", capsys)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert sorted(tmp_path.rglob("*")) == before


def test_other_forms_are_refused_by_name(runs: Path, capsys: pytest.CaptureFixture) -> None:
    code, out, errors = call(f"export {runs}/grey --to keras --out a", capsys)
    assert code != 0
    assert "torchscript" in out + errors


def test_rows_that_are_not_plain_go_to_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    training_run.run(tiny("gradual-pool", epochs=1), tmp_path / "run")
    assert call(f"export {tmp_path}/run --to torchscript --out {tmp_path}/a.pt", capsys)[0] == 2
    assert call(f"export {tmp_path}/run --to hub --out {tmp_path}/hub", capsys)[0] == 0
    shutil.rmtree(tmp_path / "run")
    assert hub.from_pretrained(tmp_path / "hub").card.task == "classes"
