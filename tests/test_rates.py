"""The estimate of time: operators are told apart, counted as they run, and timed by the measured rates."""

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import rates
from quarterturn.rates import CALLS, KERNEL, OTHER, PRODUCTS, Rates, estimate

SECOND_A_BYTE = [(1.0, 1.0), (2.0, 2.0)]
COUNTED = Rates(  # one multiply-add a second, one byte a second: times are counts
    "counted",
    {kind: [(1.0, 1.0)] for kind in ("convolution", "1x1 convolution", "depthwise", "dense", "kernel, 4 orientations")},
    {"add": SECOND_A_BYTE, "copy to another layout": [(1.0, 10.0), (2.0, 20.0)]},
    {"torch": 1.0, "ours": 100.0},
)


class Code(nn.Module):
    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "current", lambda: COUNTED)


@pytest.mark.usefixtures("counted")
def test_products_are_their_multiply_adds() -> None:
    x = torch.zeros(2, 4, 8, 8)
    convolution = estimate(nn.Conv2d(4, 6, 3), [x])
    assert convolution[PRODUCTS] == 2 * 6 * 36 * 4 * 9
    assert convolution[OTHER] == 0
    assert estimate(nn.Conv2d(4, 4, 3, groups=4), [x])[PRODUCTS] == 2 * 4 * 36 * 9
    assert estimate(nn.ConvTranspose2d(4, 6, 2, 2), [x])[PRODUCTS] == 2 * 4 * 64 * 6 * 4
    assert estimate(nn.Linear(4, 6), [torch.zeros(5, 4)])[PRODUCTS] == 5 * 4 * 6
    attention = Code(lambda x: F.scaled_dot_product_attention(x, x, x))
    assert estimate(attention, [torch.zeros(2, 3, 5, 4)])[PRODUCTS] == 2 * (2 * 3 * 5 * 4 * 5)
    weight = torch.zeros(3, 4, 5)
    assert estimate(Code(lambda x: x @ weight), [torch.zeros(3, 2, 4)])[PRODUCTS] == 3 * 2 * 4 * 5


@pytest.mark.usefixtures("counted")
def test_other_operators_are_their_bytes() -> None:
    x = torch.zeros(2, 4, 8, 8)
    found = {
        "relu": (estimate(Code(torch.relu), [x]), 2 * x.nbytes),
        "add": (estimate(Code(lambda x: x + torch.ones(4, 1, 1)), [x]), 2 * x.nbytes + 4 * 4),
        "view": (estimate(Code(lambda x: x.permute(0, 2, 3, 1).narrow(3, 0, 1)), [x]), 0),
        "of an expanded tensor": (estimate(Code(lambda x: F.relu(x[:1, :1, :1, :1].expand(2, 4, 8, 8))), [x]), None),
    }
    for name, (times, moved) in found.items():
        expected = moved if moved is not None else x.nbytes + x.untyped_storage().nbytes()
        assert times[OTHER] <= expected + 16 * 8, name  # constants are made too
        assert times[OTHER] >= expected, name
    turned = estimate(Code(lambda x: x.contiguous()), [x])  # from features last
    assert turned[OTHER] == 10 * 2 * x.nbytes


@pytest.mark.usefixtures("counted")
def test_calls_and_the_kernel_are_counted() -> None:
    layer = qt.RollConv(qt.C4, 16, 16, 3, padding=1, rotate="filters")
    times = estimate(nn.Sequential(layer, nn.ReLU()), [torch.zeros(1, 64, 8, 8)])
    assert times[CALLS] == 1 + 1 + 100  # the sequence, the activation and ours
    work = 64 * 64 * 16 * 4 * 9
    runs = layer.execution(torch.zeros(1, 64, 8, 8)).code == "kernel"
    assert (times[KERNEL], times[PRODUCTS]) == ((work, 0.0) if runs else (0.0, work))


@pytest.mark.usefixtures("counted")
def test_filters_that_are_kept_are_not_counted_again() -> None:
    layer = qt.RollConv(qt.C4, 2, 2, 3, padding=1, rotate="filters", via="conv")
    x = torch.zeros(1, 8, 9, 9)
    kept = estimate(layer, [x])[OTHER]
    assert kept <= 2 * layer.weight.nbytes + 200  # the comparison, and a bias for each orientation
    computed = nn.utils.parametrize.register_parametrization(layer, "weight", Code(lambda w: 2 * w))  # never kept
    assert estimate(computed, [x])[OTHER] > 10 * kept


def test_networks_that_view_their_maps_as_they_lie_are_estimated_too() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), Code(lambda x: x.view(x.shape[0], -1)))
    assert sum(estimate(net, [torch.zeros(2, 3, 8, 8)]).values()) > 0


@pytest.mark.usefixtures("counted")
def test_chains_that_run_as_one_are_counted_as_one() -> None:
    """Converted networks run convolution, norm and activation in one pass: no bytes move for the norm."""
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    x = torch.randn(2, 3, 18, 18)
    converted = qt.convert(net, qt.C4, example=x)
    layers: list[nn.Module] = [converted.get_submodule(str(i)) for i in range(4)]
    one_by_one = estimate(nn.Sequential(*layers, qt.Pool(qt.C4, rotate="filters")), [x])
    chained = estimate(converted, [x])
    assert chained[KERNEL] + chained[PRODUCTS] == one_by_one[KERNEL] + one_by_one[PRODUCTS] > 0
    if one_by_one[KERNEL]:
        assert chained[OTHER] < one_by_one[OTHER] - 2 * 64 * 16 * 16 * 4 * 2


def test_points_between_and_beyond() -> None:
    points = [(10.0, 1.0), (1000.0, 100.0)]
    assert rates.rate_at(points, 100.0) == pytest.approx(10.0)
    assert rates.rate_at(points, 1.0) == 1.0
    assert rates.rate_at(points, 1e6) == 100.0
    assert rates.time_at(points, 1e4) == 1000.0


@pytest.mark.parametrize("capability", ["AVX2", "AVX512", "DEFAULT", "something new"])
def test_every_processor_has_rates(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    rates.current.cache_clear()
    try:
        found = rates.current()
    finally:
        rates.current.cache_clear()
    assert found.name == ("avx512" if capability == "AVX512" else "avx2")
    kinds = {f"kernel{window}, {order} orientations" for window in ("", " 1x1") for order in (2, 4, 8)}
    assert set(found.products) == {"convolution", "1x1 convolution", "depthwise", "dense"} | kinds
    assert set(rates.SIMILAR.values()) <= set(found.operators)
    for points in (*found.products.values(), *found.operators.values()):
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        assert all(y > 0 for _, y in points)


def test_the_table_has_the_classes_that_the_script_measures() -> None:
    assert set(json.loads(rates.FILE.read_text())) == {"avx2", "avx512"}


def test_the_report_and_explain_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    conversion = qt.convert(net, qt.C4).conversion
    ratio = conversion.after.seconds / conversion.before.seconds
    assert "time (estimate)" in str(conversion)
    assert f"{ratio:.2f}x" in str(conversion).splitlines()[2].split()[-1]
    found = qt.explain(net, torch.zeros(1, 3, 20, 20))
    assert "estimated time on one thread" in capsys.readouterr().out.splitlines()[-1]
    assert sum(found.seconds.values()) > 0
