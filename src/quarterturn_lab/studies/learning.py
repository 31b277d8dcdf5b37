"""What holds rolled networks back when steps are few: capacity, step size, batch norm or the head?

All networks take as many steps, on the same images, and are judged on validation images. One thing is changed at a
time.
"""

from typing import Any

from quarterturn_lab.studies.definition import TURNED, Case, Entry, Question, Study, Takeaway

EPOCHS = 8
STEPS = 504  # 63 batches of 32 in an epoch
VARIANTS = "quarterturn_lab.models.variants:"


def _entry(row: str, width: int = 32, **options: Any) -> Entry:
    own: dict[str, Any] = {"width": width, "blocks": 1, "epochs": EPOCHS, **options}
    return Entry("recipe-plankton-2000", row, 3, own)


ORDINARY, NARROW = (_entry("residual-plain", width) for width in (32, 16))
ROLLED, WIDE = (_entry("residual-c4", width) for width in (32, 64))
LARGER, LARGER_ORDINARY = (_entry(row, lr=8e-3) for row in ("residual-c4", "residual-plain"))
APART = Entry(
    "recipe-plankton-2000", "residual-plain", 3, {"factory": f"{VARIANTS}residual_c4_norms_apart", "epochs": 8}
)
HEAD, WIDE_HEAD = (_entry("residual-c4", width, invariants=True) for width in (32, 64))
BOTH = _entry("residual-c4", lr=8e-3, invariants=True)

LEARNING = Study(
    "Plankton, what slows learning down",
    f"{STEPS} steps: why is a rolled network with a mean at its head behind an ordinary one?",
    f"2,014 training images of 121 classes, 48 x 48 pixels, {EPOCHS} epochs of 63 steps for every network, whatever "
    "its cost. One thing is changed at a time.",
    (ORDINARY, NARROW, ROLLED, WIDE, LARGER, LARGER_ORDINARY, APART, HEAD, WIDE_HEAD, BOTH),
    tuple(Takeaway(entry.label, (ROLLED.label,)) for entry in (HEAD, WIDE, LARGER, APART)),
    (
        Question(ROLLED.label, ORDINARY.label, "the same number of maps: what is to be explained"),
        Question(ROLLED.label, f"{ORDINARY.label}{TURNED}", "the same, with turns averaged"),
        Question(NARROW.label, ORDINARY.label, "capacity: a quarter of the parameters, without rolling"),
        Question(ROLLED.label, NARROW.label, "capacity: rolled or not, with the same number of parameters"),
        Question(WIDE.label, ROLLED.label, "capacity: as many parameters as the ordinary network of 32 maps"),
        Question(LARGER.label, ROLLED.label, "step size"),
        Question(LARGER_ORDINARY.label, ORDINARY.label, "step size"),
        Question(APART.label, ROLLED.label, "batch norm: statistics of each orientation by itself"),
        Question(HEAD.label, ROLLED.label, "the head: 256 numbers for the last layer, not 32"),
        Question(HEAD.label, f"{ORDINARY.label}{TURNED}", "the head: against the ordinary network, turns averaged"),
        Question(WIDE_HEAD.label, HEAD.label, "capacity, when the head is wide enough"),
        Question(BOTH.label, HEAD.label, "step size, when the head is wide enough", later=True),
        Question(BOTH.label, f"{LARGER_ORDINARY.label}{TURNED}", "head and step size", later=True),
    ),
    ("One set, one kind of network. Longer training may give another order.",),
    judged="validation",
    cases=(
        Case("as many maps", ROLLED.label, ORDINARY.label),
        Case("a quarter of the parameters", ROLLED.label, NARROW.label),
        Case("as many parameters", WIDE.label, ORDINARY.label),
        Case("twice the learning rate", LARGER.label, LARGER_ORDINARY.label),
        Case("batch norm for each orientation", APART.label, ORDINARY.label),
        Case("invariants at the head", HEAD.label, ORDINARY.label),
        Case("head and learning rate", BOTH.label, f"{LARGER_ORDINARY.label}{TURNED}"),
    ),
)
