"""What the page shows for a picture and an angle, as HTML. All text of others is escaped."""

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarterturn_lab.play.player import QUARTERS, Answer, Player, Square, turned_square
from quarterturn_lab.report import svg
from quarterturn_lab.report.pictures import FOUND, in_page, outlined, picture

ANGLES = tuple(range(0, 361, 15))
SHOWN = 4  # answers of a network with many
MOVED = (209, 73, 91)  # red: pixels whose label did not turn along
EXACT = 1e-4  # a change below it is rounding: float32 has seven digits

STYLE = """
.qt { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(260px, 100%), 1fr)); gap: 16px; }
.qt section { border: 1px solid #8884; border-radius: 8px; padding: 12px 14px; min-width: 0; }
.qt h3 { margin: 0 0 8px; font-size: 1.05em; }
.qt img { width: 100%; max-width: 224px; image-rendering: pixelated; display: block; margin: 0 auto 10px; }
.qt .bar { position: relative; padding: 3px 8px; margin: 3px 0; overflow: hidden; display: flex; }
.qt .bar i { position: absolute; inset: 0 auto 0 0; background: #00798c44; border-radius: 4px; }
.qt .bar span { flex: 1; position: relative; overflow-wrap: anywhere; }
.qt .bar b { position: relative; font-variant-numeric: tabular-nums; }
.qt p { margin: 8px 0 0; }
.qt-turns table { border-collapse: collapse; margin: 0; border: 0 !important; }
.qt-turns tr td, .qt-turns tr th { border: 0; border-bottom: 1px solid #8884; padding: 5px 0 5px 18px; }
.qt-turns tr { border: 0 !important; }
.qt-turns tr td, .qt-turns tr th { text-align: right; }
.qt-turns tr td:first-child, .qt-turns tr th:first-child { text-align: left; padding-left: 0; }
.qt-turns td { font-variant-numeric: tabular-nums; }
.qt-curve { overflow-x: auto; }
.qt-curve svg { width: 100%; min-width: 560px; height: auto; background: #fff; border-radius: 8px; }
.qt-dropped img { width: 100%; height: 100%; object-fit: contain; image-rendering: pixelated; }
"""


def answers(players: list[Player], square: Square, degrees: float) -> str:
    """The answers for the turned picture side by side: of two networks, or of one network before and after."""
    turned = turned_square(square, degrees)
    if len(players) > 1:
        return _cards([_card(player.title, player, square, turned, degrees) for player in players])
    [player] = players
    exact = degrees % 90 == 0
    if not player.card.is_dense:
        kept = _card("Its answer for the upright picture", player, square, square, 0)
    elif exact:
        quarters = int(degrees // 90) % 4
        [found] = player.answers([turned])
        back = np.rot90(found, quarters, (-2, -1))
        kept = _section("Its mask, turned back", _masked(player, square, back), "", "")
    else:
        kept = _card("Its mask for the upright picture", player, square, square, 0)
    return _cards([_card("The picture turned", player, square, turned, degrees), kept])


def at_quarters(players: list[Player], square: Square) -> str:
    """By how much the answer changes at quarter turns, which are exact."""
    lines = []
    for player in players:
        cells = "".join(f"<td>{_number(change)}</td>" for change in player.at_quarters(square))
        lines.append(f"<tr><td>{escape(player.title)}</td>{cells}</tr>")
    heads = "".join(f"<th>{degrees}°</th>" for degrees in QUARTERS)
    return (
        f'<div class="qt-turns"><table><tr><th>Change at exact turns</th>{heads}</tr>{"".join(lines)}</table>'
        f"<p>{_meaning(players[0])} 0 means that the answer is the same up to rounding.</p></div>"
    )


def curve(players: list[Player], square: Square) -> str:
    """The change of the answer at all angles, for networks that label whole pictures."""
    if players[0].card.is_dense:
        return ""
    series = {}
    for player in players:
        found = player.answers([turned_square(square, degrees) for degrees in ANGLES])
        changes = np.array([player.change(found[0], answer) for answer in found])
        series[player.title] = (changes, changes, changes)
    return f'<div class="qt-curve">{svg.sensitivity(ANGLES, series, "Change of the answer")}</div>'


def _meaning(player: Player) -> str:
    if player.card.is_dense:
        return "The largest change of a pixel's probability, when the mask is turned back."
    if player.card.task == "classes":
        return "The share of probability that moves to other classes, from 0 to 1."
    return "The largest change of a number in the answer."


def _cards(cards: list[str]) -> str:
    return f'<div class="qt">{"".join(cards)}</div>'


def _card(title: str, player: Player, square: Square, turned: Square, degrees: float) -> str:
    before, after = player.answers([square, turned])
    exact = degrees % 90 == 0
    if player.card.is_dense and not exact:
        note, change = "Between quarter turns pixels are interpolated: the mask is compared at those alone.", ""
    else:
        number = player.change(before, after, int(degrees // 90) % 4)
        note, change = f"Change of the answer against 0°: <b>{_number(number)}</b>", f"{number:.9f}"
    if player.card.is_dense:
        wanted = np.rot90(before, -int(degrees // 90) % 4, (-2, -1)) if exact else after
        moved = _labels(after) != _labels(wanted)
        if exact:
            note = f"<b>{moved.sum()}</b> of {moved.size:,} pixels change their label; {note[0].lower()}{note[1:]}"
        return _section(title, _masked(player, turned, after, moved), "", note, change)
    shown = in_page(picture(turned, player.card.settings.invert))
    return _section(title, shown, _bars(player, after), note, change)


def _section(title: str, image: str, bars: str, note: str, change: str = "") -> str:
    return (
        f'<section data-title="{escape(title)}" data-change="{change}"><h3>{escape(title)}</h3>'
        f'<img src="{image}" alt="the picture">{bars}<p>{note}</p></section>'
    )


def _bars(player: Player, answer: Answer) -> str:
    largest = np.argsort(-answer)[:SHOWN] if player.card.task != "numbers" else np.arange(min(len(answer), SHOWN))
    full = 1.0 if player.card.task != "numbers" else float(np.abs(answer).max()) or 1.0
    return "".join(
        f'<div class="bar"><i style="width:{100 * min(abs(answer[i]) / full, 1):.1f}%"></i>'
        f"<span>{escape(player.card.classes[i])}</span><b>{answer[i]:.3f}</b></div>"
        for i in largest
    )


def _labels(answer: Answer) -> NDArray[Any]:
    """The label of each pixel."""
    return answer.argmax(0) if answer.ndim == 3 else answer >= 0.5


def _masked(player: Player, square: Square, answer: Answer, moved: NDArray[Any] | None = None) -> str:
    """The picture with the outline of its mask; pixels that moved are red."""
    regions = _labels(answer)
    margin = (square.shape[-1] - regions.shape[-1]) // 2
    inner = square[:, margin : margin + regions.shape[-2], margin : margin + regions.shape[-1]]
    shown = outlined(picture(inner, player.card.settings.invert), {FOUND: regions})
    if moved is not None:
        factor = len(shown) // len(moved)
        shown[moved.repeat(factor, 0).repeat(factor, 1)] = MOVED
    return in_page(shown)


def _number(change: float) -> str:
    return "0" if change < EXACT else f"{change:.3f}"
