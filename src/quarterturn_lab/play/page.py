"""The page: a picture to drop or draw, a slider that turns it, and the answers. Needs gradio (the extra play)."""

import gradio as gr  # type: ignore[import-not-found]
import numpy as np

from quarterturn_lab.play import view
from quarterturn_lab.play.pair import Exhibit
from quarterturn_lab.play.player import Picture, Square, picture_of

CANVAS = 256  # pixels of the side of a drawing
FIRST = 6  # the drawing that is there at the start: the ordinary network is not sure of it

TWO = (
    "Turn the picture. At quarter turns the equivariant network gives **exactly** the same answer. Between them pixels "
    "are interpolated, so the picture itself changes."
)
CLASSES = "Both networks learnt the same ten kinds of organisms, from the same drawings, equally often."
MASKS = (
    "Both networks learnt to outline cells, from the same drawings, equally often. At quarter turns the mask of the "
    "equivariant one turns with the picture. <span style='color:#d1495b'>Red</span>: where a mask does not."
)
ONE = "Turn the picture, and see what **{}** says. An equivariant network gives the same answer at quarter turns."


def page(exhibits: list[Exhibit]) -> "gr.Blocks":
    """The page: one exhibit, or a tab for each."""
    players = exhibits[0].players
    with gr.Blocks(title="quarterturn", analytics_enabled=False) as blocks:
        gr.Markdown(f"# quarterturn\n{TWO if len(players) > 1 else ONE.format(_plain(players[0].title))}")
        if len(exhibits) == 1:
            _show(exhibits[0], "")
        else:
            for number, exhibit in enumerate(exhibits):
                with gr.Tab(exhibit.name):
                    gr.Markdown(MASKS if exhibit.players[0].card.is_dense else CLASSES)
                    _show(exhibit, f"tab{number}-" if number else "")
    return blocks


def _show(exhibit: Exhibit, key: str) -> None:
    """A picture, what turns it, and the answers. `key` begins the names of its parts in the page."""
    players = exhibit.players
    first = players[0]
    inverted = first.card.settings.invert
    start, kind = exhibit.sample(FIRST, CANVAS if first.card.is_dense else first.card.settings.side)
    start = 255 - start if inverted else start
    ground = np.full((CANVAS, CANVAS, 3), 255 if inverted else 0, dtype=np.uint8)

    def show(square: Square, degrees: float) -> str:
        return view.answers(players, square, degrees)

    def take(given: object) -> Square:
        found = picture_of(given)
        return first.square(start if found is None else found)

    def all_turns(square: Square) -> tuple[str, str]:
        return view.at_quarters(players, square), view.curve(players, square)

    def another(count: int) -> tuple[int, Picture, str]:
        drawn, about = exhibit.sample(count, start.shape[0])
        return count + 1, 255 - drawn if inverted else drawn, about

    square, count = gr.State(first.square(start)), gr.State(FIRST + 1)
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            with gr.Tab("Drop"):
                dropped = gr.Image(
                    start,
                    type="numpy",
                    sources=["upload", "clipboard"],
                    label="Drop an image here",
                    height=280,
                    format="png",
                    elem_id=f"{key}dropped",
                    elem_classes="qt-dropped",
                )
                next_one, about = gr.Button("Another drawing"), gr.Markdown(kind)
            with gr.Tab("Draw"):
                drawn = gr.Sketchpad(
                    {"background": ground, "layers": [], "composite": ground},
                    type="numpy",
                    label="Draw",
                    canvas_size=(CANVAS, CANVAS),
                    brush=gr.Brush(14, ["#000000" if inverted else "#ffffff", "#808080"], color_mode="fixed"),
                    layers=False,
                    format="png",
                    transforms=[],
                    height=360,
                )
                use = gr.Button("Use the drawing", variant="primary")
        with gr.Column(scale=3, min_width=300):
            angle = gr.Slider(0, 360, 0, step=1, label="Turn clockwise, degrees", elem_id=f"{key}angle")
            with gr.Row():
                quarters = [gr.Button(f"{degrees}°", min_width=50, size="sm") for degrees in (0, 90, 180, 270)]
            answers = gr.HTML(show(square.value, 0), elem_id=f"{key}answers")
    turns = gr.HTML(view.at_quarters(players, square.value), elem_id=f"{key}turns")
    line = gr.HTML(view.curve(players, square.value), elem_id=f"{key}curve")
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    for given, event in ((dropped, dropped.change), (drawn, use.click)):
        # One after the other: the slider may have moved by then, and `show` asks it anew.
        taken = event(take, given, square, **quiet).then(show, [square, angle], answers, **quiet)
        taken.then(all_turns, square, [turns, line], **quiet)
    dropped.upload(lambda: "", None, about, **quiet)  # it is no drawing of ours
    next_one.click(another, [count], [count, dropped, about], **quiet)
    angle.change(show, [square, angle], answers, trigger_mode="always_last", **quiet)
    for degrees, button in zip((0, 90, 180, 270), quarters, strict=True):
        button.click(lambda degrees=degrees: degrees, None, angle, **quiet)


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    return "".join(letter if letter.isalnum() or letter in " .-" else f"\\{letter}" for letter in text)
