"""convert: code that no rule follows in the input's frame is followed in each orientation's own frame."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_convert_tokens import check
from test_convert_windows import Around
from torch import Tensor, nn
from torch.nn import functional as F

import quarterturn as qt
from quarterturn import C2, C4, D4, MIRROR, Group
from quarterturn._convert.frames import OwnFrames
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively


class QueryBias(nn.Module):
    """Attention whose bias the queries choose, for rows and for columns by themselves."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rows = nn.Parameter(torch.randn(2 * side - 1, width // heads))
        self.columns = nn.Parameter(torch.randn(2 * side - 1, width // heads))

    def table(self, rows: Tensor, size: int) -> Tensor:
        places = torch.arange(size)
        return rows[(places[:, None] - places[None, :]) + size - 1]

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        qkv = self.qkv(x).view(n, h * w, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, n * self.heads, h * w, -1).unbind(0)
        places = q.reshape(n * self.heads, h, w, -1)
        rows = torch.einsum("bhwc,hkc->bhwk", places, self.table(self.rows, h))
        columns = torch.einsum("bhwc,wkc->bhwk", places, self.table(self.columns, w))
        bias = (rows[:, :, :, :, None] + columns[:, :, :, None, :]).reshape(-1, h * w, h * w)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.proj(x.view(n, self.heads, h * w, -1).transpose(1, 2).reshape(n, h, w, c))


class WrittenBias(QueryBias):
    """The same for tokens behind a class token, with pooled keys, written into the scores."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__(width, heads, side)
        each = width // heads
        self.pool = nn.Conv2d(each, each, 3, stride=2, padding=1, groups=each, bias=False)
        self.norm = nn.LayerNorm(each)
        self.cls = nn.Parameter(torch.randn(1, 1, width))

    def pooled(self, x: Tensor, h: int, w: int) -> Tensor:
        n = x.shape[0]
        first, x = x[:, :, :1, :], x[:, :, 1:, :]
        x = self.pool(x.reshape(-1, h, w, x.shape[-1]).permute(0, 3, 1, 2).contiguous())
        x = x.reshape(n, self.heads, x.shape[1], -1).transpose(2, 3)
        return self.norm(torch.cat((first, x), dim=2))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = torch.cat((self.cls.expand(n, -1, -1), x.reshape(n, h * w, c)), dim=1)
        q, k, v = self.qkv(x).reshape(n, h * w + 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        k, v = self.pooled(k, h, w), self.pooled(v, h, w)
        scores = q @ k.transpose(-2, -1)
        places = q[:, :, 1:].reshape(n, self.heads, h, w, -1)
        rows = torch.einsum("bnhwc,hkc->bnhwk", places, self.table(self.rows, h)[:, ::2])
        columns = torch.einsum("bnhwc,wkc->bnhwk", places, self.table(self.columns, w)[:, ::2])
        scores[:, :, 1:, 1:] = (
            scores[:, :, 1:, 1:].view(n, -1, h, w, h // 2, w // 2) + rows.unsqueeze(-1) + columns.unsqueeze(-2)
        ).view(n, -1, h * w, h * w // 4)
        x = (scores.softmax(-1) @ v + q).transpose(1, 2).reshape(n, h * w + 1, c)
        return self.proj(x)[:, 1:].reshape(n, h, w, c)


class Halo(nn.Module):
    """Windows of queries that see larger, overlapping windows of keys, and relative positions by padding."""

    def __init__(self, width: int, heads: int, side: int, halo: int) -> None:
        super().__init__()
        self.heads, self.side, self.halo, self.window = heads, side, halo, side + 2 * halo
        self.q, self.kv = nn.Conv2d(width, width, 1), nn.Conv2d(width, 2 * width, 1)
        self.table = nn.Parameter(torch.randn(2 * self.window - 1, width // heads))

    def along(self, q: Tensor) -> Tensor:
        b, h, w, _ = q.shape
        count = self.table.shape[0]
        x = (q @ self.table.transpose(-1, -2)).reshape(-1, w, count)
        x = F.pad(F.pad(x, [0, 1]).flatten(1), [0, count - w]).reshape(-1, w + 1, count)
        x = x[:, :w, self.window - 1 :]
        return x.reshape(b, h, 1, w, self.window).expand(-1, -1, self.window, -1, -1).permute(0, 1, 3, 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        n, c, h, w = x.shape
        s, each = self.side, c // self.heads
        rows, columns = h // s, w // s
        q = self.q(x).reshape(-1, each, rows, s, columns, s).permute(0, 1, 3, 5, 2, 4)
        q = q.reshape(n * self.heads, each, -1, rows * columns).transpose(1, 3)
        kv = F.pad(self.kv(x), [self.halo] * 4).unfold(2, self.window, s).unfold(3, self.window, s)
        kv = kv.reshape(n * self.heads, 2 * each, rows * columns, -1).permute(0, 2, 3, 1)
        k, v = torch.split(kv, [each, each], dim=-1)
        bias = self.along(q.reshape(-1, s, s, each)).reshape(n * self.heads, rows * columns, s * s, -1)
        x = ((q @ k.transpose(-1, -2) + bias).softmax(-1) @ v).transpose(1, 3)
        x = x.reshape(-1, s, s, rows, columns).permute(0, 3, 1, 4, 2).contiguous().view(n, c, h, w)
        return x.permute(0, 2, 3, 1)


class PooledQueries(nn.Module):
    """Windows whose queries are pooled, so that smaller maps come out."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads, self.side, self.pool = heads, side, nn.MaxPool2d(2, 2)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        s, half = self.side, self.side // 2
        x = x.view(n, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, s, s, c)
        q, k, v = torch.unbind(self.qkv(x).reshape(x.shape[0], s * s, 3, self.heads, -1), 2)
        q = self.pool(q.reshape(x.shape[0], s, s, -1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        q = q.reshape(x.shape[0], half * half, self.heads, -1).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2))
        x = self.proj(x.transpose(1, 2).reshape(-1, half, half, c))
        x = x.view(n, h // s, w // s, half, half, c).permute(0, 1, 3, 2, 4, 5).contiguous()
        return x.view(n, h // 2, w // 2, c)


class Patches(nn.Module):
    """A convolution inside windows that makes them smaller, and a norm with a parameter for each place in them."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side, self.inner = side, nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(width * (side // 2) ** 2)
        self.proj = nn.Linear(width * (side // 2) ** 2, width)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        s = self.side
        x = x.view(n, h // s, s, w // s, s, c).permute(0, 1, 3, 5, 2, 4).reshape(-1, c, s, s)
        x = self.inner(x).permute(0, 2, 3, 1).reshape(n, (h // s) * (w // s), -1)
        return self.proj(self.norm(x)).reshape(n, h // s, w // s, c)


class Rows(nn.Module):
    """Attention along pieces of rows."""

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = x.view(n, h, w // 4, 4, c)
        return (F.softmax(x @ x.transpose(-1, -2), dim=-1) @ x).view(n, h, w, c)


class Sums(nn.Module):
    """Products of rows, letter by letter, and a table for each position that all features share."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.table = nn.Parameter(torch.rand(side, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.einsum("nhwc,nvwc->nhv", x, self.layer(x)).softmax(-1) * self.table.squeeze(-1)
        return torch.einsum("nhv,nvwc->nhwc", rows, x)


PARTS: dict[str, Callable[[], nn.Module]] = {
    "bias of queries": lambda: QueryBias(32, 8, 8),
    "one head": lambda: WrittenBias(32, 1, 8),
    "bias written into scores": lambda: WrittenBias(32, 8, 8),
    "overlapping windows": lambda: Halo(32, 8, 4, 1),
    "pooled queries": lambda: PooledQueries(32, 8, 4),
    "patches": lambda: Patches(32, 4),
    "rows": Rows,
    "sums": lambda: Sums(32, 8),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_code_in_own_frames_is_exact(group: Group, part: str) -> None:
    converted = check(Around(PARTS[part]()), group, 16, least=0.3)  # they are narrow
    assert not converted.conversion.plain
    assert any(isinstance(layer, OwnFrames) for layer in converted.modules())
    assert any(note.startswith("part") and "own frame" in note for note in converted.conversion.notes)


@pytest.mark.parametrize(
    "code",
    [
        lambda m, x: (y := m.layer(m.first(x))) + torch.matmul(y, y),
        lambda m, x: (y := m.layer(m.first(x))) * torch.softmax(y, -1),
        lambda m, x: (m.layer(m.first(x)).unflatten(1, (2, 8)) * m.table).flatten(1, 2),
    ],
)
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_code_of_the_network_itself_too(group: Group, code: Callable[..., Tensor]) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
            self.table, self.last = nn.Parameter(torch.randn(2, 1, 8, 8)), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(code(self, x).relu().amax((2, 3)))

    net = Own()
    if "table" not in code.__code__.co_names:
        del net.table
    converted = check(net, group, 8, least=0.5)
    assert any(isinstance(layer, OwnFrames) for layer in converted.modules())


def test_what_all_elements_keep_needs_no_frames() -> None:
    """Half turns take pieces of rows to such: products over them are exact where they are."""
    converted = check(Around(Rows()), C2, 16, least=0.3)
    assert not any(isinstance(layer, OwnFrames) for layer in converted.modules())


@pytest.mark.parametrize("group", [C2, MIRROR], ids=lambda g: g.name)
def test_groups_that_keep_the_axes_take_unequal_sides(group: Group) -> None:
    check(Around(PooledQueries(32, 8, 4)), group, (16, 24), least=0.3)


def test_the_checker_finds_frames_that_are_not_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnFrames, "_turned", lambda self, maps: maps)
    with pytest.raises(qt.ConversionError, match="not equivariant"):
        qt.convert(Around(QueryBias(32, 8, 8)), C4, example=torch.randn(2, 3, 16, 16))


def test_unequal_sides_run_as_a_plain_part_or_say_what_to_do() -> None:
    net = Around(Rows())
    wide = torch.randn(2, 3, 16, 24)
    square = qt.convert(net, C4, example=wide[..., :16])
    with pytest.raises(qt.ShapeError, match="maps of equal sides, got 8 x 12: .*example of such images"):
        square(wide)
    converted = qt.convert(net, C4, example=wide)
    assert [part.path for part in converted.conversion.plain] == ["part"]
    (images,) = images_like([wide.double()], dim=2)
    with torch.no_grad():
        assert error_of_answers(lively(converted, [wide]).double(), C4, (images,)) < 1e-10


def test_what_frames_cannot_help_stays_a_plain_part() -> None:
    """What becomes of positions must be known where the orientations are turned back."""

    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.flatten(1, 2).cumsum(1)[:, -1:].unsqueeze(1)

    x = torch.randn(2, 3, 16, 16)
    converted = qt.convert(Around(Sorted()), C4, example=x)
    assert [part.path for part in converted.conversion.plain] == ["part"]
    with pytest.raises(qt.ConversionError, match=r"part \(cumsum\): this function is not known"):
        qt.convert(Around(Sorted()), C4, example=x, unknown="refuse")


def test_a_part_that_is_written_in_place_is_read_as_a_copy() -> None:
    """Who has the tensor under another name sees the new numbers in the old network: that is not followed."""

    class Written(nn.Module):
        def forward(self, x: Tensor) -> Any:
            scores = x @ x.transpose(-1, -2)
            view = scores[:, :, :4]
            scores[:, :, 1:] = scores[:, :, 1:] * 2
            return scores.softmax(-1) @ x + (view.softmax(-1) @ x[:, :, :4].mT.mT).repeat(1, 1, 2, 1)

    with pytest.raises(qt.ConversionError):
        qt.convert(Around(Written()), C4, example=torch.randn(2, 3, 16, 16), unknown="refuse")
