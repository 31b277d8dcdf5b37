"""qt.BatchNorm among torch's tools: they find it, and handle it as their own."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import quarterturn as qt
from quarterturn import C4, D4, FLIP, Group

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
TORCHS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
each_rotate = pytest.mark.parametrize("rotate", ["maps", "filters"])
each_group = pytest.mark.parametrize("group", [FLIP, C4, D4], ids=lambda g: g.name)


def sliced(group: Group, batch: int = 2) -> Tensor:
    return 3 * torch.randn(batch * group.order, 4, *[5] * group.dim, dtype=torch.float64) + 1


def given_to(norm: qt.BatchNorm, x: Tensor) -> Tensor:
    return qt.stack(x, norm.group) if norm.rotate == "filters" else x


def pathways(norm: qt.BatchNorm, y: Tensor) -> Tensor:
    return qt.unstack(y, norm.group) if norm.rotate == "filters" else y


@each_rotate
@each_group
def test_swa_updates_its_statistics(group: Group, rotate: str) -> None:
    norm, torchs = qt.BatchNorm(group, 4, rotate=rotate).double(), TORCHS[group.dim](4).double()
    batches = [sliced(group) for _ in range(3)]
    norm.running_mean.fill_(7.0)  # from training, to be forgotten
    update_bn([given_to(norm, x) for x in batches], norm)
    update_bn(batches, torchs)
    assert norm.momentum == 0.1
    for name, buffer in torchs.named_buffers():
        torch.testing.assert_close(norm.get_buffer(name), buffer, **CLOSE)


@each_rotate
def test_freezing_by_type_finds_it(rotate: str) -> None:
    net = nn.Sequential(qt.SliceConv(D4, 1, 4, 3, rotate=rotate), qt.BatchNorm(D4, 4, rotate=rotate)).train()
    frozen = [m.eval() for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert frozen == [net[1]]
    before = copy.deepcopy(net[1].state_dict())
    net(torch.randn(2, 1, 6, 6))
    assert all(torch.equal(net[1].state_dict()[name], value) for name, value in before.items())


OPTIONS = [
    {},
    {"momentum": None},
    {"momentum": 0.5, "eps": 0.1},
    {"affine": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
]


@each_rotate
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_parameters_and_buffers_are_torchs(options: dict, rotate: str) -> None:
    norm, torchs = qt.BatchNorm(D4, 4, rotate=rotate, **options).double(), nn.BatchNorm2d(4, **options).double()
    assert list(norm.state_dict()) == list(torchs.state_dict())
    norm.load_state_dict(torchs.state_dict(), strict=True)
    for training in (True, True, False, True, False):
        for module in (norm, torchs):
            module.train(training)
        x = sliced(D4)
        torch.testing.assert_close(pathways(norm, norm(given_to(norm, x))), torchs(x), **CLOSE)
        for name, value in torchs.state_dict().items():
            torch.testing.assert_close(norm.state_dict()[name], value, **CLOSE)


@each_rotate
def test_statistics_that_are_switched_off_later(rotate: str) -> None:
    """As in torch: training leaves them as they are, and eval mode uses them."""
    norm, torchs = qt.BatchNorm(D4, 4, rotate=rotate).double(), nn.BatchNorm2d(4).double()
    for module in (norm, torchs):
        module.running_mean.fill_(2.0)
        module.track_running_stats = False
    for training in (True, False):
        for module in (norm, torchs):
            module.train(training)
        x = sliced(D4)
        torch.testing.assert_close(pathways(norm, norm(given_to(norm, x))), torchs(x), **CLOSE)
        for name, value in torchs.state_dict().items():
            torch.testing.assert_close(norm.state_dict()[name], value, **CLOSE)


@each_rotate
def test_torch_func_takes_its_statistics_away(rotate: str) -> None:
    norm = qt.BatchNorm(D4, 4, rotate=rotate).double()
    torch.func.replace_all_batch_norm_modules_(norm)
    x = given_to(norm, sliced(D4))
    norm.eval()
    torch.testing.assert_close(norm(x), qt.BatchNorm(D4, 4, track_running_stats=False, rotate=rotate).double()(x))


@each_rotate
def test_it_is_reset_as_torchs_is(rotate: str) -> None:
    norm = qt.BatchNorm(D4, 4, rotate=rotate).double()
    new = copy.deepcopy(norm.state_dict())
    norm.weight.data.normal_()
    norm(given_to(norm, sliced(D4)))
    norm.reset_parameters()
    assert all(torch.equal(norm.state_dict()[name], value) for name, value in new.items())


# --- files that were written before it was one of torch's norms -------------------------------------------------------


@each_rotate
@pytest.mark.parametrize("affine", [True, False])
def test_older_files_load(rotate: str, affine: bool) -> None:
    norm = qt.BatchNorm(D4, 4, affine=affine, rotate=rotate).double()
    norm(given_to(norm, sliced(D4)))
    state = norm.state_dict()
    state._metadata[""]["version"] = 1
    qt.BatchNorm(D4, 4, affine=affine, rotate=rotate).load_state_dict(state, strict=True)
    older = copy.copy(norm)
    older.__dict__ = {k: v for k, v in norm.__dict__.items() if k not in ("affine", "num_features")}
    torch.save(older, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.affine == affine
    assert getattr(loaded, "num_features", None) == (4 if rotate == "maps" else None)
    x = given_to(norm, sliced(D4))
    assert torch.equal(loaded.eval()(x), norm.eval()(x))
    loaded.reset_parameters()


# --- tools that would replace it --------------------------------------------------------------------------------------


def test_torch_does_not_replace_the_norm_of_stacked_maps() -> None:
    """SyncBatchNorm would take orientations for features: it is refused, and nothing has changed."""
    net = nn.Sequential(qt.SliceConv(D4, 1, 4, 3, rotate="filters"), qt.BatchNorm(D4, 4, rotate="filters"))
    with pytest.raises(qt.OptionError, match="BatchNorm for stacked maps .*convert_sync_batchnorm"):
        nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert isinstance(net[1], qt.BatchNorm)
    assert not hasattr(net[1], "num_features")
    net(torch.randn(2, 1, 6, 6))


def test_torch_may_replace_the_norm_of_sliced_maps() -> None:
    """There torch's own has the same statistics."""
    norm = qt.BatchNorm(D4, 4).double()
    norm.weight.data.normal_()
    x = sliced(D4)
    norm(x)
    replaced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(copy.deepcopy(norm)))
    assert isinstance(replaced[0], nn.SyncBatchNorm)
    assert torch.equal(replaced.eval()(x), norm.eval()(x))


def test_convert_does_not_take_it_for_a_norm_of_torch() -> None:
    for norm in (qt.BatchNorm(C4, 4, rotate="filters"), qt.BatchNorm(C4, 16)):
        net = nn.Sequential(nn.Conv2d(1, 16, 3), norm, nn.Conv2d(16, 8, 3))
        with pytest.raises(qt.ConversionError, match=r"1 \(BatchNorm\)"):
            qt.convert(net, C4, example=torch.randn(4, 1, 12, 12))
