"""The page: a picture to drop or draw, a slider that turns it, and the answers. Needs gradio (the extra play)."""

import gradio as gr  # type: ignore[import-not-found]
import numpy as np

from quarterturn_lab.play import view
from quarterturn_lab.play.pair import organism
from quarterturn_lab.play.player import Picture, Player, Square, picture_of

CANVAS = 256  # pixels of the side of a drawing
FIRST = 4  # the organism that is there at the start

TWO = (
    "Turn the picture. Both networks learnt the same ten kinds of organisms, from the same drawings, equally often. At "
    "quarter turns the equivariant one gives **exactly** the same answer. Between them pixels are interpolated, so the "
    "picture itself changes."
)
ONE = "Turn the picture, and see what **{}** says. An equivariant network gives the same answer at quarter turns."


def page(players: list[Player]) -> "gr.Blocks":
    """The page of one network or of two."""
    first = players[0]
    inverted = first.card.settings.invert
    start, kind = organism(FIRST, CANVAS if first.card.is_dense else first.card.settings.side)
    start = 255 - start if inverted else start
    ground = np.full((CANVAS, CANVAS, 3), 255 if inverted else 0, dtype=np.uint8)

    def show(square: Square, degrees: float) -> str:
        return view.answers(players, square, degrees)

    def take(given: object, degrees: float) -> tuple[Square, str, str, str]:
        found = picture_of(given)
        square = first.square(start if found is None else found)
        return square, show(square, degrees), view.at_quarters(players, square), view.curve(players, square)

    def another(count: int) -> tuple[int, Picture, str]:
        drawn, name = organism(count, start.shape[0])
        return count + 1, 255 - drawn if inverted else drawn, f"A drawn organism: {name}"

    with gr.Blocks(title="quarterturn", analytics_enabled=False) as blocks:
        gr.Markdown(f"# quarterturn\n{TWO if len(players) > 1 else ONE.format(_plain(first.title))}")
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
                        elem_id="dropped",
                    )
                    next_one, about = gr.Button("Another organism"), gr.Markdown(f"A drawn organism: {kind}")
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
                angle = gr.Slider(0, 360, 0, step=1, label="Turn clockwise, degrees", elem_id="angle")
                with gr.Row():
                    quarters = [gr.Button(f"{degrees}°", min_width=50, size="sm") for degrees in (0, 90, 180, 270)]
                answers = gr.HTML(show(square.value, 0), elem_id="answers")
        turns = gr.HTML(view.at_quarters(players, square.value), elem_id="turns")
        line = gr.HTML(view.curve(players, square.value), elem_id="curve")
        seen = [square, answers, turns, line]
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        dropped.change(take, [dropped, angle], seen, **quiet)
        dropped.upload(lambda: "", None, about, **quiet)  # it is no organism of ours
        use.click(take, [drawn, angle], seen, **quiet)
        next_one.click(another, [count], [count, dropped, about], **quiet)
        angle.change(show, [square, angle], answers, trigger_mode="always_last", **quiet)
        for degrees, button in zip((0, 90, 180, 270), quarters, strict=True):
            button.click(lambda degrees=degrees: degrees, None, angle, **quiet)
    return blocks


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    return "".join(letter if letter.isalnum() or letter in " .-" else f"\\{letter}" for letter in text)
