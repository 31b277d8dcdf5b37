"""Out again: plain networks are equal to those they come from, consist of torch's layers, and run without us."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from networks import NETWORKS, UNet, conv_norm, plankton_net
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C4, D4, FLIP, MIRROR, OCTA, ConversionError, Group, to_plain

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
each_group = pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)


def image(*sizes: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 1, *(sizes or (16, 16)), dtype=torch.float64)


def ready(net: nn.Module, x: Tensor) -> nn.Module:
    """In float64 and eval mode, with running statistics that are not the first ones."""
    net = net.double().train()
    with torch.no_grad():
        net(x)
    return net.eval()


def assert_within(tolerance: float, got: Tensor, expected: Tensor) -> None:
    """Equal to a part of the largest value."""
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= tolerance * expected.abs().max()


def assert_plain(net: nn.Module, x: Tensor, **options: object) -> nn.Module:
    plain = to_plain(net, **options)
    torch.testing.assert_close(plain(x), net(x), **CLOSE)
    strangers = {type(m).__module__ for m in plain.modules() if not type(m).__module__.startswith("torch.")}
    assert strangers == set()
    functions = {n.target for n in plain.graph.nodes if n.op == "call_function"}
    assert not any("quarterturn" in getattr(f, "__module__", "") for f in functions)
    return plain


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rotate", ["maps", "filters"])
@each_group
def test_networks_in_both_modes(name: str, rotate: str, group: Group) -> None:
    x = image()
    net = ready(NETWORKS[name](group, rotate), x)
    plain = assert_plain(net, x, example=x)
    qt.assert_equivariant(plain, group, x)
    assert_plain(net, x)
    folded = assert_plain(net, x, example=x, fold=True)
    norms = [[m for m in n.modules() if isinstance(m, nn.BatchNorm2d)] for n in (plain, folded)]
    assert len(norms[1]) <= len(norms[0])
    assert_within(1e-5, plain.float()(x.float()), net.float()(x.float()))


@pytest.mark.parametrize("name", ["residual", "inception", "unet"])
@each_group
def test_maps_of_any_size_go_through_a_network_that_was_made_for_none(name: str, group: Group) -> None:
    """The original takes only square maps; its twin in filters mode says what is right for others."""
    x = image()
    net, twin = (NETWORKS[name](group, rotate) for rotate in ("maps", "filters"))
    net = ready(net, x)
    twin.double().eval().load_state_dict(net.state_dict())
    plain = to_plain(net)
    for sizes in ((16, 16), (20, 12), (24, 40)) if name == "unet" else ((17, 17), (18, 23), (31, 20)):
        x = image(*sizes)
        torch.testing.assert_close(plain(x), twin(x), **CLOSE)
        qt.assert_equivariant(plain, group, x)


# --- networks written with slice, torch's layers, roll and pool -------------------------------------------------------


class Handwritten(nn.Module):
    """Ordinary layers between ours, functions in the forward, a short cut, and rolls before and after other layers."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        order = group.order
        self.slice, self.roll, self.pool = qt.Slice(group), qt.Roll(group), qt.Pool(group, "max")
        self.first, self.norm = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, (2, 3), padding="same", groups=2)  # no roll: each orientation sees itself alone
        self.rolled_norm = nn.BatchNorm2d(4 * order)
        self.third = nn.Conv2d(4 * order, 4, 3, padding=1, padding_mode="reflect")
        self.fourth = nn.Conv2d(8 * order, 3, 3, bias=False)
        self.last = nn.Sequential(nn.Conv2d(3, 2, 1), nn.PReLU())
        self.each = nn.PReLU(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(self.slice(x))))
        y = self.each(self.second(F.gelu(x)))
        y = F.max_pool2d(y + x, 3, 2, ceil_mode=True)
        z = self.third(self.rolled_norm(self.roll(y)))  # a norm between roll and convolution
        z = torch.cat([self.roll(z), self.roll(y).sigmoid()], dim=1)
        return self.last(self.pool(self.fourth(z)) * 2)


@each_group
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
def test_networks_written_with_ordinary_layers(group: Group) -> None:
    x = image(17, 17)
    net = ready(Handwritten(group), x)
    qt.assert_equivariant(net, group, x)
    assert_plain(net, x, example=x)
    plain = assert_plain(net, x)
    qt.assert_equivariant(plain, group, image(17, 24))


class InPlace(nn.Module):
    """Changes tensors in place after they were rolled, and uses both."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.enter, self.roll, self.pool = qt.SliceConv(group, 1, 3, 3), qt.Roll(group), qt.Pool(group)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(3 * group.order, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        first = self.roll(x)
        y = self.relu(x)  # `first` is a copy and keeps its negative values
        x.mul_(2.0)  # y is x
        second = self.roll(x)
        y.add_(1.0)
        F.relu(x, inplace=True)
        return self.pool(self.conv(first) + self.conv(second) + y + x)


@each_group
def test_work_in_place_stays_in_its_place(group: Group) -> None:
    x = image(9, 9)
    net = ready(InPlace(group), x)
    qt.assert_equivariant(net, group, x)
    assert_plain(net, x)
    assert_plain(net, x, example=x)


class AfterPool(nn.Module):
    """Code on the ordinary tensor that an equivariant network gives."""

    def __init__(self, group: Group, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net = nn.Sequential(qt.SliceConv(group, 1, 4, 3), qt.Pool(group))
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self.net(x))


@each_group
def test_work_in_place_on_a_part_is_refused_where_the_whole_is_used(group: Group) -> None:
    """The plain network does not work in place, so that the whole would stay as it was."""

    def changes_its_half(y: Tensor) -> Tensor:
        y[:, :2].relu_()
        return y

    with pytest.raises(ConversionError, match=r"- forward \(relu_\): it works in place on a part of a tensor"):
        to_plain(AfterPool(group, changes_its_half))
    net = ready(AfterPool(group, lambda y: y[:, :2].relu_() + 1), image(9, 9))
    assert_plain(net, image(9, 9))


@each_group
def test_sizes_may_be_used_and_asked_for(group: Group) -> None:
    x = image(9, 9)
    assert_plain(ready(AfterPool(group, lambda y: y[:, : y.shape[1] // 2]), x), x)
    pooled = AfterPool(
        group, lambda y: y.mean((2, 3)) if y.ndim == 4 else y
    )  # a number of axes is no decision by sizes
    assert_plain(ready(pooled, x), x, example=x)


def test_the_example_stays_as_it_was() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), qt.SliceConv(C4, 1, 2, 3), qt.Pool(C4)).double()
    x = image(9, 9)
    before = x.clone()
    to_plain(net, x)
    assert torch.equal(x, before)


def readme_net(group: Group) -> nn.Module:
    return nn.Sequential(
        qt.Slice(group),
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        qt.Roll(group),
        nn.Conv2d(8 * group.order, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
        qt.Pool(group, "mean"),
    )


@each_group
def test_the_readmes_network(group: Group) -> None:
    x = image(16, 16)
    net = ready(readme_net(group), x)
    assert_plain(net, x, example=x)
    plain = assert_plain(net, x)
    assert plain(image(15, 22)).shape == (2, 5)


@each_group
def test_dense_heads_on_flattened_maps(group: Group) -> None:
    x = image(12, 12)
    for head in (
        (nn.Flatten(), nn.Linear(4 * 36, 6), nn.BatchNorm1d(6), nn.ReLU(), qt.Pool(group)),
        (qt.Roll(group), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * group.order * 36, 6), qt.RollLinear(group, 6, 3)),
        (nn.Flatten(), nn.Linear(4 * 36, 6), qt.Roll(group), nn.Linear(6 * group.order, 3), nn.Linear(3, 3)),
        (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 6), qt.Stack(group), nn.Linear(6 * group.order, 3)),
    ):
        ends = () if isinstance(head[-1], qt.Pool) or any(isinstance(m, qt.Stack) for m in head) else (qt.Pool(group),)
        net = ready(nn.Sequential(qt.Slice(group), nn.Conv2d(1, 4, 4, stride=2, padding=1), *head, *ends), x)
        assert_plain(net, x)
        assert_plain(net, x, example=x)


@each_group
def test_modes_mixed_in_one_network(group: Group) -> None:
    x = image(16, 16)
    net = nn.Sequential(
        qt.SliceConv(group, 1, 3, 3, stride=2, padding=1, rotate="filters"),
        qt.GroupNorm(group, 3, 3, rotate="filters"),
        qt.Unstack(group),
        nn.GroupNorm(1, 3),
        nn.InstanceNorm2d(3, affine=True),
        qt.Roll(group),
        nn.ConvTranspose2d(3 * group.order, 2, 3, stride=2, output_padding=1),
        qt.EachOrientation(group, nn.MaxPool2d(2), rotate="maps"),
        qt.InstanceNorm(group, 2),
        qt.Stack(group),
        qt.DepthwiseConv(group, 2, 3, 2, 1, rotate="filters"),
        qt.LayerNorm(group, 2, rotate="filters"),
        qt.Upsample(group, scale_factor=2, mode="linear", rotate="filters"),
        qt.Pool(group, "rms", rotate="filters"),
        nn.Conv2d(2, 1, 1),
    )
    net = ready(net, x)
    qt.assert_equivariant(net, group, x)
    assert_plain(net, x, example=x)
    assert_plain(net, x)


@pytest.mark.parametrize("group", [FLIP, MIRROR, OCTA], ids=lambda g: g.name)
def test_other_groups_and_dimensions(group: Group) -> None:
    x = image(*[6] * group.dim, batch=1)
    net = nn.Sequential(
        qt.SliceConv(group, 1, 2, 3, 2, 1),
        qt.BatchNorm(group, 2),
        qt.RollConv(group, 2, 2, 2),
        qt.AdaptiveAvgPool(group, 1),
        nn.Flatten(),
        qt.RollLinear(group, 2, 3),
        qt.Pool(group),
    )
    net = ready(net, torch.cat([x, x]))
    assert_plain(net, x)
    assert_plain(net, x, example=x)


# --- wrapped models ---------------------------------------------------------------------------------------------------


class Unfollowable(nn.Module):
    """A model whose code looks at its maps, with a class or a map as its answer."""

    def __init__(self, gives_maps: bool) -> None:
        super().__init__()
        self.conv, self.gives_maps = nn.Conv2d(1, 4, 3, 2 - gives_maps, 1), gives_maps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        y = y * torch.linspace(-1, 1, y.shape[2], dtype=y.dtype)[:, None] if y.shape[2] > 1 else y
        return y if self.gives_maps else y.mean((2, 3))


@each_group
@pytest.mark.parametrize("gives_maps", [False, True])
@pytest.mark.parametrize("pool", ["mean", "max", "rms"])
def test_wrapped_models_stay_as_they_are(group: Group, gives_maps: bool, pool: str) -> None:
    net = qt.wrap(Unfollowable(gives_maps), group, pool).double().eval()
    plain = to_plain(net, image(16, 16))
    assert not any(type(module).__module__.startswith("quarterturn") for module in plain.modules())
    anywhere = to_plain(net, image(16, 16), dynamic=True)
    for sizes in ((16, 16), (17, 12)):
        x = image(*sizes)
        torch.testing.assert_close(anywhere(x), net(x), **CLOSE)
    torch.testing.assert_close(plain(x := image(16, 16, batch=3)), net(x), **CLOSE)


def test_a_wrapped_model_with_layers_of_ours_and_its_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    net = qt.wrap(ready(plankton_net(C4, "filters"), image(16, 16)).float(), D4)
    plain = qt.export(net, image(16, 16).float(), tmp_path / "net.onnx")
    assert not any(type(module).__module__.startswith("quarterturn") for module in plain.modules())
    maps = qt.wrap(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid()), D4)
    qt.export(maps, image(16, 16).float(), tmp_path / "net.onnx", free="sizes")


def test_wrapped_models_of_another_form_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    with pytest.raises(ConversionError, match="an example tells"):
        to_plain(qt.wrap(Unfollowable(True), C4))
    with pytest.raises(ConversionError, match="gives a tuple"):
        to_plain(qt.wrap(Two(), C4), image(16, 16))


# --- without us -------------------------------------------------------------------------------------------------------


def test_it_runs_and_unpickles_in_a_process_without_quarterturn(tmp_path: Path) -> None:
    x = image(16, 16)
    net = ready(plankton_net(D4, "filters"), x)
    torch.save({"net": to_plain(net, x), "x": x, "y": net(x)}, tmp_path / "plain.pt")
    script = """if True:
        import sys
        sys.modules["quarterturn"] = None  # an import would raise
        import torch
        saved = torch.load(sys.argv[1], weights_only=False)
        torch.testing.assert_close(saved["net"](saved["x"]), saved["y"], rtol=1e-10, atol=1e-10)
        print("equal")
    """
    run = [sys.executable, "-c", script, str(tmp_path / "plain.pt")]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "equal\n"


def test_modes_and_the_original_are_left_alone() -> None:
    x = image()
    net = ready(UNet(C4, "filters"), x)
    net.train()
    net.down2.eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    plain = to_plain(net, x, fold=True)
    assert net.training
    assert not net.down2.training
    for parameter in plain.parameters():
        parameter.data.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def strided_segmenter(group: Group, rotate: str = "filters") -> nn.Module:
    return nn.Sequential(
        qt.SliceConv(group, 1, 2, 3, 2, 1, rotate=rotate),
        nn.ReLU(),
        qt.MaxPool(group, 3, 2, ceil_mode=True, rotate=rotate),
        conv_norm(group, 2, 2, rotate, stride=2),
        qt.AvgPool(group, 2, 1, rotate=rotate),
        qt.Upsample(group, scale_factor=2, rotate=rotate),
        qt.Pool(group, rotate=rotate),
    )


@each_group
def test_torch_export_with_free_sizes(group: Group) -> None:
    net = ready(strided_segmenter(group), image(32, 32))
    plain = to_plain(net, dynamic=True)
    shapes = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(plain, (image(64, 48),), dynamic_shapes=(shapes,))
    for sizes in ((64, 64), (65, 64), (63, 50)):
        x = image(*sizes)
        torch.testing.assert_close(program.module()(x), net(x), **CLOSE)


@pytest.mark.slow
def test_one_onnx_file_at_many_sizes(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    net = ready(strided_segmenter(C4), image(32, 32)).float()
    qt.export(net, image(64, 64).float(), tmp_path / "net.onnx", free="sizes")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for batch, sizes in ((1, (64, 64)), (2, (65, 64)), (3, (63, 50))):
        x = image(*sizes, batch=batch).float()
        for g in range(4):
            turned = qt.act(x, C4, g).contiguous()
            got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: turned.numpy()})[0])
            assert_within(1e-5, got, net(turned))
            assert_within(1e-5, got, qt.act(net(x), C4, g))


def test_onnx_of_a_network_with_a_dense_head(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    net = ready(plankton_net(D4, "maps"), image(16, 16)).float()
    qt.export(net, image(16, 16).float(), tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    x = image(16, 16, batch=5).float()
    for g in range(8):
        (got,) = session.run(None, {session.get_inputs()[0].name: qt.act(x, D4, g).contiguous().numpy()})
        assert_within(1e-5, torch.from_numpy(got), net(x))
    with pytest.raises(ConversionError, match="takes maps of one size only"):
        qt.export(net, image(16, 16).float(), tmp_path / "other.onnx", free="sizes")
    assert not (tmp_path / "other.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rotate", ["maps", "filters"])
@each_group
def test_onnx_of_all_networks(name: str, rotate: str, group: Group, tmp_path: Path) -> None:
    """`export` itself compares the file with the network on all turned inputs."""
    pytest.importorskip("onnxruntime")
    x = image(16, 16)
    net = ready(NETWORKS[name](group, rotate), x).float()
    qt.export(net, x.float(), tmp_path / "net.onnx", free="batch")
    if name != "plankton":
        qt.export(net, x.float(), tmp_path / "net.onnx", free="sizes")


def test_a_file_that_disagrees_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    from quarterturn._export.plain_network import to_plain as original

    def wrong(*args: object, **kwargs: object) -> nn.Module:
        plain = original(*args, **kwargs)
        for parameter in plain.parameters():
            parameter.data.mul_(1.01)
        return plain

    monkeypatch.setattr(sys.modules["quarterturn._export.onnx_file"], "to_plain", wrong)
    net = nn.Sequential(qt.SliceConv(C4, 1, 1, 3), qt.Pool(C4)).eval()
    with pytest.raises(ConversionError, match="the file differs from the network by"):
        qt.export(net, torch.randn(2, 1, 8, 8), tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()


def test_a_file_may_differ_by_the_networks_own_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As deep networks do, in float32: here a tolerance below any rounding stands for a network that rounds much."""
    pytest.importorskip("onnxruntime")
    module = sys.modules["quarterturn._export.onnx_file"]
    monkeypatch.setattr(module, "TOLERANCES", {torch.float32: 1e-12})
    net = nn.Sequential(qt.SliceConv(C4, 1, 16, 5), qt.Roll(C4), nn.Conv2d(64, 8, 5), qt.Pool(C4)).eval()
    qt.export(net, torch.randn(2, 1, 16, 16), tmp_path / "net.onnx")
    monkeypatch.setattr(module, "ROUNDINGS", 0)
    with pytest.raises(ConversionError, match="the file differs from the network by"):
        qt.export(net, torch.randn(2, 1, 16, 16), tmp_path / "net.onnx")


# --- what it refuses --------------------------------------------------------------------------------------------------


class Mystery(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(2)


def test_everything_unknown_is_listed_at_once() -> None:
    inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softmax2d())
    net = nn.Sequential(qt.Slice(C4), inner, nn.LocalResponseNorm(2), nn.Conv2d(2, 2, 3), qt.Pool(C4))
    with pytest.raises(ConversionError) as error:
        to_plain(net)
    message = str(error.value)
    assert "- 1.1 (Softmax2d): this layer is not supported on pathways" in message
    assert "- 2 (LocalResponseNorm): this layer is not supported on pathways" in message
    assert message.count("\n- ") == 2
    bound = nn.Sequential(qt.Slice(C4), Mystery(), qt.Pool(C4), qt.wrap(nn.Conv2d(1, 1, 3), C4))
    with pytest.raises(ConversionError, match=r"- 1 \(cumsum\): .*\n- 3 \(Wrapped\): this layer is not supported"):
        to_plain(bound)  # also where nothing reaches it any more
    net = nn.Sequential(qt.Slice(C4), Mystery(), qt.Pool(C4))
    with pytest.raises(ConversionError, match=r"- 1 \(cumsum\): this function is not supported on pathways"):
        to_plain(net)
    net = nn.Sequential(qt.SliceConv(C4, 1, 2, 3), qt.Pool(C4, lambda pathways: pathways.mean(0)))
    with pytest.raises(ConversionError, match=r"- 1 \(Pool\): only the mean, max and rms of scalars are supported"):
        to_plain(net)


def test_options_that_the_group_cannot_have_are_listed_with_their_layer() -> None:
    net = nn.Sequential(qt.Slice(D4), nn.Conv1d(1, 2, 3), nn.Softmax2d(), qt.Pool(D4))
    with pytest.raises(ConversionError, match=r"- 1 \(Conv1d\): kernel_size .*"):
        to_plain(net)


def test_networks_that_end_with_pathways_are_refused() -> None:
    with pytest.raises(ConversionError, match="ends with pathways in the batch: finish it with a Pool or a Stack"):
        to_plain(nn.Sequential(qt.Slice(C4), nn.Conv2d(1, 2, 3)))


def test_dense_heads_are_refused_where_any_size_is_asked_for() -> None:
    net = plankton_net(C4, "maps")
    net(torch.randn(2, 1, 16, 16))
    with pytest.raises(
        ConversionError, match=r"\(Linear\): a linear layer on flattened maps takes maps of one size only"
    ):
        to_plain(net, dynamic=True)


def test_examples_that_do_not_fit_and_code_that_cannot_be_followed_are_refused() -> None:
    net = nn.Sequential(qt.SliceConv(C4, 1, 2, 3), qt.Pool(C4))
    with pytest.raises(qt.ShapeError, match=r"the example input \(1, 3, 8, 8\) does not fit the network: .* features"):
        to_plain(net, torch.randn(1, 3, 8, 8))

    class Decides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ConversionError, match="torch.fx cannot follow the network's forward"):
        to_plain(nn.Sequential(net, Decides()))
    with pytest.raises(qt.OptionError, match="unknown value of free 'size': did you mean 'sizes'"):
        qt.export(net, torch.randn(1, 1, 8, 8), "net.onnx", free="size")
