"""wrap: any model, untouched, made invariant or same-equivariant."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4, MIRROR, OCTA, Group, wrap


def image(*sizes: int, features: int = 2, batch: int = 2) -> Tensor:
    return torch.randn(batch, features, *(sizes or (9, 9)), dtype=torch.float64)


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 4, stride=3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)
    ).double()


@pytest.mark.parametrize("group", [MIRROR, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("pool", ["mean", "max", "rms", lambda pathways: pathways.logsumexp(0)])
def test_classifiers_become_invariant_and_keep_their_weights(group: Group, pool: object) -> None:
    model = classifier().eval()
    x = image()
    net = wrap(model, group, pool)
    qt.assert_equivariant(net, group, x)
    assert net.model is model
    expected = qt.pool(model(qt.slice(x, group)), group, pool)
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)
    assert max(qt.equivariance_error(model, group, x).relative) > 1e-3


def test_segmenters_become_same_equivariant() -> None:
    net = wrap(nn.Conv2d(2, 3, 3, padding=1).double(), D4)
    qt.assert_equivariant(net, D4, image())
    assert net(image()).shape == (2, 3, 9, 9)


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_chunks_give_the_same(chunk: int) -> None:
    model = classifier().eval()
    x = image()
    expected = wrap(model, D4)(x)
    torch.testing.assert_close(wrap(model, D4, chunk=chunk)(x), expected, rtol=1e-12, atol=1e-12)
    model.train()
    with pytest.raises(qt.OptionError, match=r"'1' \(BatchNorm2d\) takes statistics over the batch"):
        wrap(model, D4, chunk=1)(x)
    wrap(model, D4)(x)  # all pathways together share them


def test_chunks_refuse_our_batch_norm_too() -> None:
    x = image()
    model = nn.Sequential(qt.Slice(C4), qt.BatchNorm(C4, 2), qt.Pool(C4)).double()
    with pytest.raises(qt.OptionError, match=r"'1' \(BatchNorm\) takes statistics over the batch"):
        wrap(model, D4, chunk=1)(x)
    wrap(model, D4)(x)
    model.eval()
    wrap(model, D4, chunk=1)(x)


class LooksAtTheNextImage(nn.Module):
    """It takes part of its answer from another image of the batch, as some networks do by mistake."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.roll(1, dims=0)


def test_networks_that_mix_examples_are_found_out() -> None:
    """Pathways that run one after another do not meet."""
    model, x = nn.Sequential(LooksAtTheNextImage(), *classifier()).eval(), image(batch=1)
    with pytest.raises(qt.NotEquivariantError):
        qt.assert_equivariant(wrap(model, D4), D4, x)
    qt.assert_equivariant(wrap(model, D4, chunk=1), D4, x)


def test_maps_that_are_not_square_run_in_two_batches() -> None:
    net = wrap(nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), nn.ReLU()).double(), D4)
    qt.assert_equivariant(net, D4, image(12, 7))
    assert net(image(12, 7)).shape == (2, 3, 5, 3)


def test_it_trains_end_to_end() -> None:
    net = wrap(classifier(), C4)
    x, target = image(batch=8), torch.randn(8, 5, dtype=torch.float64)
    net(x)
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        loss = (net(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    qt.assert_equivariant(net, C4, x)


def test_transformers_and_recurrent_networks() -> None:
    class Patches(nn.Module):
        """Patches with learnt positions, a transformer, then a recurrent layer over the tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(2, 8, 3, 3)
            self.positions = nn.Parameter(torch.randn(9, 8))
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.recurrent = nn.GRU(8, 4, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            tokens = self.encoder(self.embed(x).flatten(2).transpose(1, 2) + self.positions)
            states, _ = self.recurrent(tokens)
            return states[:, -1], tokens.mean(1)

    model = Patches().double().eval()
    assert max(qt.equivariance_error(model, D4, image()).relative) > 1e-3
    qt.assert_equivariant(wrap(model, D4), D4, image())


class Pair(NamedTuple):
    score: Tensor
    mask: Tensor


@dataclass
class Answer:
    heads: dict
    note: str = "kept"
    missing: Tensor | None = None


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor, weights: Tensor, *, flow: Tensor | None = None, scale: float = 1.0) -> Answer:
        maps = self.conv(x) * scale
        flow = maps if flow is None else flow
        heads = OrderedDict(pair=Pair(maps.mean((2, 3)) * weights, maps), others=[flow, (maps.amax(1),)])
        return Answer(heads)


def test_containers_and_several_inputs() -> None:
    net = wrap(Containers().double(), C4, outputs={"heads.others.0": "vector", "heads.others.1.0": "fixed"})
    x, weights = image(), torch.randn(2, 2, dtype=torch.float64)
    answer = net(x, weights, scale=2.0)
    assert isinstance(answer, Answer)
    assert isinstance(answer.heads, OrderedDict)
    assert isinstance(answer.heads["pair"], Pair)
    assert (answer.note, answer.missing) == ("kept", None)
    assert answer.heads["pair"].mask.shape == x.shape
    for g in range(4):
        turned = net(qt.act(x, C4, g), weights, scale=2.0)
        torch.testing.assert_close(turned.heads["pair"].score, answer.heads["pair"].score)
        torch.testing.assert_close(turned.heads["pair"].mask, qt.act(answer.heads["pair"].mask, C4, g))
        expected = qt.act(answer.heads["others"][0], C4, g, kind="vector")
        torch.testing.assert_close(turned.heads["others"][0], expected)


def test_inputs_by_name() -> None:
    class Warp(nn.Module):
        def forward(self, image: Tensor, flow: Tensor, table: Tensor) -> Tensor:
            return image.roll(1, 2) * flow + table.sum()

    x, table = image(), torch.randn(2, 1, 5, 5, dtype=torch.float64)
    net = wrap(Warp(), C4, inputs={"flow": "vector", "table": "fixed"}, outputs="vector")
    out = net(x, flow=x, table=table)
    turned = net(qt.act(x, C4, 1), flow=qt.act(x, C4, 1, kind="vector"), table=table)
    assert out.shape == turned.shape
    with pytest.raises(qt.OptionError, match="unknown name in inputs 'flo': did you mean 'flow'"):
        wrap(Warp(), C4, inputs={"flo": "vector"})(x, x, table)
    with pytest.raises(qt.OptionError, match="unknown name in outputs 'mask'"):
        wrap(nn.Identity(), C4, outputs={"mask": "fixed"})(x)


def test_volumes() -> None:
    net = wrap(nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.LazyLinear(2)).double(), OCTA)
    qt.assert_equivariant(net, OCTA, image(4, 4, 4, features=1))


def test_what_cannot_be_is_refused() -> None:
    x = image()
    with pytest.raises(qt.OptionError, match="unknown treatment 'vectors': did you mean 'vector'"):
        wrap(nn.Identity(), C4, inputs="vectors")
    with pytest.raises(qt.OptionError, match="unknown pool function"):
        wrap(nn.Identity(), C4, pool="average")
    for chunk in (0, 1.0, True):
        with pytest.raises(qt.OptionError, match="chunk must be .* at least 1"):
            wrap(nn.Identity(), C4, chunk=chunk)
    with pytest.raises(qt.GroupError, match="expected a Group"):
        wrap(nn.Identity(), "C4")

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum()

    class Decision(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3)).argmax(1)

    with pytest.raises(qt.ShapeError, match="keep the batch as the first axis"):
        wrap(Sum(), C4)(x)
    with pytest.raises(qt.OptionError, match=r"holds torch.int64 values, which have no mean"):
        wrap(Decision(), C4)(x)


def test_groups_that_turn_other_axes_than_the_inputs_have_are_refused() -> None:
    flat, deep = nn.Conv2d(2, 3, 3).double(), nn.Conv3d(2, 3, 3).double()
    with pytest.raises(qt.ShapeError, match="octa turns 3 spatial axes"):
        wrap(flat, OCTA)(image())
    with pytest.raises(qt.ShapeError, match=r"maps with 4 axes, got \(2, 2, 5, 5, 5\)"):
        wrap(deep, C4)(image(5, 5, 5))
    with pytest.raises(qt.ShapeError, match="nothing would be turned"):
        wrap(flat, C4, inputs="fixed")(image())
