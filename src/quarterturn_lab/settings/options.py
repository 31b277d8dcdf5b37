"""The settings that are options too: those with a description, which is their help text."""

from typing import Any, get_type_hints

from pydantic.fields import FieldInfo

from quarterturn_lab.settings.config import Augment, Config, ImageSettings
from quarterturn_lab.settings.networks import Net

Options = dict[str, tuple[Any, str]]  # name -> type, description


def options_of(model: type) -> Options:
    """The settings of a model or data class that have a description.

    >>> options_of(Net)["side"]
    (<class 'int'>, "Side of the network's input, in pixels.")
    """
    found: Options = {}
    for name, hint in get_type_hints(model, include_extras=True).items():
        notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, FieldInfo) and note.description]
        if notes:
            found[name] = (hint.__origin__, str(notes[0].description))
    return found


IMAGES, NETWORK, WARPS = options_of(ImageSettings), options_of(Net), options_of(Augment)
TRAINING = {name: option for name, option in options_of(Config).items() if name not in IMAGES}
STAGES: Options = {  # read by `restaged` and `resized`
    "stages": (str, "Number of convolutions before each spatial pooling, such as 2-2-4-2; of blocks in residual rows."),
    "width": (int, "Maps of the first stage of a residual row; each later stage has twice as many."),
    "blocks": (int, "Blocks in each stage of a residual row."),
    "hidden": (int, "Features of a layer before the last of a residual row, in every orientation. Default: no layer."),
}

HEADINGS = {
    "Training": TRAINING,
    "Network": {**NETWORK, **STAGES},
    "Reading images": IMAGES,
    "Augmentation of training images": WARPS,
}

# `fit` takes the folder by itself and calls the group a symmetry.
FIT_HEADINGS = {
    heading: {name: option for name, option in options.items() if name not in ("data", "group")}
    for heading, options in HEADINGS.items()
}
