"""Volumes: reading them, scores, patches, tiles, the choice of a group, and a fit from a folder to a mask."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labtools import SHAPE, call, folder_of, saved, scan

import quarterturn as qt
from quarterturn_lab.data import volumes, voxels
from quarterturn_lab.data.augment import volume_matrices, warped
from quarterturn_lab.data.synthetic_volumes import NOISE, SIGNAL, draw, rotation
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.evaluation.volumes import surface_distances, volume_scores
from quarterturn_lab.fit import volume_symmetry
from quarterturn_lab.inference.network import tiled_network
from quarterturn_lab.inference.whole_images import joined
from quarterturn_lab.models.build import build
from quarterturn_lab.settings.config import Augment
from quarterturn_lab.settings.experiments import config_for

nibabel = pytest.importorskip("nibabel", reason='NIfTI needs nibabel: pip install "quarterturn[nifti]"')
LIMIT = 10**6


def quarterturn(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code, out, errors = call(" ".join(map(str, words)), capsys)
    return code, out + errors


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_volume_is_read_the_same_however_it_lies_in_its_file_and_masks_go_back(tmp_path: Path) -> None:
    image, labels = scan(0)
    upright = saved(tmp_path / "a.nii.gz", image, np.diag([1, 2, 3, 1.0]))
    for number, element in enumerate(qt.OCTA_FULL.elements):
        moved = nibabel.Nifti1Image(image, np.diag([1, 2, 3, 1.0])).as_reoriented(
            np.array([[abs(a) - 1, np.sign(a)] for a in element], dtype=float)
        )
        path = tmp_path / f"{number}.nii.gz"
        nibabel.save(moved, path)
        assert np.array_equal(volumes.read(path, 1, LIMIT), volumes.read(upright, 1, LIMIT))
        assert volumes.header(path, LIMIT).spacing == pytest.approx((1, 2, 3))
        volumes.save_like(tmp_path / "mask.nii.gz", labels, path, LIMIT)
        mask = nibabel.load(tmp_path / "mask.nii.gz")
        assert np.allclose(mask.affine, moved.affine)
        assert mask.shape == moved.shape
        assert np.array_equal(volumes.labels(tmp_path / "mask.nii.gz", LIMIT), labels)


def test_stacks_of_slices_keep_their_spacing(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    image, labels = scan(0)
    sizes = {f"PhysicalSize{axis}": size for axis, size in zip("ZYX", (3.0, 1.0, 1.0), strict=True)}
    units = {f"PhysicalSize{axis}Unit": "mm" for axis in "ZYX"}
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, image, ome=True, metadata={"axes": "ZYX", **sizes, **units})
    assert volumes.is_stack(path)
    assert volumes.header(path, LIMIT).spacing == (3.0, 1.0, 1.0)
    assert volumes.read(path, 1, LIMIT).shape == (1, *SHAPE)
    volumes.save_like(tmp_path / "m.ome.tif", labels, path, LIMIT)
    assert np.array_equal(volumes.labels(tmp_path / "m.ome.tif", LIMIT), labels)
    assert volumes.header(tmp_path / "m.ome.tif", LIMIT).spacing == (3.0, 1.0, 1.0)


def test_volumes_that_cannot_be_used_are_refused_with_the_way_out(tmp_path: Path) -> None:
    image, labels = scan(0)
    good = saved(tmp_path / "good.nii.gz", image)
    several = saved(tmp_path / "several.nii.gz", np.stack([image] * 2, axis=-1))
    with pytest.raises(DataError, match="2 volumes in one file: if they are channels, name them in dataset.json"):
        volumes.read(several, 1, LIMIT)
    assert volumes.read(several, 2, LIMIT).shape == (2, *SHAPE)
    holes = image.copy()
    holes[0, 0, :3] = np.nan
    with pytest.raises(DataError, match="3 voxels that are not finite"):
        volumes.read(saved(tmp_path / "holes.nii.gz", holes), 1, LIMIT)
    with pytest.raises(DataError, match="more than the limit of 100"):
        volumes.header(good, 100)
    (tmp_path / "short.nii.gz").write_bytes(gzip.compress(gzip.decompress(good.read_bytes())[:500]))
    with pytest.raises(DataError, match="ends after"):
        volumes.read(tmp_path / "short.nii.gz", 1, LIMIT)
    (tmp_path / "none.nii.gz").write_bytes(gzip.compress(b"\0" * 1000))
    with pytest.raises(DataError, match="no NIfTI header"):
        volumes.header(tmp_path / "none.nii.gz", LIMIT)
    header = volumes.header(good, LIMIT)
    other = volumes.header(saved(tmp_path / "other.nii.gz", labels, np.diag([-1, 1, 1, 1.0])), LIMIT)
    with pytest.raises(DataError, match="lie differently in space"):
        volumes.check_pair(good, header, tmp_path / "other.nii.gz", other)
    smaller = volumes.header(saved(tmp_path / "smaller.nii.gz", labels[1:]), LIMIT)
    with pytest.raises(DataError, match="differ in size"):
        volumes.check_pair(good, header, tmp_path / "smaller.nii.gz", smaller)


def test_a_packed_file_is_unpacked_no_further_than_its_header_says(tmp_path: Path, monkeypatch: Any) -> None:
    path = saved(tmp_path / "a.nii.gz", scan(0)[0])
    plain = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(plain + b"\0" * 50_000_000))
    seen = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: seen.append(size) or read(self, size))
    volumes.read(path, 1, LIMIT)
    assert all(size >= 0 for size in seen)
    assert sum(seen) <= len(plain)


def test_folders_that_cannot_be_used_end_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(folder: Path) -> str:
        code, words = quarterturn(capsys, "data", "info", folder)
        assert code == 2
        return words.strip().split("; expected")[0]

    unnamed = folder_of(tmp_path / "unnamed", 3)
    (unnamed / "dataset.json").write_text('{"labels": {"0": "background", "1": "near"}}')
    assert "Name them all in dataset.json" in said(unnamed)
    assert said(folder_of(tmp_path / "one", 1)).startswith("quarterturn: 1 file leaves no valid part")
    nnunet = folder_of(tmp_path / "nnunet", 3)
    for path in (nnunet / "imagesTr").iterdir():
        path.rename(path.with_name(path.name.replace(".nii", "_0000.nii")))
    assert "s0_0000.nii.gz has no mask" in said(nnunet)
    assert "take it off" in said(nnunet)
    nowhere = folder_of(tmp_path / "nowhere", 3)
    for path in nowhere.rglob("*.nii.gz"):  # neither a place in space nor a size of voxels, for which nibabel has a log
        content = bytearray(gzip.decompress(path.read_bytes()))
        content[80:92], content[252:256] = bytes(12), bytes(4)
        path.write_bytes(gzip.compress(bytes(content)))
    assert said(nowhere).count("\n") == 0
    code, words = quarterturn(capsys, "data", "info", nowhere, *("--spacing", 1) * 2, "--spacing", 0)
    assert (code, "along each of three axes, in mm and above 0" in words) == (2, True), words
    assert "--spacing 1 --spacing 1 --spacing 3" in said(nowhere)


def test_stacks_that_do_not_say_what_their_pages_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tifffile = pytest.importorskip("tifffile")
    for number in range(3):
        for folder, array in zip(("images", "labels"), scan(number), strict=True):
            (tmp_path / folder).mkdir(exist_ok=True)
            tifffile.imwrite(tmp_path / folder / f"{number}.tif", array)
    code, said = quarterturn(capsys, "data", "info", tmp_path)
    assert (code, "axis Z" in said) == (2, True), said


# --- scores -----------------------------------------------------------------------------------------------------------


def test_scores_of_volumes_leave_the_background_out_and_know_the_spacing() -> None:
    truth = np.zeros((6, 6, 6), dtype=np.uint16)
    truth[1:3], truth[4:] = 1, 2
    found = np.stack([truth == c for c in range(3)]).astype(float)
    right = volume_scores([found], [truth], [(1.0, 1.0, 1.0)])
    assert (right["dice"], right["surface_mm"], right["hausdorff95_mm"]) == (1.0, 0.0, 0.0)
    shifted = volume_scores([np.roll(found, 1, axis=1)], [truth], [(2.5, 1.0, 1.0)])
    assert shifted["dice_1"] == 0.5
    assert shifted["dice"] < 1
    background = np.stack([np.ones_like(truth), truth * 0, truth * 0]).astype(float)
    nothing = volume_scores([background], [truth], [(1.0, 1.0, 1.0)])
    assert nothing["dice"] == 0.0
    assert np.isnan(nothing["surface_mm"])
    a, b = np.zeros((2, 3, 3, 9), dtype=bool)
    a[1, 1, 1] = b[1, 1, 7] = True
    assert surface_distances(a, b, (1, 1, 0.5)) == (3.0, 3.0)


# --- networks, patches and tiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["roll-mirror-1", "roll-D4-3", "roll-octa"])
def test_networks_for_volumes_are_exact_on_every_element_at_unequal_sizes(row: str) -> None:
    torch.manual_seed(0)
    config = config_for("volumes-embedded", row)
    net = build(config.net, "filters").double().eval()
    error = qt.equivariance_error(net, qt.named(config.net.group or ""), torch.randn(1, 1, 7, 6, 9).double())
    assert max(error.relative) < 1e-10
    wrong = qt.named("mirror-1") if row != "roll-mirror-1" else qt.named("mirror-2")
    if not set(wrong.elements) <= set(qt.named(config.net.group or "").elements):
        assert max(qt.equivariance_error(net, wrong, torch.randn(1, 1, 7, 6, 9).double()).relative) > 1e-3


def test_tiles_of_a_volume_give_what_the_whole_gives() -> None:
    torch.manual_seed(0)
    config = config_for("volumes-embedded", "roll-mirror-1")
    small = build(config.net.__class__(**{**vars(config.net), "stages": ((4,), (8,)), "hidden": (4,)}), "filters")
    network = tiled_network(small.eval(), 1, torch.device("cpu"))
    volume = np.random.default_rng(0).standard_normal((1, 41, 30, 35)).astype(np.float32)
    view = network.view((41, 30, 35))
    assert view.alone == ""
    assert len(view.tiles(16)) > 8
    whole = network.run(volume[None])[0]
    assert np.abs(joined(view, view.parts(volume, 16)) - whole).max() < 1e-5 * np.abs(whole).max()


def test_small_turns_of_volumes_are_turns_and_no_turn_changes_nothing() -> None:
    places = np.arange(5)
    turns = volume_matrices(Augment(turn=30.0, zoom=1.0, flip=False), 0, 0, places)[:, :, :3].double()
    assert torch.allclose(turns @ turns.mT, torch.eye(3).double().expand(5, 3, 3), atol=1e-6)
    assert torch.allclose(torch.linalg.det(turns), torch.ones(5).double(), atol=1e-6)
    still = volume_matrices(Augment(turn=0.0, flip=False), 0, 0, places[:1])
    volume = torch.randn(1, 1, 6, 6, 6)
    assert torch.allclose(warped(volume, still), volume, atol=1e-5)


def test_drawn_volumes_have_textures_of_equal_variance_in_any_orientation() -> None:
    values: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for number in range(40):
        image, labels = draw(number)
        assert set(labels.ravel()) == {0, 1, 2}
        for kind, found in values.items():
            found.extend(image[labels == kind])
    assert [np.var(found) for found in values.values()] == pytest.approx([SIGNAL**2 + NOISE**2] * 3, rel=0.1)
    turn = rotation(np.random.default_rng(0))
    assert np.allclose(turn @ turn.T, np.eye(3))
    assert np.linalg.det(turn) == pytest.approx(1)


# --- which group ------------------------------------------------------------------------------------------------------


def test_the_group_follows_from_the_spacing() -> None:
    assert voxels.allowed([(1, 1, 1)]) == qt.OCTA_FULL
    assert voxels.allowed([(1, 1, 1), (1, 1, 3)]).name == "D4h-3"
    assert voxels.allowed([(1, 2, 3)]) == qt.mirrors(1, 2, 3)
    assert voxels.check("D4-3", [(1, 1, 3)]) == qt.named("D4-3")
    with pytest.raises(ConfigError, match="voxels of 1 x 1 x 3 mm are not cubes: use D4-3, or D4h-3"):
        voxels.check("octa", [(1, 1, 3)])
    with pytest.raises(ConfigError, match=r"octa exchanges axes, and voxels of 1 x 1 x 3 mm are not cubes: use D4-3"):
        voxels.check("octa", [(1, 1, 1), (1, 1, 3)])
    with pytest.raises(ConfigError, match="use mirrors-1-2-3"):
        voxels.check("D4-3", [(1, 2, 3)])


@pytest.mark.parametrize(
    ("lossy", "group"),
    [
        ("", "octa-full"),
        ("m1 m2 m3", "octa"),
        ("t1 t2", "D4-3"),
        ("t1 t2 t3 m2 m3", "mirror-1"),
        ("t1 t2 t3 m1 m2 m3", "none"),
    ],
)
def test_what_volumes_lose_says_which_group(lossy: str, group: str) -> None:
    rng = np.random.default_rng(0)
    upright = 0.3 + 0.01 * rng.random(8)
    names = {f"m{a}": f"mirrored along axis {a}" for a in (1, 2, 3)} | {
        f"t{a}": f"turned about axis {a}" for a in (1, 2, 3)
    }
    after = {
        name: upright + (0.6 if key in lossy.split() else 0.0) + 0.01 * rng.random(8) for key, name in names.items()
    }
    assert volume_symmetry.decide(upright, after, 1.0, qt.OCTA_FULL).symmetry == group
    assert not volume_symmetry.decide(upright + 0.69, after, 1.0, qt.OCTA_FULL).sure


# --- the command line -------------------------------------------------------------------------------------------------


def test_from_a_folder_of_volumes_to_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "scans")
    (folder / "dataset.json").write_text('{"labels": {"0": "background", "1": "near", "2": "far"}}')
    code, said = quarterturn(capsys, "data", "info", folder)
    assert code == 0
    assert "8 volumes" in said
    assert "near, far" in said
    runs = tmp_path / "runs"
    options = ("--epochs", 1, "--side", 8, "--runs-dir", runs, "--symmetry", "mirror-1")
    code, said = quarterturn(capsys, "fit", folder, *options)
    assert code == 0, said
    run = next(runs.glob("fit/scans/*/seed0"))
    page = (run / "report.html").read_text()
    assert "data:image/png" in page
    assert "<th>Dice, far</th>" in page
    code, said = quarterturn(capsys, "predict", run, folder / "imagesTr/s0.nii.gz", "--out", tmp_path / "mask.nii.gz")
    assert code == 0, said
    assert "1 volume -> " in said
    assert volumes.labels(tmp_path / "mask.nii.gz", LIMIT).shape == SHAPE
    for words, why in (
        (("fit", folder, "--symmetry", "C4", "--runs-dir", runs), "C4 acts on 2 axes, and a volume has three"),
        (("predict", run, folder / "imagesTr", "--out", tmp_path / "one.nii.gz"), "give a folder"),
        (("predict", run, folder / "imagesTr/s0.nii.gz", "--out", tmp_path / "one.png"), "a .nii.gz or .ome.tif file"),
        (("predict", run, Path(__file__), "--out", tmp_path / "o"), "is no volume"),
        (("predict", "a.onnx", folder / "imagesTr", "--out", tmp_path / "o"), "give it as --onnx a.onnx"),
        (("export", run, "--to", "wsinfer", "--out", tmp_path / "w"), "is for images"),
        (("fit", folder, "--task", "instances", "--runs-dir", runs), "is not for volumes"),
    ):
        code, said = quarterturn(capsys, *words)
        assert (code, why in said) == (2, True), said


@pytest.mark.parametrize(
    "labels", ['{"a": 1e400}', '{"²": "a"}', '{"a": NaN}', f'{{"{"1" * 5000}": "a"}}', '{"a": []}']
)
def test_labels_that_are_no_numbers_are_left_out(
    labels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "scans", 3)
    (folder / "dataset.json").write_text(f'{{"labels": {labels}}}')
    code, said = quarterturn(capsys, "data", "info", folder)
    assert (code, "3 volumes" in said) == (0, True), said


def test_labels_of_another_place_and_groups_of_cubes_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "flat", spacing=(1, 1, 3), names="")
    code, said = quarterturn(capsys, "fit", folder, "--symmetry", "octa", "--runs-dir", tmp_path / "runs")
    assert (code, "use D4-3" in said) == (2, True), said
    trained = ("train", "hippocampus/roll-octa", "--data", folder, "--runs-dir", tmp_path / "runs")
    code, said = quarterturn(capsys, *trained)
    assert (code, "use D4-3" in said) == (2, True), said
    saved(folder / "labels/s1.nii.gz", scan(1)[1], np.diag([-1, 1, 3, 1.0]))
    code, said = quarterturn(capsys, "train", "hippocampus/baseline", "--data", folder, "--runs-dir", tmp_path / "runs")
    assert (code, "lie differently in space" in said) == (2, True), said
