"""The paper's networks: exact parameter counts, both ways to rotate, invariance, and the options where it is silent."""

import math
from dataclasses import replace

import pytest
import torch
from labtools import TINY, TINY_MAPS
from torch import nn

import quarterturn as qt
from quarterturn_lab.errors import ConfigError, LabError
from quarterturn_lab.models.build import build, initialise
from quarterturn_lab.models.layers import ANSWERS, QUESTIONS, Questions, SymmetricConv, smallest_subgroup
from quarterturn_lab.settings.experiments import EXPERIMENTS
from quarterturn_lab.settings.networks import BUILDINGS, GALAXIES, PLANKTON, ROWS, Net, edited, restaged

# notes on the reconstruction: docs/decisions/0020. All counts are weights and biases.
COUNTS = {
    "plankton": {
        "baseline": 2_840_409,
        "baseline-half": 823_017,
        "pool-mean": 2_840_409,
        "roll-all-quarter": 953_649,
        "roll-dense-half": 2_283_097,
    },
    "galaxies": {
        "baseline": 14_572_741,
        "baseline-half": 4_751_221,
        "pool-mean": 14_572_741,
        "roll-all-quarter": 6_847_309,
        "roll-dense-half": 14_571_717,
    },
    "buildings": {
        "baseline": 583_234,
        "baseline-half": 151_202,
        "pool-mean": 583_234,
        "roll-all-quarter": 158_674,
        "roll-all-half": 598_178,
    },
}
COUNTS["plankton"] |= dict.fromkeys(("pool-rms", "pool-max", "mean-relu", "rms-relu", "max-relu"), 2_840_409)
UNITS = {"M": 1e6, "k": 1e3}
INVARIANT = [
    row for row, edit in ROWS.items() if "group" in edit and edit.get("method", "pool") in ("pool", "gradual-pool")
]


def count(net: Net, rotate: str = "maps") -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(net, rotate).parameters())


@pytest.mark.parametrize("experiment", COUNTS)
def test_parameter_counts_of_tables_2_to_4(experiment: str) -> None:
    known = EXPERIMENTS[experiment]
    assert set(COUNTS[experiment]) == set(known.paper)
    for row, expected in COUNTS[experiment].items():
        assert count(edited(known.baseline, row)) == expected, row
        printed = known.paper[row].size
        digits = len(printed.partition(".")[2]) - 1 if "." in printed else 0
        scale = 10**digits / UNITS[printed[-1]]
        assert math.floor(expected * scale) == round(float(printed[:-1]) * 10**digits), row


def test_rounding_would_not_agree_with_the_paper_but_truncation_does() -> None:
    assert round(COUNTS["galaxies"]["roll-all-quarter"] / 1e4) == 685  # the paper prints 6.84M


@pytest.mark.parametrize("baseline", [TINY, replace(TINY, side=16), TINY_MAPS], ids=["odd", "even", "maps"])
@pytest.mark.parametrize("row", ROWS)
def test_both_ways_to_rotate_are_one_network(row: str, baseline: Net) -> None:
    if ("dense" in row or ROWS[row].get("residual")) and baseline.head == "conv":
        pytest.skip("no dense layer")
    net = edited(baseline, row)
    maps, filters = build(net).double().eval(), build(net, "filters").double().eval()
    initialise(maps, 1)
    assert [(k, v.shape) for k, v in maps.named_parameters()] == [(k, v.shape) for k, v in filters.named_parameters()]
    filters.load_state_dict(maps.state_dict())
    x = torch.randn(2, net.channels, net.side, net.side, dtype=torch.float64)
    torch.testing.assert_close(maps(x), filters(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("row", ["baseline", "pool-mean", "stack", "flip-rotate-pool", "roll-all-quarter-dihedral"])
def test_batch_norm_is_an_option(row: str) -> None:
    net = edited(replace(TINY, dropout=0.0), row, norm=True)
    maps, filters = build(net).double(), build(net, "filters").double()
    initialise(maps, 1)
    filters.load_state_dict(maps.state_dict())
    x = torch.randn(3, net.channels, net.side, net.side, dtype=torch.float64)
    torch.testing.assert_close(maps(x), filters(x), rtol=1e-10, atol=1e-12)  # with the statistics of the batch
    torch.testing.assert_close(maps.eval()(x), filters.eval()(x), rtol=1e-10, atol=1e-12)
    assert count(net) - count(edited(TINY, row)) == 2 * sum(8 // net.divide for stage in TINY.stages for _ in stage)
    if row in INVARIANT:
        qt.assert_equivariant(maps, qt.named(net.group), x)


@pytest.mark.parametrize("row", INVARIANT)
def test_rows_with_pathways_are_exactly_invariant(row: str) -> None:
    for baseline in (TINY, replace(TINY, side=16), TINY_MAPS):
        if ("dense" in row or ROWS[row].get("residual")) and baseline.head == "conv":
            continue
        net = edited(baseline, row)
        module = build(net).double()
        initialise(module, 0)
        x = torch.randn(2, net.channels, net.side, net.side, dtype=torch.float64)
        qt.assert_equivariant(module, qt.named(net.group), x)
        assert module(x).abs().max() > 1e-6


@pytest.mark.parametrize("row", ["baseline", "stack", "flip-rotate-pool"])
def test_rows_that_are_not_invariant_are_found_out(row: str) -> None:
    module = build(edited(TINY, row)).double()
    initialise(module, 0)
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(module, qt.C4, torch.randn(2, 1, 15, 15, dtype=torch.float64))


def test_related_work() -> None:
    x = torch.randn(2, 1, 15, 15, dtype=torch.float64)
    wu = build(edited(TINY, "flip-rotate-pool")).double()
    convolutions = nn.Sequential(
        *[layer for name, layer in wu.named_children() if name[:4] in ("conv", "relu", "orie")][:6]
    )
    qt.assert_equivariant(convolutions, qt.D4, x)  # each convolution and its oriented max are same-equivariant
    symmetric = build(edited(TINY, "symmetric-filters")).double()
    qt.assert_equivariant(symmetric, qt.D4, x)  # on odd sides, where the spatial pools are symmetric too
    weight = symmetric.conv2.weight[:, :, symmetric.conv2.orbits]
    for g in range(8):
        assert torch.equal(qt.act(weight, qt.D4, g), weight)
    assert SymmetricConv(qt.D4, 1, 1, 5).weight.shape[2] == 6
    assert SymmetricConv(qt.C4, 1, 1, 5).weight.shape[2] == 7
    stack = build(edited(PLANKTON, "stack"))
    assert stack.dense1.in_features == 4 * 3200
    assert smallest_subgroup(qt.C4) == (0, 2)
    gradual = build(edited(TINY, "gradual-pool"))
    shapes = {}
    for name, layer in gradual.named_children():
        layer.register_forward_hook(lambda _l, _i, out, name=name: shapes.update({name: len(out)}))
    gradual(torch.randn(3, 1, 15, 15))
    assert (shapes["dense1"], shapes["dense2"], shapes["output"]) == (12, 6, 3)


def test_widths_and_places_of_the_layers() -> None:
    roll = build(edited(PLANKTON, "roll-all-quarter"))
    assert [layer.out_features for name, layer in roll.named_children() if name.startswith("conv")] == [
        8,
        8,
        16,
        16,
    ] + [32] * 6
    assert [type(layer).__name__ for layer in (roll.conv1, roll.conv2)] == ["SliceConv", "RollConv"]
    assert (roll.dense1.in_features, roll.dense1.out_features) == (3200, 128)
    assert (roll.dense2.in_features, roll.dense2.out_features, roll.output.in_features) == (512, 512, 512)
    names = [name for name, _ in roll.named_children()]
    assert names.index("dense2") + 1 == names.index("pool")  # no ReLU between
    assert names.index("pool") < names.index("output")
    relu = [name for name, _ in build(edited(PLANKTON, "mean-relu")).named_children()]
    assert relu.index("relu_dense2") + 1 == relu.index("pool")
    linear = [name for name, _ in build(edited(PLANKTON, "baseline-linear")).named_children()]
    assert "relu_dense2" not in linear
    assert "relu_dense1" in linear
    drops = [layer.p for layer in roll.modules() if isinstance(layer, nn.Dropout)]
    assert drops == [0.5] * 3


def test_options_where_the_paper_is_silent() -> None:
    assert [len(stage) for stage in restaged(PLANKTON, "2-2-2-4").stages] == [2, 2, 2, 4]
    assert count(restaged(PLANKTON, "2-2-4-2")) == 2_840_409
    with pytest.raises(LabError, match="10 in all"):
        restaged(PLANKTON, "2-2-3")
    one = replace(BUILDINGS, outputs=1)
    assert [count(edited(one, row)) for row in COUNTS["buildings"]] == [582_977, 150_945, 582_977, 158_417, 597_921]
    after = build(edited(TINY, "pool-mean", pool_at="after-output"))
    assert list(dict(after.named_children()))[-1] == "pool"
    assert "relu_pooled" in dict(build(edited(TINY, "pool-mean", relu_after=True)).named_children())
    for output, kind in (("sigmoid", nn.Sigmoid), ("relu", nn.ReLU), ("questions", Questions)):
        assert type(build(replace(GALAXIES, output=output, stages=((8,),)))[-1]) is kind


# docs: columns (0-based, end excluded) of each question, and the column whose share of the votes was asked it.
TREE = (
    (0, 3, None),
    (3, 5, 1),
    (5, 7, 4),
    (7, 9, 4),
    (9, 13, 4),
    (13, 15, None),
    (15, 18, 0),
    (18, 25, 13),
    (25, 28, 3),
    (28, 31, 7),
    (31, 37, 7),
)


def test_the_questions_of_galaxy_zoo() -> None:
    votes = torch.rand(5, 37) + 0.1
    answers = Questions()(votes)
    for start, end, parent in TREE:
        expected = torch.ones(5) if parent is None else answers[:, parent]
        torch.testing.assert_close(answers[:, start:end].sum(1), expected)
        shares = votes[:, start:end] / votes[:, start:end].sum(1, keepdim=True)
        torch.testing.assert_close(answers[:, start:end], shares * expected[:, None])
    assert (len(QUESTIONS), len(ANSWERS), ANSWERS[0], ANSWERS[-1]) == (11, 37, "Class1.1", "Class11.6")
    assert Questions()(-votes).abs().max() == 0  # rectified


def test_the_decision_tree_of_a_part_of_the_answers() -> None:
    """In any order of columns; a question may be missing as a whole, with all that follow from it."""
    names = tuple(name for name in ANSWERS if name.split(".")[0] in ("Class1", "Class2", "Class6", "Class7", "Class8"))
    order = torch.randperm(17)
    shuffled = tuple(names[i] for i in order)
    votes = torch.rand(4, 17)
    answers = Questions(names)(votes)
    torch.testing.assert_close(Questions(shuffled)(votes[:, order]), answers[:, order])
    column = {name: answers[:, i] for i, name in enumerate(names)}
    torch.testing.assert_close(sum(column[f"Class8.{i}"] for i in range(1, 8)), column["Class6.1"])
    torch.testing.assert_close(column["Class7.1"] + column["Class7.2"] + column["Class7.3"], column["Class1.1"])
    with pytest.raises(ConfigError, match="question 8 needs Class8.7"):
        Questions(names[:-1])
    with pytest.raises(ConfigError, match="question 2 needs Class1.2"):
        Questions(("Class2.1", "Class2.2"))
    with pytest.raises(ConfigError, match="does not know 'redshift'"):
        Questions((*names, "redshift"))
    with pytest.raises(ConfigError, match="needs 37 outputs, got 17"):
        build(replace(GALAXIES, output="questions", outputs=17, stages=((8,),)))


def test_the_decision_tree_starts_with_every_vote_alive() -> None:
    net = build(replace(TINY, channels=3, outputs=37, output="questions", hidden=(16, 16)))
    initialise(net, 0)
    x = torch.randn(4, 3, 15, 15)
    answers = net(x)
    assert answers[:, :3].sub(1 / 3).abs().max() < 0.2
    answers.square().sum().backward()
    assert (net.output.bias.grad.abs() > 0).sum() >= 30


def test_initialisation_is_he_over_the_rolled_inputs_with_a_small_output() -> None:
    net = build(edited(replace(TINY, stages=((64, 64),), hidden=(512, 512)), "roll-all-half"))
    initialise(net, 0)
    fan_in = net.conv2.weight[0].numel()
    assert fan_in == 32 * 4 * 9
    assert net.conv2.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.02)
    assert net.output.weight.std().item() == pytest.approx(0.1 * (2 / (512 + 10)) ** 0.5, rel=0.05)
    assert all(not p.any() for name, p in net.named_parameters() if name.endswith("bias"))
    other = build(edited(replace(TINY, stages=((64, 64),), hidden=(512, 512)), "roll-all-half"), "filters")
    initialise(other, 0)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    initialise(other, 1)
    assert not torch.equal(net.conv1.weight, other.conv1.weight)
