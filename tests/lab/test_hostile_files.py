"""Files from strangers: code that they name, sizes that they claim, and what is no file at all."""

import bz2
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from labtools import call, class_folders, tiny, unsealed
from PIL import Image

from quarterturn_lab.data import cache, masks, mnist, numeric_files
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.data.look import look
from quarterturn_lab.errors import ConfigError, DataError, LabError, RunError
from quarterturn_lab.files import csv_text
from quarterturn_lab.fit.request import Request
from quarterturn_lab.runs import model_card, run_directory
from quarterturn_lab.runs.trained import card_of, load_with_data
from quarterturn_lab.runs.trust import Trust, check_settings, code_in
from quarterturn_lab.settings.config import digest_of_weights
from quarterturn_lab.training import training_run

FACTORY = """
from pathlib import Path
from torch import nn
Path("was_here").touch()
def net(channels, side, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, outputs))
"""
# --- code -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run whose network is code in the current folder, which has not been imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "strange_nets.py").write_text(FACTORY)
    sys.modules.pop("strange_nets", None)
    training_run.run(tiny(factory="strange_nets:net", epochs=1), tmp_path / "run")
    del sys.modules["strange_nets"]
    (tmp_path / "was_here").unlink()
    return tmp_path / "run"


def test_opening_a_run_does_not_run_its_code(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (20, 20)).save("image.png")
    commands = [
        f"evaluate {own}",
        f"check {own}",
        f"predict {own} image.png --out out.csv",
        f"export {own} --onnx net.onnx",
        f"report {own}",
    ]
    for command in commands:
        code, _, errors = call(command, capsys)
        assert code == 2, command
        assert f"{own}/config.json names strange_nets:net, and going on would run that code" in errors
    assert not Path("was_here").exists()
    assert call(f"predict {own} image.png --out out.csv --net other:net", capsys)[0] == 2
    code, _, errors = call(f"predict {own} image.png --out out.csv --net strange_nets:net", capsys)
    assert code == 0, errors
    code, _, errors = call(f"evaluate {own} --turns 1 --trust", capsys)
    assert code == 0, errors
    assert Path("was_here").exists()


def test_a_report_of_many_runs_leaves_out_what_needs_code(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = call(f"report {own.parent} --output {own.parent}/page", capsys)
    assert code == 0, errors
    assert "names strange_nets:net" in (own.parent / "page/report.html").read_text()
    assert not Path("was_here").exists()


def test_what_is_code_and_what_is_a_name_in_a_list() -> None:
    assert code_in({"backbone": "timm:resnet18", "factory": "quarterturn_lab.models.mnist:z2cnn"}) == {}
    assert code_in({"backbone": "mine:net", "track": "mine:log"}) == {"backbone": "mine:net", "track": "mine:log"}
    assert code_in({"factory": "timm:net"}) == {"factory": "timm:net"}  # --net imports a module of that name


def test_settings_in_a_file_name_no_code_that_the_command_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class_folders(tmp_path / "data")
    (tmp_path / "run.toml").write_text('backbone = "strange:net"\nepochs = 1\n')
    code, _, errors = call(f"fit {tmp_path}/data --config {tmp_path}/run.toml --runs-dir {tmp_path}", capsys)
    assert code == 2
    assert "run.toml names strange:net, and going on would run that code" in errors
    assert "name it yourself with --backbone strange:net, or give --trust" in errors
    check_settings({"track": "a:b"}, tmp_path, {"track": "a:b"})
    with pytest.raises(ConfigError, match="names a:c"):
        check_settings({"track": "a:c"}, tmp_path, {"track": "a:b"})


# --- sizes ------------------------------------------------------------------------------------------------------------


def fits_header(*axes: int, bits: int = 8) -> bytes:
    cards = ["SIMPLE  =                    T", f"BITPIX  = {bits:>20}", f"NAXIS   = {len(axes):>20}"]
    cards += [f"NAXIS{i}  = {length:>20}" for i, length in enumerate(axes, start=1)]
    return "".join(card.ljust(80) for card in [*cards, "END"]).ljust(2880).encode()


def test_packed_fits_files_are_not_unpacked_beyond_the_limit(tmp_path: Path) -> None:
    limit = 1_000_000
    for name, pack in {"gz": gzip.compress, "bz": bz2.compress}.items():
        good, cube, long = (tmp_path / f"{name}{i}.fits" for i in range(3))
        good.write_bytes(pack(fits_header(100, 50) + bytes(5760)))
        assert numeric_files.read(good, limit).shape == (1, 50, 100)
        cube.write_bytes(pack(fits_header(1000, 1000, 7) + bytes(7_000_000)))
        with pytest.raises(DataError, match="7 channels of 1000 x 1000 pixels, more than 4,000,000 values"):
            numeric_files.read(cube, limit)
        long.write_bytes(pack(b" " * 20_000_000))  # a header without an end
        for reader in (numeric_files.read, numeric_files.header):
            with pytest.raises(DataError, match="more than 8,000,000 bytes when it is unpacked"):
                reader(long, limit)


def test_idx_files_are_not_unpacked_beyond_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    packer = zlib.compressobj(1, wbits=31)
    packed = packer.compress(b"\0\0\x08\x03" + struct.pack(">3I", 10, 28, 28))
    for _ in range(100):  # 100 MB, packed in 0.4 MB
        packed += packer.compress(bytes(1_000_000))
    path.write_bytes(packed + packer.flush())
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"expected \(10, 28, 28\) values, found more"):
            mnist.read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    with gzip.open(path, "wb") as file:
        file.write(b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 28))
    with pytest.raises(DataError, match="more than the limit"):
        mnist.read_idx(path)
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab"))
    assert mnist.read_idx(path).tolist() == [97, 98]


def test_a_huge_file_in_a_folder_is_hashed_in_pieces(tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(200 << 20)
    small = tmp_path / "small.png"
    small.write_bytes(b"abc")
    tracemalloc.start()
    try:
        key = cache.fingerprint({}, [("huge.png", tmp_path / "huge.png"), ("small.png", small)])
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    small.write_bytes(b"abd")
    assert cache.fingerprint({}, [("huge.png", tmp_path / "huge.png"), ("small.png", small)]) != key


def test_a_file_too_large_to_be_onnx_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    Image.new("L", (20, 20)).save(tmp_path / "image.png")
    with (tmp_path / "net.onnx").open("wb") as file:
        file.truncate(3 << 30)
    tracemalloc.start()
    try:
        code, _, errors = call(
            f"predict --onnx {tmp_path}/net.onnx {tmp_path}/image.png --out {tmp_path}/o.csv", capsys
        )
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert (code, errors.count("\n")) == (2, 1)
    assert "net.onnx has 3,221,225,472 bytes, and an ONNX file at most 2,147,483,648" in errors


def png_of(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels, and has none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_label_maps_have_the_limit_of_images(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    path.write_bytes(png_of(100_000, 100_000))
    with pytest.raises(DataError, match="100000 x 100000 pixels, more than the limit"):
        masks.values_of(path, 64_000_000)
    Image.new("L", (30, 20)).save(path)
    assert masks.values_of(path, 600).shape == (20, 30)
    with pytest.raises(DataError, match="more than the limit"):
        masks.values_of(path, 599)


def test_every_command_looks_at_the_header_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(tmp_path / "data")
    (root / "ant/big.png").write_bytes(png_of(60_000, 60_000))
    for command in ("data info", "data verify", "fit --epochs 1 --symmetry C4 --runs-dir runs"):
        name, *options = command.split(" --")
        code, output, errors = call(" --".join([f"{name} {root}", *options]), capsys)
        assert "60000 x 60000 pixels, more than the limit" in output + errors
        assert code == (0 if command == "data info" else 1 if "verify" in command else 2)


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"side": 10**9}},
        {"settings": {"channels": 10**9}},
        {"settings": {"longest": 10**9}},
        {"settings": {"side": -1}},
        {"margin": 10**9},
        {"task": "nothing"},
        {"classes": []},
        {"scaling": {"offset": [], "factor": [1.0]}},
        {"scaling": {"offset": [1e400], "factor": [1.0]}},
    ],
)
def test_a_model_card_is_checked_before_it_is_used(change: dict[str, object], finished: Path) -> None:
    found = json.loads((finished / "model.json").read_text())
    for name, value in change.items():
        found[name] = {**found[name], **value} if isinstance(value, dict) and name == "settings" else value
    with pytest.raises(RunError, match=r"model\.json was not written by this version"):
        model_card.read(json.dumps(found), finished / "model.json")


def test_a_model_card_of_another_network_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (20, 20)).save(run / "image.png")
    found = json.loads((run / "model.json").read_text())
    found["settings"]["side"] = 17
    (run / "model.json").write_text(json.dumps(found))
    code, _, errors = call(f"predict {run} {run}/image.png --out {run}/out.csv", capsys)
    assert code == 2
    assert "model.json is damaged (its channels and side are (1, 17), those of config.json (1, 15))" in errors


def test_a_tiff_file_has_as_many_bytes_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    Image.fromarray(np.zeros((18, 14), dtype=np.float32)).save(path)
    assert numeric_files.read(path, 10**8).shape == (1, 18, 14)
    content = bytearray(path.read_bytes())
    content[content.index(struct.pack("<HHII", 257, 4, 1, 18)) + 8] = 200
    path.write_bytes(content)
    with pytest.raises(DataError, match="it is too short for 11,200 bytes"):
        numeric_files.read(path, 10**8)


def test_warnings_of_libraries_are_silent_while_anybody_reads() -> None:
    """Files are read by several threads, and Python has one list of filters for all."""
    filters, first = list(warnings.filters), numeric_files.quiet()
    first.__enter__()
    with numeric_files.quiet():
        first.__exit__(None, None, None)
        warnings.warn("odd, but readable", UserWarning, stacklevel=1)
    assert warnings.filters == filters
    with pytest.raises(UserWarning):
        warnings.warn("nobody reads", UserWarning, stacklevel=1)


# --- no files ---------------------------------------------------------------------------------------------------------


def test_a_tiff_file_without_pixels_is_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.ones((18, 14), np.float32))
    with tifffile.TiffFile(path) as file:
        place = file.pages.first.tags["ImageLength"].valueoffset
    content = bytearray(path.read_bytes())
    content[place : place + 2] = bytes(2)
    path.write_bytes(content)
    with pytest.raises(DataError, match="14 x 0 pixels"):
        numeric_files.read(path, 10_000)


def test_pipes_and_devices_are_not_opened(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(tmp_path / "data")
    os.mkfifo(root / "ant/pipe.png")
    (root / "bee/zero.png").symlink_to("/dev/zero")
    code, output, _ = call(f"data verify {root}", capsys)
    assert code == 1
    assert output.count("is not a file of data") == 2
    for place in (root / "ant/pipe.png", "/dev/zero"):
        code, _, errors = call(f"predict {run} {place} --out {tmp_path}/out.csv", capsys)
        assert code == 2
        assert errors == f"quarterturn: {place} is not a file of data (a pipe, socket or device)\n"
    with pytest.raises(DataError, match="pipe"):
        masks.values_of(root / "ant/pipe.png", 100)
    with pytest.raises(ConfigError, match="it is not a file"):
        digest_of_weights("/dev/zero")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished") / "run"
    training_run.run(tiny(epochs=1), directory)
    return directory


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return unsealed(Path(shutil.copytree(finished, tmp_path / "run")))


BAD = {
    "nothing": b"",
    "half": b'{"net": {"si',
    "deep": b"[" * 100_000,
    "a list": b"[1, 2]",
    "no text": b"\xff\xfe\x00",
    "other names": b'{"a": 1}',
    "a number": b"1e999",
}


@pytest.mark.parametrize("name", ["config.json", "model.json", "summary.json", "model.safetensors"])
def test_a_damaged_file_is_one_line_that_names_it(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in BAD.values():
        (run / name).write_bytes(content)
        code, _, errors = call(f"export {run} --onnx {run}/net.onnx", capsys)
        assert code == 2
        assert errors.count("\n") == 1, errors
        assert str(run / name) in errors
        assert len(errors) < 1000
    (run / name).unlink()
    os.mkfifo(run / name)
    code, _, errors = call(f"export {run} --onnx {run}/net.onnx", capsys)
    assert code == 2
    assert name in errors


def test_a_function_that_is_no_text_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = json.loads((run / "config.json").read_text())
    for factory in (1.5, [1], {"a": 1}, True):
        (run / "config.json").write_text(json.dumps({**settings, "factory": factory}))
        code, _, errors = call(f"export {run} --onnx {run}/net.onnx", capsys)
        assert (code, errors.count("\n")) == (2, 1)
        assert "config.json" in errors


def test_damaged_records_do_not_stop_a_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = (b'{"epo', b"[1]\n", b"[" * 100_000, b'{"step": 1}', b'{"epoch": null}', b'{"epoch": 2, "train_loss": "low"}')
    for content in bad:
        (run / "metrics.jsonl").write_bytes(b'{"epoch": 1, "train_loss": 0.5, "lr": null}\n' + content)
        assert run_directory.records(run) == [{"epoch": 1, "train_loss": 0.5}]
        code, _, errors = call(f"report {run} --output {tmp_path}/page", capsys)
        assert (code, errors) == (0, "")
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged"):
        run_directory.records(run)


@pytest.mark.parametrize("name", run_directory.NEEDED)
def test_a_summary_without_something_is_named(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads((run / "summary.json").read_text())
    for changed in ({key: value for key, value in found.items() if key != name}, {**found, name: ["no"]}):
        (run / "summary.json").write_text(json.dumps(changed))
        code, _, errors = call(f"report {run} --output {run}/page", capsys)
        assert (code, errors.count("\n")) == (2, 1)
        assert f"summary.json is damaged (it has no {name})" in errors


def test_damaged_requests_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(tmp_path / "data")
    directory = Request(root, symmetry="C4", options={"epochs": 1}).directory(tmp_path / "runs")
    directory.mkdir(parents=True)
    for content in BAD.values():
        (directory / "fit.json").write_bytes(content)
        code, _, errors = call(f"fit {root} --symmetry C4 --epochs 1 --runs-dir {tmp_path}/runs", capsys)
        assert code == 2
        assert errors.count("\n") == 1, errors
        assert "fit.json" in errors


def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARTERTURN_CACHE", str(tmp_path / "cache"))
    made = []

    def make() -> cache.Made:
        made.append(1)
        return np.arange(1000, dtype=np.uint8).reshape(10, 1, 10, 10), {"names": ["a"]}

    folder = tmp_path / "cache/key"
    array, about = cache.cached("key", make)
    assert about == {"names": ["a"]}
    for name in (cache.IMAGES, cache.ABOUT, cache.SUMS):
        size = (folder / name).stat().st_size
        for place in (0, size // 2, size - 1):
            content = bytearray((folder / name).read_bytes())
            content[place] ^= 4
            (folder / name).write_bytes(content)
            again, about = cache.cached("key", make)
            assert np.array_equal(again, array)
            assert about == {"names": ["a"]}
    assert len(made) == 10
    (folder / cache.IMAGES).unlink()
    cache.cached("key", make)
    assert len(made) == 11
    (folder / cache.SUMS).unlink()  # as older versions wrote it
    cache.cached("key", make)
    assert len(made) == 11
    assert (folder / cache.SUMS).exists()
    assert [path.name for path in folder.parent.iterdir()] == ["key"]


# --- places -----------------------------------------------------------------------------------------------------------

WITHOUT_POWER = [
    "setpriv",
    "--bounding-set=-all",
    "--inh-caps=-all",
]  # root, but bound by permissions


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="permissions do not bind root")
def test_a_run_that_may_only_be_read_can_be_used(run: Path, tmp_path: Path) -> None:
    Image.new("L", (20, 20)).save(tmp_path / "image.png")
    for path in (*run.iterdir(), run):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def command(arguments: str) -> subprocess.CompletedProcess[str]:
        drop = WITHOUT_POWER if os.geteuid() == 0 else []
        words = [*drop, sys.executable, "-m", "quarterturn_lab", *arguments.split()]
        return subprocess.run(words, capture_output=True, text=True)

    try:
        for arguments in (
            f"evaluate {run} --turns 1 --output {tmp_path}/mine",
            f"predict {run} {tmp_path}/image.png --out {tmp_path}/mine/out.csv",
            f"export {run} --onnx {tmp_path}/mine/net.onnx",
            f"report {run} --output {tmp_path}/mine/page",
        ):
            found = command(arguments)
            assert found.returncode == 0, found.stderr
        found = command(f"evaluate {run} --turns 1")
        assert (found.returncode, found.stderr.count("\n")) == (2, 1)
        assert "permission denied" in found.stderr
    finally:
        run.chmod(0o755)


def test_places_that_cannot_be_are_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (20, 20)).save(tmp_path / "image.png")
    (tmp_path / "file").write_text("")
    train = "train synthetic/baseline --side 15 --train-size 60 --epochs 1 --runs-dir"
    for command in (
        f"{train} {tmp_path}/file",
        f"{train} {tmp_path}/{'x' * 300}",
        f"predict {run} {tmp_path}/image.png --out {tmp_path}/{'x' * 300}.csv",
        f"predict {run} {tmp_path}/image.png --out {tmp_path}/file/out.csv",
        f"predict {run} {tmp_path}/{'x' * 300}.png --out {tmp_path}/out.csv",
        f"predict {tmp_path}/file {tmp_path}/image.png --out {tmp_path}/out.csv",
        f"predict {tmp_path}/{'x' * 300} {tmp_path}/image.png --out {tmp_path}/out.csv",
        f"evaluate {run} --turns 1 --output {tmp_path}/file",
        f"export {run} --onnx {tmp_path}/{'x' * 300}.onnx",
        f"report {run} --output {tmp_path}/file/page",
        f"data info {tmp_path}/{'x' * 300}",
    ):
        code, _, errors = call(command, capsys)
        assert code == 2, command
        assert errors.count("\n") == 1, errors


# --- tables that are written ------------------------------------------------------------------------------------------


def test_text_that_a_spreadsheet_would_run_is_not_written_so() -> None:
    assert csv_text([["=HYPERLINK(1)", -1.5, "a,b"], ["@x", 3, "+1"]]) == "'=HYPERLINK(1),-1.5,\"a,b\"\n'@x,3,'+1\n"


def test_a_run_can_be_opened_by_those_who_trust_it(own: Path) -> None:
    assert load_with_data(own, None, Trust(trust=True))[2][1].out_features == 10
    with pytest.raises(LabError, match="names strange_nets:net"):
        load_with_data(own)
    assert card_of(own).task == "classes"
    assert look(Settings(folder=str(class_folders(own / "data")), side=64, channels=1, rules=2)).images == 24
