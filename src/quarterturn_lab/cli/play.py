"""The command `play`: a page on which the user turns a picture and sees what networks say."""

from pathlib import Path

from quarterturn_lab.play import server
from quarterturn_lab.play.pair import Exhibit, organism, pairs
from quarterturn_lab.play.player import player_of
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.trust import Trust


def play(path: Path | None, port: int, trust: Trust) -> None:
    """Serve the page of a network, or of the built-in pairs, until it is interrupted."""
    server.check_installed()
    listening = server.bound(port)
    with listening:
        if path is not None:
            exhibits = [Exhibit("", [player_of(path, trust)], organism)]
        else:
            with Bars(interval=5.0) as bars:
                exhibits = pairs(lambda name, step, total, loss: bars.update(name, step, total, loss, 32))
        server.serve(exhibits, listening, lambda address: print(f"open {address} (Ctrl-C ends it)", flush=True))
