"""After training: predictions of files, submissions, ONNX files, and what the report shows of answers and masks."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import labtools
import numpy as np
import pytest
import torch
from labtools import call, class_folders, galaxy_tree, nuclei_tree, small, tiny
from PIL import Image

from quarterturn_lab.data import prepare
from quarterturn_lab.data.augment import turned
from quarterturn_lab.data.scaling import scaling_of
from quarterturn_lab.errors import DataError, RunError
from quarterturn_lab.evaluation import score
from quarterturn_lab.inference import predict, tables
from quarterturn_lab.inference.large_files import opened
from quarterturn_lab.inference.masks import probability_map
from quarterturn_lab.inference.network import trained_network
from quarterturn_lab.models.layers import ANSWERS
from quarterturn_lab.report import table
from quarterturn_lab.report.html import report
from quarterturn_lab.runs import model_card, run_directory
from quarterturn_lab.runs.loading import load
from quarterturn_lab.runs.network import net_for
from quarterturn_lab.runs.trained import card_of, load_with_data
from quarterturn_lab.training import training_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain and a rolled network on each of the sets: DATA in root/data, runs in root/runs."""
    root = tmp_path_factory.mktemp("trained")
    for name in ("galaxies", "buildings", "nuclei"):
        data = getattr(labtools, labtools.TREES[name])(root / "data" / name)
        for row in ("baseline", "roll-all-quarter"):
            config = small(name, row, data, epochs=1)
            training_run.run(config, directory(root, config.experiment, config.row))
    plankton = {"loader": "plankton", "data": str(class_folders(root / "data/plankton/train", count=15))}
    config = tiny("roll-all-quarter", experiment="plankton", epochs=1, train_size=None, **plankton)
    training_run.run(config, directory(root, config.experiment, config.row))
    return root


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def values_of(path: Path) -> np.ndarray:
    return np.array([[float(text) for text in row[1:]] for row in rows_of(path)[1:]])


def directory(trained: Path, name: str, row: str = "roll-all-quarter") -> Path:
    return trained / "runs" / name / row / "seed0"


# --- predict ----------------------------------------------------------------------------------------------------------


def test_predictions_of_files_are_those_of_the_loader(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, out = directory(trained, "galaxies"), tmp_path / "new" / "answers.csv"
    folder = trained / "data/galaxies/images_training_rev1"
    code, _, errors = call(f"predict {run} {folder} --out {out} --batch 7", capsys)
    assert code == 0, errors
    assert rows_of(out)[0] == ["image", *ANSWERS]
    config, data, net = load_with_data(run)
    assert [row[0] for row in rows_of(out)[1:]] == [f"{name}.jpg" for name in data.names]
    expected = score.predict(config, net, data, np.arange(20), CPU)
    assert np.abs(values_of(out) - expected).max() < 1e-6
    pattern = tmp_path / "pattern.csv"
    assert call(f"predict {run} {folder}/10000*.jpg {folder}/100023.jpg --out {pattern}", capsys)[0] == 0
    assert [row[0] for row in rows_of(pattern)[1:]] == ["100008.jpg", "100023.jpg"]
    assert np.abs(values_of(pattern) - expected[:2]).max() < 1e-6


def test_turned_files_have_the_same_answers_and_turned_masks(trained: Path, tmp_path: Path) -> None:
    """The whole way from the file, in pictures without losses: a PNG, and the PNG turned."""
    rng = np.random.default_rng(0)
    for name, size in (("galaxies", (52, 52)), ("buildings", (90, 61)), ("nuclei", (37, 60))):
        pixels = rng.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a.png")
        Image.fromarray(np.rot90(pixels, -1)).save(tmp_path / "b.png")
        network, card = trained_network(directory(trained, name), "cpu")
        files = [("a.png", tmp_path / "a.png"), ("b.png", tmp_path / "b.png")]
        if name == "galaxies":
            first, second = tables.vectors(network.run, card, files, 2, False, lambda *_: None)
            assert np.abs(first - second).max() < 1e-3  # scaling rounds to bytes
        else:
            first, second = (probability_map(network, card, path) for _, path in files)
            assert first.shape == size
            assert np.abs(np.rot90(first, -1) - second).max() < 1e-5


def test_masks_are_pictures_of_the_images_sizes(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, folder, out = directory(trained, "nuclei"), trained / "data/nuclei/images", tmp_path / "masks"
    code, _, errors = call(f"predict {run} {folder} --out {out}", capsys)
    assert code == 0, errors
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in folder.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["masks"]  # nothing else is left
    grey = tmp_path / "grey"
    assert call(f"predict {run} {folder} --out {grey} --grey", capsys)[0] == 0
    for path in folder.iterdir():
        mask, light = (np.asarray(Image.open(where / path.name)) for where in (out, grey))
        assert mask.shape == np.asarray(Image.open(path)).shape[:2]
        assert set(np.unique(mask)) <= {0, 255}
        sure = np.abs(light.astype(int) - 127.5) > 1
        assert np.array_equal(mask[sure] > 0, light[sure] > 127)
    one = tmp_path / "one.png"
    assert call(f"predict {run} {folder}/cell00.png --out {one}", capsys)[0] == 0
    assert np.array_equal(np.asarray(Image.open(one)), np.asarray(Image.open(out / "cell00.png")))
    assert call(f"predict {run} {folder}/cell00.png --out {tmp_path}/one.tif", capsys)[0] == 0
    with Image.open(tmp_path / "one.tif") as image:
        assert (image.format, image.size) == ("TIFF", (48, 48))
    assert call(f"predict {run} {folder}/cell01.png --out {out}", capsys)[0] == 0  # into a folder that is there
    assert len(list(out.iterdir())) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("predict {run} nowhere --out o.csv", "nowhere does not exist"),
        ("predict {run} empty --out o.csv", "empty contains no images"),
        ("predict {run} --out o.csv", "no images given"),
        ("predict --out o.csv", "name a run directory and images"),
        ("predict nowhere a.png --out o.csv", "nowhere is not a run directory"),
        ("predict {run} colour.png grey.png --out o.csv", "grey.png has 1 channel, but"),
        ("predict {plankton} colour.png --out o.csv", "colour.png has 3 channels, but"),
        ("predict {run} colour.png broken.png --out o.csv", "broken.png cannot be read"),
        ("predict {run} colour.png deep/colour.png --out o.csv", "have the same name"),
        ("predict {run} colour.png --out empty", "is a folder"),
        ("predict {run} colour.png --out o.csv --batch 0", "--batch 0"),
        ("predict {nuclei} colour.png broken.png --out o", "broken.png cannot be read"),
        ("predict {nuclei} colour.png grey.png --out o.png", "one file, but there are 2 images"),
        ("predict {nuclei} twins --out o", "two images would be written to o/same.png"),
        ("predict --onnx no.onnx colour.png --out o.csv", "no.onnx does not exist"),
        ("predict --onnx broken.png colour.png --out o.csv", "broken.png cannot be loaded as an ONNX file"),
        ("submit {run} --sample no.csv", "no.csv does not exist"),
        ("submit {nuclei} --sample sample.csv --images empty", "no submission format"),
        ("submit {nuclei} --sample sample.csv", "--images DIR"),
        ("submit {run} --sample sample.csv --images empty", "2 of 2 rows of sample.csv have no image in empty: 1, 2"),
        ("submit {run} --sample sample.csv", "images_test_rev1 does not exist: --images"),
        ("submit {run} --sample strange.csv --images empty", "1 of 37 columns of strange.csv are not outputs"),
        ("submit {run} --sample short.csv --images empty", "no column for 1 of the network's outputs, such as"),
        ("submit {run} --sample twice.csv --images empty", "twice.csv lists 7 more than once"),
        ("submit {run} --sample header.csv --images empty", "header.csv: expected a header"),
        ("export nowhere --onnx o.onnx", "nowhere is not a run directory"),
        ("export {run} --onnx empty", "is a folder"),
        ("check {run} --whole", "--whole is for networks that label each pixel"),
        ("evaluate {nuclei} --turns 8", "quarter turns only"),
    ],
)  # fmt: skip
def test_mistakes_are_named_and_nothing_is_half_written(
    arguments: str,
    message: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "deep", "twins"):
        (tmp_path / name).mkdir()
    rng = np.random.default_rng(0)
    for name in ("colour.png", "deep/colour.png", "twins/same.png", "twins/same.bmp"):
        Image.fromarray(rng.integers(0, 255, (30, 30, 3), dtype=np.uint8)).save(name)
    Image.fromarray(rng.integers(0, 255, (30, 30), dtype=np.uint8)).save("grey.png")
    Path("broken.png").write_text("no image")
    header = ",".join(("GalaxyID", *ANSWERS))
    Path("sample.csv").write_text(f"{header}\n1{',0' * 37}\n2{',0' * 37}\n")
    Path("strange.csv").write_text(f"{header.replace('Class11.6', 'Class12.1')}\n1{',0' * 37}\n")
    Path("short.csv").write_text(f"{header.rpartition(',')[0]}\n1{',0' * 36}\n")
    Path("twice.csv").write_text(f"{header}\n7{',0' * 37}\n7{',0' * 37}\n")
    Path("header.csv").write_text(f"{header}\n")
    before = sorted(path for path in tmp_path.rglob("*"))
    runs_of = {name: directory(trained, name) for name in ("plankton", "nuclei")} | {
        "run": directory(trained, "galaxies")
    }
    code, _, errors = call(arguments.format(**runs_of), capsys)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert [path for path in sorted(tmp_path.rglob("*")) if ".o." not in str(path)] == before  # but work that is done


def test_grey_and_colour_can_be_converted_when_asked_for(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (60, 60), dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(np.stack([grey] * 3, axis=2)).save(tmp_path / "three.png")
    out = tmp_path / "o.csv"
    assert call(f"predict {directory(trained, 'galaxies')} {tmp_path}/grey.png --out {out}", capsys)[0] == 2
    assert call(f"predict {directory(trained, 'galaxies')} {tmp_path}/grey.png --out {out} --convert", capsys)[0] == 0
    assert call(f"predict {directory(trained, 'galaxies')} {tmp_path}/three.png --out {out}", capsys)[0] == 0
    # Three equal channels are grey, too; the nuclei were of both kinds.
    assert call(f"predict {directory(trained, 'plankton')} {tmp_path}/three.png --out {out}", capsys)[0] == 0
    assert call(f"predict {directory(trained, 'nuclei')} {tmp_path}/grey.png --out {tmp_path}/m", capsys)[0] == 0


def test_a_mistake_leaves_the_old_file_whole(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "o.csv"
    out.write_text("old")
    (tmp_path / "broken.jpg").write_text("no image")
    folder = trained / "data/galaxies/images_training_rev1"
    code, _, _ = call(f"predict {directory(trained, 'galaxies')} {folder} {tmp_path}/broken.jpg --out {out}", capsys)
    assert code == 2
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jpg", "o.csv"]


def test_models_of_numbers_name_other_channels(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(12):
            tifffile.imwrite(
                tmp_path / "data" / name / f"{i}.tif",
                rng.random((5, 16, 16), dtype=np.float32),
                photometric="minisblack",
            )
    config = tiny("roll-all-quarter", loader="folder", data=str(tmp_path / "data"), floats=True, experiment="folder",
                  net={"channels": 5}, epochs=1, train_size=None)  # fmt: skip
    training_run.run(config, tmp_path / "run")
    network, card = trained_network(tmp_path / "run", "cpu")
    good = [("0.tif", tmp_path / "data/a/0.tif")]
    assert tables.vectors(network.run, card, good, 1, False, lambda *_: None).sum() == pytest.approx(1)
    Image.new("RGB", (16, 16)).save(tmp_path / "photo.png")
    with (
        pytest.raises(DataError, match=r"photo\.png has 3 channels: 5 are needed"),
        opened(tmp_path / "photo.png", card),
    ):
        pass
    tifffile.imwrite(tmp_path / "four.tif", rng.random((4, 16, 16), dtype=np.float32), photometric="minisblack")
    with pytest.raises(DataError, match=r"four\.tif has 4 channels: 5 are needed"), opened(tmp_path / "four.tif", card):
        pass


def test_a_model_card_is_written_and_read(trained: Path, tmp_path: Path) -> None:
    run = directory(trained, "buildings")
    card = card_of(run)
    assert (card.task, card.margin, card.shrinks, card.is_dense) == ("pixels", 6, False, True)
    assert model_card.read(card.to_json(), "x") == card
    with pytest.raises(RunError, match="model.json was not written by this version"):
        model_card.read(card.to_json().replace('"version": 1', '"version": 0'), "model.json")
    with pytest.raises(RunError, match="was not written by this version"):
        model_card.read("{}", "model.json")
    galaxies = card_of(directory(trained, "galaxies"))
    assert (galaxies.classes, galaxies.bands, galaxies.settings.side) == (ANSWERS, (3,), 16)
    assert galaxies.settings.folder is None


# --- submit -----------------------------------------------------------------------------------------------------------


def check_submission(path: Path, sample: Path, sums_to_one: bool) -> None:
    """The format in the words of the challenge: the sample's header, each of its rows once, numbers in [0, 1]."""
    mine, theirs = rows_of(path), rows_of(sample)
    assert mine[0] == theirs[0]
    assert [row[0] for row in mine[1:]] == [row[0] for row in theirs[1:]]
    assert len({row[0] for row in mine[1:]}) == len(mine) - 1
    assert all(len(row) == len(mine[0]) for row in mine)
    values = values_of(path)
    assert np.isfinite(values).all()
    assert values.min() >= 0
    assert values.max() <= 1
    if sums_to_one:
        assert np.abs(values.sum(1) - 1).max() < 1e-6


def test_a_submission_for_plankton(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Columns in the sample's order, which is not that of the classes; rows named by files."""
    folder = trained / "data/plankton/test"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("1", "10", "2"):
        Image.fromarray(rng.integers(0, 255, (20, 30), dtype=np.uint8)).save(folder / f"{name}.jpg")
    sample = tmp_path / "sampleSubmission.csv"
    sample.write_text("image,bee,ant\n10.jpg,0.5,0.5\n1.jpg,0.5,0.5\n2.jpg,0.5,0.5\n")
    run = directory(trained, "plankton")
    code, _, errors = call(f"submit {run} --sample {sample} --images {folder}", capsys)
    assert code == 0, errors
    check_submission(run / "submission.csv", sample, sums_to_one=True)
    call(f"predict {run} {folder} --out {tmp_path}/o.csv", capsys)
    found = {row[0]: row[1:] for row in rows_of(tmp_path / "o.csv")}
    assert found["image"] == ["predicted_class", "ant", "bee"]
    assert rows_of(run / "submission.csv")[1][1:] == found["10.jpg"][:0:-1]


def test_a_submission_for_galaxies(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Rows named by number; the header as the evaluation page spells it."""
    tree = galaxy_tree(tmp_path / "other", count=10, side=60)
    (tree / "images_training_rev1").rename(tree / "images_test_rev1")
    names = sorted((path.stem for path in (tree / "images_test_rev1").iterdir()), reverse=True)
    sample, out = tmp_path / "all_zeros_benchmark.csv", tmp_path / "submission.csv"
    lines = [",".join(("GalaxyId", *ANSWERS)), *(name + ",0" * 37 for name in names)]
    sample.write_text("\n".join(lines) + "\n")
    run = directory(trained, "galaxies")
    code, _, errors = call(f"submit {run} --sample {sample} --images {tree}/images_test_rev1 --out {out}", capsys)
    assert code == 0, errors
    check_submission(out, sample, sums_to_one=False)


def test_the_check_of_submissions_can_fail(tmp_path: Path) -> None:
    sample, bad = tmp_path / "sample.csv", tmp_path / "bad.csv"
    sample.write_text("image,a,b\n1.jpg,0.5,0.5\n")
    for text in ("image,b,a\n1.jpg,0.5,0.5\n", "image,a,b\n2.jpg,0.5,0.5\n", "image,a,b\n1.jpg,0.5,0.6\n"):
        bad.write_text(text)
        with pytest.raises(AssertionError):
            check_submission(bad, sample, sums_to_one=True)


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "images"),
    [("galaxies", "images_training_rev1"), ("buildings", "test/sat"), ("nuclei", "images")],
)
def test_an_onnx_file_says_what_the_network_says(
    name: str, images: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, folder, file = directory(trained, name), trained / "data" / name / images, tmp_path / "new" / "net.onnx"
    code, _, errors = call(f"export {run} --onnx {file}", capsys)
    assert code == 0, errors
    assert [path.name for path in file.parent.iterdir()] == ["net.onnx"]  # and nothing beside it
    session, card = predict.onnx_network(file)
    assert card == card_of(run)
    network, _ = trained_network(run, "cpu")
    rng = np.random.default_rng(0)
    for size in ((30, 30), (33, 54), (61, 40)):
        path = tmp_path / "a.png"
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(path)
        if name == "galaxies":
            files = [("a", path)] * 3
            both = [tables.vectors(r.run, card, files, 2, False, lambda *_: None) for r in (session, network)]
        else:
            both = [probability_map(r, card, path) for r in (session, network)]
        assert both[0].shape == both[1].shape
        assert np.abs(both[0] - both[1]).max() < 1e-5
    check_without_torch(run, folder, file, tmp_path, capsys)
    model = pytest.importorskip("onnx").load(str(file))
    del model.metadata_props[:]
    file.write_bytes(model.SerializeToString())
    with pytest.raises(RunError, match="no model card"):
        predict.onnx_runner(file)


def check_without_torch(run: Path, folder: Path, file: Path, root: Path, capsys: pytest.CaptureFixture) -> None:
    """The command, in a process that must not import torch, writes what the run's network writes."""
    mine, theirs, grey = root / "mine", root / "theirs", ["--grey"] if card_of(run).is_dense else []
    assert call(f"predict {run} {folder} --out {mine} {' '.join(grey)}", capsys)[0] == 0
    arguments = ["predict", "--onnx", str(file), str(folder), "--out", str(theirs), *grey]
    code = f"""
import sys
from quarterturn_lab.cli.app import app
try:
    app({arguments!r})
except SystemExit as end:
    assert not end.code, end.code
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    if mine.is_file():
        assert np.abs(values_of(mine) - values_of(theirs)).max() < 1e-5
    else:
        assert len(list(mine.iterdir())) == len(list(theirs.iterdir())) > 1
        for path in mine.iterdir():
            pair = [np.asarray(Image.open(where / path.name)).astype(int) for where in (mine, theirs)]
            assert np.abs(pair[0] - pair[1]).max() <= 1


def test_rows_that_cannot_be_exported_say_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    training_run.run(tiny("gradual-pool", epochs=1), tmp_path / "run")
    code, _, errors = call(f"export {tmp_path}/run --onnx {tmp_path}/o.onnx", capsys)
    assert code == 2
    assert "pool_cosets" in errors  # the layer that stands in the way
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# --- evaluate, check, tables, report ----------------------------------------------------------------------------------


def test_evaluate_and_check(trained: Path, capsys: pytest.CaptureFixture) -> None:
    code, text, _ = call(f"evaluate {directory(trained, 'galaxies')}", capsys)
    assert code == 0
    assert re.search(r"test: rmse 0\.\d+", text)
    assert re.search(r"0\.\d+ +0\.\d+  Class11\.6", text)
    record = json.loads((directory(trained, "galaxies") / "evaluation.json").read_text())
    assert np.mean(np.square(list(record["answers"].values()))) ** 0.5 == pytest.approx(record["test"]["rmse"])
    code, text, _ = call(f"evaluate {directory(trained, 'nuclei')}", capsys)
    assert code == 0
    assert "average_precision" in text
    code, text, _ = call(f"check {directory(trained, 'buildings')} --whole", capsys)
    assert code == 0
    assert re.search(r"conv2 +RollConv +pathways permuted", text)
    assert text.count("130 x 130: largest change") == 2
    code, text, _ = call(f"check {directory(trained, 'nuclei')} --whole", capsys)
    assert code == 0
    assert re.search(r"join1 +Join +pathways permuted", text)
    assert call(f"check {directory(trained, 'buildings', 'baseline')} --whole", capsys)[0] == 1


def test_rotations_are_averaged_with_the_border_of_training() -> None:
    """Corners that a network has never seen would cost it much of its score."""
    warps = {"flip": False, "border": "reflection", "interpolation": "bicubic"}
    config = tiny("baseline", augment=warps)
    data = load(config)
    net = net_for(config, data.classes).eval()
    found = score.predict(config, net, data, data.test[:3], CPU, (45.0,))
    images = prepare.prepared(prepare.fetch(data, data.test[:3], CPU), scaling_of(data))
    seen = prepare.centre_crop(turned(images, 45, "reflection", "bicubic"), 15)
    with torch.no_grad():
        assert np.abs(found - net(seen).softmax(1).numpy()).max() < 1e-6


def test_tables_speak_of_their_own_scores(trained: Path) -> None:
    for name, words in {
        "galaxies": ("RMSE", "lower is better", "0.08261 ± 0.00017"),
        "buildings": ("AUC", "higher is better", "break-even", "0.9676 ± 0.0008"),
        "nuclei": ("Dice", "average precision"),
    }.items():
        lines = table.lines_of(trained / "runs", name)
        assert [line.label for line in lines] == ["baseline", "roll-all-quarter"]
        text = table.markdown(lines)
        assert all(word in text for word in words), text
        score = run_directory.summary(directory(trained, name))["test"]
        assert lines[1].test[0] in score.values()
        assert lines[1].difference is not None
    header = table.as_csv(table.lines_of(trained / "runs", "buildings")).splitlines()[0]
    assert "break_even_mean" in header


def test_the_report_shows_answers_and_masks(trained: Path, tmp_path: Path) -> None:
    page = report(trained / "runs", tmp_path).read_text()
    for title in (
        "Predictions for test images",
        "Masks for test images",
        "Validation RMSE",
        "Validation AUC",
        "Test Dice",
    ):
        assert title in page
    assert page.count("Masks for test images") == 2
    assert "rotated: 0.000" in page


def test_data_info_and_verify_know_the_sets(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name, words in {
        "galaxies": ("20 images, labels in training_solutions_rev1.csv", "37 shares", "14 to train, 3 to validate"),
        "buildings": ("6 images, with masks", "3 to train, 1 to validate, 2 to test", "130 pixels"),
        "nuclei": ("12 images, with masks", "single objects", "48 to 61 pixels"),
    }.items():
        code, text, errors = call(f"data info {trained}/data/{name}", capsys)
        assert code == 0, errors
        assert all(word in text for word in words), text
        assert call(f"data verify {trained}/data/{name}", capsys)[0] == 0
    root = nuclei_tree(tmp_path)
    Image.new("I;16", (3, 3)).save(root / "labels/cell03.png")
    code, text, _ = call(f"data verify {root}", capsys)
    assert code == 1
    assert "cell03.png differ in size" in text
    assert "11 of 12" in text


def test_the_commands_train_and_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """As a user starts them, on the full networks' records cut by options alone."""
    tree = galaxy_tree(tmp_path / "data", count=12, side=60)
    command = f"table galaxies-small --data {tree} --runs 1 --rows baseline --epochs 1 --side 17 --longest 17"
    code, text, errors = call(f"{command} --batch 4 --runs-dir {tmp_path}/runs", capsys)
    assert code == 0, errors
    assert "test RMSE" in text
    assert "0.08343" in (tmp_path / "runs/galaxies-small.md").read_text()
