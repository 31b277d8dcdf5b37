"""match=: channels of an ordinary network find the orbits that they form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import quarterturn as qt
from quarterturn import C4, D4, Group
from quarterturn._convert.matching import orbits, orbits_of_heads


def trained_twin(group: Group, images: Tensor) -> nn.Module:
    """An equivariant network as torch's own layers: channels are orbits, in the order that convert reads."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    ).double()
    net = qt.convert(model, group, head="pool")
    net(images)  # the batch norm has seen something
    first, second, norm = net.get_submodule("0"), net.get_submodule("2"), net.get_submodule("3")
    plain = qt.to_plain(net.eval(), images[:2])
    banks = [layer for layer in plain.modules() if isinstance(layer, nn.Conv2d)]
    for old, new in ((model[0], banks[0]), (model[2], banks[1])):
        old.load_state_dict(new.state_dict())
    assert isinstance(norm, qt.BatchNorm)
    assert first is not second
    scales = next(layer for layer in plain.modules() if isinstance(layer, nn.BatchNorm2d))
    model[3].load_state_dict(scales.state_dict())
    head = net.get_submodule("7")
    with torch.no_grad():
        model[7].weight.copy_(head.weight.repeat_interleave(group.order, 1) / group.order)
        model[7].bias.copy_(head.bias)
    model.eval()
    torch.testing.assert_close(model(images), net(images))
    return model


def shuffled(model: nn.Module) -> nn.Module:
    """The same network with its channels in another order."""
    with torch.no_grad():
        for before, norm, after in ((model[0], None, model[2]), (model[2], model[3], model[7])):
            order = torch.randperm(len(before.weight))
            for layer in [before] if norm is None else [before, norm]:
                for tensor in layer.state_dict().values():
                    if tensor.dim():
                        tensor.copy_(tensor[order].clone())
            after.weight.copy_(after.weight[:, order].clone())
    return model


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_an_equivariant_network_is_found_again_whatever_the_order_of_its_channels(group: Group) -> None:
    images = torch.randn(50, 2, 9, 9, dtype=torch.float64)
    model = trained_twin(group, images)
    expected = model(images)
    mixed = shuffled(model)
    torch.testing.assert_close(mixed(images), expected)
    lost = qt.convert(mixed, group, init="pretrained").eval()
    found = qt.convert(mixed, group, init="pretrained", match=images).eval()
    torch.testing.assert_close(found(images), expected, rtol=1e-10, atol=1e-10)
    assert (lost(images) - expected).std() > 0.1 * expected.std()
    qt.assert_equivariant(found, group, images[:2])


@given(st.integers(1, 4), st.sampled_from([2, 4]), st.integers(0, 3), st.integers(0, 10**6))
def test_orbits_hold_every_channel_once_and_the_best_are_together(count: int, order: int, rest: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    channels = count * order + rest
    alike = torch.rand(order, channels, channels, generator=generator)
    mine = torch.randperm(channels, generator=generator)[: count * order].reshape(count, order)
    for first, *others in mine.tolist():
        for g, other in enumerate(others, start=1):
            alike[g, other, first] = 10.0
    found = orbits(alike)
    assert sorted(found) == list(range(channels))
    assert {tuple(found[i : i + order]) for i in range(0, count * order, order)} == {tuple(o) for o in mine.tolist()}


def test_an_orientation_gets_whole_heads() -> None:
    heads, size, order = 8, 6, 4
    alike = torch.rand(order, heads * size, heads * size, generator=torch.Generator().manual_seed(0))
    found = torch.tensor(orbits_of_heads(alike, heads))
    assert sorted(found.tolist()) == list(range(heads * size))
    owners = (found // size).reshape(heads // order, size, order)  # new head, feature, orientation
    assert (owners == owners[:, :1]).all()


@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_networks_of_many_forms_stay_exact(group: Group) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.deep = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 3, padding=1, groups=16)
            self.mixed, self.norm = nn.Conv2d(16, 16, 1, groups=2), nn.LayerNorm(16)
            self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 5)
            self.positions = nn.Parameter(torch.randn(1, 16, 16))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = (x + self.mixed(torch.relu(self.deep(x)))).flatten(2).transpose(1, 2) + self.positions
            n, t, c = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, t, 3, 8, c // 8).permute(2, 0, 3, 1, 4)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    images = torch.randn(20, 3, 16, 16, dtype=torch.float64)
    net = qt.convert(Net().double(), group, init="pretrained", match=images)
    qt.assert_equivariant(net, group, images[:2])


def test_wrong_images_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.LazyLinear(2))
    images = torch.randn(4, 1, 9, 9)
    model(images)
    with pytest.raises(qt.OptionError, match="init="):
        qt.convert(model, C4, match=images)
    for wrong in (images[0], images[:1], [images]):
        with pytest.raises(qt.OptionError, match="tensor of images with 4 axes"):
            qt.convert(model, C4, init="pretrained", match=wrong)  # type: ignore[arg-type]
    tall = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, (7, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(qt.QuarterturnError):
        qt.convert(tall, C4, init="pretrained", match=torch.randn(4, 1, 9, 5))
