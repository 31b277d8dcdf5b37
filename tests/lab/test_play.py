"""The playground without its page: networks that answer for turned pictures, and what they say of bad input."""

import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labtools import call, nuclei_tree, small, tiny

from quarterturn_lab.errors import ConfigError, RunError
from quarterturn_lab.play import server, view
from quarterturn_lab.play.pair import organism, some_cells
from quarterturn_lab.play.player import Player, Square, picture_of, player_of, turned_square
from quarterturn_lab.training import training_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for row in ("baseline", "roll-all-quarter"):
        training_run.run(tiny(row), root / row)
    tree = nuclei_tree(root / "data")
    for row in ("baseline", "roll-all-quarter"):
        training_run.run(small("nuclei", row, tree), root / f"masks-{row}")
    return root


def shown(player: Player, side: int) -> Square:
    return player.square(organism(3, side)[0])


def test_quarter_turns_move_pixels_and_make_a_circle() -> None:
    square = np.random.default_rng(0).integers(0, 256, (3, 11, 11), dtype=np.uint8)
    assert (turned_square(square, 90) == np.rot90(square, -1, (1, 2))).all()
    assert (turned_square(square, 360) == square).all()
    assert (turned_square(square, 45) != square).any()
    plain = np.full((1, 9, 9), 77, dtype=np.uint8)
    assert (turned_square(plain, 33) == 77).all()  # corners have the colour of the edges


@pytest.mark.parametrize("kind", ["", "masks-"])
def test_an_ordinary_network_changes_its_answer_and_an_equivariant_one_does_not(runs: Path, kind: str) -> None:
    ordinary, equivariant = (player_of(runs / f"{kind}{row}") for row in ("baseline", "roll-all-quarter"))
    square = shown(ordinary, 64)
    assert max(ordinary.at_quarters(square)) > 1e-3
    assert max(equivariant.at_quarters(square)) < 1e-5
    page = view.at_quarters([ordinary, equivariant], square)
    assert page.count("<td>0</td>") >= 3


def test_masks_turn_along(runs: Path) -> None:
    player = player_of(runs / "masks-roll-all-quarter")
    square = shown(player, 70)
    assert square.shape == (3, 64, 64)  # the middle: sides that most networks take
    upright, turned = player.answers([square, turned_square(square, 90)])
    assert np.ptp(upright) > 0
    np.testing.assert_allclose(np.rot90(turned), upright, atol=1e-5)
    assert np.abs(turned - upright).max() > 1e-4
    assert "turned back" in view.answers([player], square, 90)
    ordinary = player_of(runs / "masks-baseline")
    pixels = [int(n) for n in re.findall(r"<b>(\d+)</b> of 4,096 pixels", view.answers([ordinary, player], square, 90))]
    labels = [view._labels(answer) for answer in ordinary.answers([square, turned_square(square, 90)])]
    assert pixels == [(np.rot90(labels[1]) != labels[0]).sum(), 0]
    assert view.curve([player], square) == ""


def test_drawings_for_the_pages_are_new_ones() -> None:
    from quarterturn_lab.data import synthetic_cells
    from quarterturn_lab.data.dataset import Settings

    scenes = synthetic_cells.load(Settings(folder=None, side=48, channels=1))
    assert (len(scenes.train), len(scenes.test), scenes.images[0].shape) == (200, 50, (1, 64, 64))
    assert 0.05 < scenes.labels.flat.mean() < 0.5
    drawings = [some_cells(number)[0][:, :, 0] for number in range(5)]
    assert all(
        (image[0] != drawing).any() for image in map(scenes.images.__getitem__, range(250)) for drawing in drawings
    )
    assert len({drawing.tobytes() for drawing in drawings}) == 5


def test_pictures_of_all_sizes(runs: Path) -> None:
    for name in ("baseline", "masks-baseline"):
        player = player_of(runs / name)
        for height, width in ((1, 1), (5, 40), (300, 33), (700, 700)):
            square = player.square(np.zeros((height, width, 3), np.uint8))
            assert square.shape[1] == square.shape[2]
            assert np.isfinite(player.answers([square])[0]).all()
    assert picture_of(None) is None
    assert picture_of({"composite": None}) is None
    assert picture_of({"composite": np.zeros((4, 5, 4), np.uint8)}).shape == (4, 5, 3)


def test_names_of_classes_are_text_on_the_page(runs: Path) -> None:
    player = player_of(runs / "baseline")
    hostile = tuple(f"<script>{i}</script>" for i in range(10))
    player = replace(player, title="<b>me</b>", card=replace(player.card, classes=hostile))
    square = shown(player, 64)
    for page in (view.answers([player, player], square, 10), view.at_quarters([player], square)):
        assert "<script" not in page
        assert "<b>me" not in page


def test_gradio_is_imported_by_the_page_alone() -> None:
    import quarterturn_lab.cli.play as command

    assert command.play
    assert "gradio" not in sys.modules


def test_bad_input_in_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(server, "find_spec", lambda name: None)
        code, _, errors = call("play", capsys)
    assert (code, errors.count("\n")) == (2, 1)
    assert 'pip install "quarterturn[play]"' in errors
    monkeypatch.setattr(server, "check_installed", lambda: None)
    other = tmp_path / "other.onnx"
    other.write_bytes(b"no network")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        cases = {
            f"play {tmp_path} --port 0": "is not a run directory",
            f"play {tmp_path / 'nowhere'} --port 0": "does not exist",
            f"play {other} --port 0": "cannot be loaded as an ONNX file",
            f"play {runs / 'baseline'} --port {number}": "already in use",
            f"play {runs / 'baseline'} --port 70000": "from 0 to 65535",
        }
        for command, text in cases.items():
            code, _, errors = call(command, capsys)
            assert (code, errors.count("\n")) == (2, 1), errors
            assert text in errors


def test_networks_of_other_kinds_of_files_are_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player = player_of(runs / "baseline")
    floats = replace(player.card, settings=player.card.settings.model_copy(update={"floats": True}))
    monkeypatch.setattr("quarterturn_lab.inference.network.trained_network", lambda *_: (player.network, floats))
    with pytest.raises(ConfigError, match="8-bit pictures"):
        player_of(runs / "baseline")


def test_only_this_machine_can_open_the_page() -> None:
    with server.bound(0) as found:
        assert found.getsockname()[0] == "127.0.0.1"
        found.listen()
        with pytest.raises(RunError, match="already in use"):
            server.bound(found.getsockname()[1])
