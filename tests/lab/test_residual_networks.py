"""The residual networks of the lab: equivariant, with the parameters that their settings say, and they learn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from labtools import TINY, class_folders
from torch import nn

import quarterturn as qt
from quarterturn.cost import cost
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.tasks import TASKS
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.settings.config import Config
from quarterturn_lab.settings.experiments import config_for
from quarterturn_lab.settings.networks import GALAXIES, Net, edited, resized
from quarterturn_lab.training import loop, training_run

ROWS = ("residual-plain", "residual-c4", "residual-d4")


def net_of(row: str, stages: tuple[tuple[int, ...], ...] = ((8, 8), (16,), (32,)), **changes: Any) -> Net:
    return edited(TINY, row, stages=stages, **changes)


def lively(net: Net, rotate: str = "filters") -> nn.Module:
    """In evaluation mode, with random weights and statistics everywhere."""
    module = build(net, rotate).double()
    initialise(module, 0)
    for name, value in module.state_dict().items():
        if value.is_floating_point() and value.dim() == 1:
            value.copy_(torch.rand(value.shape, generator=torch.Generator().manual_seed(len(name))) + 0.5)
    return module.eval()


# --- equivariance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotate", ["maps", "filters"])
@pytest.mark.parametrize("side", [15, 16])
@pytest.mark.parametrize("head", [{}, {"pool": "max"}, {"invariants": True}, {"hidden": (24,)}], ids=str)
@pytest.mark.parametrize(("row", "group"), [("residual-c4", "C4"), ("residual-d4", "D4"), ("residual-c4", "mirror")])
def test_rolled_residual_networks_are_exactly_invariant(
    row: str, group: str, head: dict[str, Any], side: int, rotate: str
) -> None:
    module = lively(net_of(row, group=group, side=side, **head), rotate)
    x = torch.randn(2, 1, side, side, dtype=torch.float64)
    assert max(qt.equivariance_error(module, qt.named(group), x).relative) < 1e-10
    assert module(x).abs().max() > 1e-6
    module.train()
    assert max(qt.equivariance_error(module, qt.named(group), x).relative) < 1e-10  # with the statistics of the batch


def test_the_ordinary_one_in_the_manner_of_convnext_can_be_converted() -> None:
    net = net_of("convnext-plain", side=16)
    x = torch.randn(2, 1, 16, 16, dtype=torch.float64)
    module = lively(net)
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(module, qt.D4, x)
    rolled = qt.convert(module, qt.D4, example=x)
    qt.assert_equivariant(rolled.eval(), qt.D4, x)
    assert rolled.conversion.rolled_share > 0.8
    parameters = sum(parameter.numel() for parameter in module.parameters())
    assert sum(parameter.numel() for parameter in rolled.parameters()) < parameters / 4


def test_the_ordinary_one_and_a_larger_group_are_found_out() -> None:
    x = torch.randn(2, 1, 15, 15, dtype=torch.float64)
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(lively(net_of("residual-plain")), qt.C4, x)
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(lively(net_of("residual-c4")), qt.D4, x)


@settings(max_examples=15, deadline=None)
@given(
    height=st.integers(6, 17),
    width=st.integers(6, 17),
    stride=st.integers(1, 2),
    group=st.sampled_from(["C2", "C4", "D4"]),
)
def test_images_of_any_size_at_any_stride(height: int, width: int, stride: int, group: str) -> None:
    if group != "C2":
        width = height
    module = lively(net_of("residual-d4", group=group, stem_stride=stride))
    x = torch.randn(1, 1, height, width, dtype=torch.float64)
    assert max(qt.equivariance_error(module, qt.named(group), x).relative) < 1e-10


@pytest.mark.parametrize("row", ["residual-c4", "residual-d4"])
@pytest.mark.parametrize("first", [2, 4])
def test_stages_in_which_orientations_do_not_see_each_other(row: str, first: int) -> None:
    net = net_of(row, roll_from=first)
    maps, filters = (lively(net, rotate) for rotate in ("maps", "filters"))
    filters.load_state_dict(maps.state_dict())
    x = torch.randn(2, 1, 14, 14, dtype=torch.float64)
    group = qt.named(net.group or "")
    qt.assert_equivariant(filters, group, x)
    torch.testing.assert_close(maps(x), filters(x), rtol=0, atol=1e-10)
    larger, rolled = (sum(p.numel() for p in build(net_of(row, roll_from=n)).parameters()) for n in (first, 1))
    assert larger < rolled  # filters of fewer inputs


# --- sizes ------------------------------------------------------------------------------------------------------------


def expected_parameters(net: Net, orientations: int) -> int:
    """Filters of 3 x 3, 1 x 1 shortcuts where the width changes, two numbers a norm, the output layer."""
    stages = [[width // net.divide for width in stage] for stage in net.stages]
    features = stages[0][0]
    found = net.channels * features * 9 + 2 * features
    for stage, widths in enumerate(stages):
        for number, width in enumerate(widths):
            found += (features + width) * orientations * width * 9 + 4 * width
            if width != features or (stage and not number):
                found += features * orientations * width + 2 * width
            features = width
    return found + features * net.outputs + net.outputs


@pytest.mark.parametrize(("row", "orientations"), [("residual-plain", 1), ("residual-c4", 4), ("residual-d4", 8)])
def test_parameters_follow_from_the_settings(row: str, orientations: int) -> None:
    net = edited(TINY, row)
    for width, blocks in ((None, None), (16, 3), (48, None), (None, 1)):
        sized = resized(net, width, blocks)
        assert [len(stage) for stage in sized.stages] == [blocks or 2] * 3
        assert [stage[0] for stage in sized.stages] == [(width or 32) * 2**i for i in range(3)]
        found = sum(parameter.numel() for parameter in build(sized).parameters())
        assert found == expected_parameters(sized, orientations)


def test_rolled_networks_have_as_many_maps_as_the_ordinary_one() -> None:
    x = torch.zeros(1, 1, 15, 15)
    plain = build(net_of("residual-plain"))
    for row in ROWS[1:]:
        maps, filters = (build(net_of(row), rotate) for rotate in ("maps", "filters"))
        assert filters[: list(dict(filters.named_children())).index("mean_positions")](x).shape == (1, 32, 4, 4)
        assert cost(maps, [x]).multiply_adds == cost(filters, [x]).multiply_adds
        before_the_output = [cost(net[:-1], [x]).multiply_adds for net in (filters, plain)]
        assert before_the_output[0] == before_the_output[1]  # by the definition; the kernel needs fewer


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="--width, --blocks and --hidden are for residual rows"):
        config_for("synthetic", "baseline", width=16)
    with pytest.raises(ConfigError, match="a width that 8 divides"):
        config_for("synthetic", "residual-d4", width=20)
    with pytest.raises(ConfigError, match="labels whole images"):
        config_for("nuclei", "residual-c4")
    with pytest.raises(ConfigError, match="leave --no-norm out"):
        config_for("synthetic", "residual-c4", norm=False)
    with pytest.raises(ConfigError, match="leave --hidden out"):
        config_for("synthetic", "convnext-plain", hidden=16)
    for row in ("residual-plain", "roll-all-quarter"):
        with pytest.raises(ConfigError, match="leave --roll-from out"):
            config_for("synthetic", row, roll_from=2)
    with pytest.raises(ConfigError, match="leave --stem-stride out"):
        config_for("synthetic", "pool-mean", stem_stride=2)
    for row, options in (("residual-plain", {}), ("pool-mean", {}), ("residual-c4", {"pool": "max"})):
        with pytest.raises(ConfigError, match="--invariants is for rolled residual rows"):
            config_for("synthetic", row, invariants=True, **options)


def test_other_outputs(tmp_path: Path) -> None:
    for output, kind in (("sigmoid", nn.Sigmoid), ("linear", nn.Linear)):
        net = edited(replace(GALAXIES, output=output), "residual-c4", stages=((8,), (8,)))
        assert type(build(net)[-1]) is kind


# --- training ---------------------------------------------------------------------------------------------------------


def short(experiment: str, row: str, **options: Any) -> Config:
    own = {"width": 16, "blocks": 1, "side": 15, "epochs": 2, "batch": 20, "train_size": 60}
    return config_for(experiment, row, **{**own, **options})


@pytest.mark.parametrize("row", [*ROWS, "convnext-plain"])
def test_a_step_lowers_the_loss(row: str) -> None:
    config = short("synthetic", row)
    torch.manual_seed(0)
    net = build(config.net, config.rotate)
    initialise(net, 0)
    state = loop.new_state(config, net, torch.device("cpu"))
    made = torch.randn(20, 1, 15, 15), torch.arange(20) % 10, 20
    before, after = (
        loop._update(config, state, loop.loss_for(config, TASKS["classes"]), made, step, config.lr) for step in range(2)
    )
    assert after < before - 1e-3


@pytest.mark.parametrize("row", ROWS)
def test_residual_rows_run_by_their_names(row: str, tmp_path: Path) -> None:
    config = short("synthetic", row, ema=0.9)
    assert config.rotate == ("maps" if row == "residual-plain" else "filters")
    result = training_run.run(config, tmp_path / "synthetic")
    assert result["parameters"] == expected_parameters(config.net, 1 if row.endswith("plain") else config.net.pathways)
    _, _, net = load_with_data(tmp_path / "synthetic")
    assert net.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    folder = short("folder", row, data=str(class_folders(tmp_path / "images", 20)), train_size=None, epochs=1)
    assert "test" in training_run.run(folder, tmp_path / "folder")


@pytest.mark.parametrize("row", ROWS[1:])
def test_residual_networks_as_plain_ones(row: str) -> None:
    module = lively(net_of(row)).float()
    x = torch.randn(2, 1, 15, 15)
    torch.testing.assert_close(qt.to_plain(module, x)(x), module(x), rtol=1e-4, atol=1e-5)
