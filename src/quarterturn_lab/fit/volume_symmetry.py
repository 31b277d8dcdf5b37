"""Which symmetry a set of volumes has: what the size of their voxels allows, and what short training speaks for.

One ordinary network is trained on volumes as they are, and scored on validation volumes that are mirrored along each
axis and turned about each. If volumes have no left and right, or no up, that cannot matter on average. So a clear loss
is evidence against a symmetry. What is left is made into a group.
"""

import numpy as np

import quarterturn as qt
from quarterturn_lab.data.dataset import Scenes
from quarterturn_lab.data.voxels import AXES
from quarterturn_lab.fit import symmetry
from quarterturn_lab.fit.symmetry import CLEAR, UP, Choice, Losses, Probe, lost

MOST = 8  # validation volumes that the probe is scored on, in up to seven orientations


def quarter_turn(axis: int) -> qt.Group:
    return qt.about(qt.C4, axis)


def choose(probe: Probe, data: Scenes, largest: qt.Group) -> Choice:
    """The symmetry that the losses of a probe speak for, within the largest group that there may be."""
    indices = symmetry.scored(data)[:MOST]

    def losses(group: qt.Group, g: int) -> Losses:
        return symmetry.image_losses(data.task, *symmetry.answers(probe, data, indices, group, g))

    upright = losses(qt.OCTA, 0)
    constant = symmetry.constant_loss(data, indices)
    moves = {f"mirrored along axis {axis}": (qt.mirrors(axis), 1) for axis in AXES}
    moves |= {f"turned about axis {axis}": (quarter_turn(axis), 1) for axis in AXES}
    possible = {name: move for name, move in moves.items() if move[0].elements[1] in largest.elements}
    after = {name: losses(*move) for name, move in possible.items()}
    return decide(upright, after, constant, largest)


def decide(upright: Losses, after: dict[str, Losses], constant: float, largest: qt.Group) -> Choice:
    """The largest group of turns and mirrors that lose nothing clear."""
    shares = {name: lost(upright, losses, constant) for name, losses in after.items()}
    kept = {name for name, (share, p) in shares.items() if not (share > UP and p < CLEAR)}
    mirrored = [axis for axis in AXES if f"mirrored along axis {axis}" in kept]
    turned = [axis for axis in AXES if f"turned about axis {axis}" in kept]
    learned = 1 - float(np.mean(upright)) / constant if constant else 0.0
    said = ", ".join(f"{name} {max(share, 0):.0%}" for name, (share, _) in shares.items())
    why = f"of what an ordinary network had learned, volumes lose: {said}"
    sure = learned >= symmetry.LEARNED and len(upright) >= MOST
    if learned < symmetry.LEARNED:
        return Choice("none", "the trial was too short to tell which way volumes may be turned", False, learned=learned)
    if len(turned) == len(AXES):
        group = qt.OCTA_FULL if mirrored else qt.OCTA
    elif turned:
        group = qt.about(qt.D4, turned[0]) if len(mirrored) > 1 else quarter_turn(turned[0])
    elif mirrored:
        group = qt.mirrors(*mirrored)
    else:
        return Choice("none", why, sure, learned=learned)
    return Choice(group.name if set(group.elements) <= set(largest.elements) else "none", why, sure, learned=learned)
