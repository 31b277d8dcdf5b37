"""Networks of other libraries, or of the user's own code, as they are or with a symmetry.

    timm:resnet18   torchvision:resnet18   smp:Unet/resnet18 (a label for each pixel)   package.module:function

`how` is what becomes of one: "convert" rewrites it so that its filters are shared between orientations, "wrap" runs it
on all orientations and averages, "plain" leaves it as it is.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import quarterturn as qt
from quarterturn.filters import Rotate
from quarterturn_lab.errors import ConfigError, unknown
from quarterturn_lab.models.layers import output_nonlinearity
from quarterturn_lab.models.libraries import from_factory, library
from quarterturn_lab.models.pretrained import load_weights
from quarterturn_lab.settings.networks import Net

ENCODER = "resnet18"  # of a network of smp whose name has none
COLOURS = 3  # channels of the images that libraries have in mind
FEW = 2  # maps of this side are worth a sentence


def backbone_network(
    spec: str,
    net: Net,
    how: str = "plain",
    rotate: Rotate = "filters",
    weights: Path | None = None,
    images: torch.Tensor | None = None,
) -> tuple[nn.Module, list[str]]:
    """The network for these channels, side, outputs and group, and what there is to say about its side and weights.

    By the `images`, `convert` finds pretrained filters that are turned copies of each other. Random numbers are those
    of torch's global generator.
    """
    model, notes = _made(spec, net)
    if weights is not None:
        notes += load_weights(model, weights, spec)
    if net.group is None:
        return _with_output(model, net), notes
    group = qt.named(net.group)
    if how == "wrap":
        return qt.wrap(_with_output(model, net), group), notes
    example = torch.zeros(2, net.channels, net.side, net.side)
    options: Any = {"rotate": rotate, "init": "scratch" if weights is None else "pretrained", "example": example}
    if weights is not None and images is not None:
        options["match"] = images
        notes.append(
            "convert averages pretrained filters over orientations, matched by their answers to "
            f"{len(images)} training images: a starting point. --how wrap keeps all that was learnt, at more time"
        )
    if net.invariants:
        try:
            return _with_output(qt.convert(model, group, head="invariants", **options), net), notes
        except qt.errors.ConversionError:
            pass  # it has no last layer that could see them: with the mean, or the reason why that fails too
    return _with_output(qt.convert(model, group, head="pool", **options), net), notes


def _with_output(model: nn.Module, net: Net) -> nn.Module:
    """The network with the nonlinearity behind its outputs, if there is one."""
    behind = output_nonlinearity(net)
    return nn.Sequential(OrderedDict(backbone=model, **behind)) if behind else model


def _made(spec: str, net: Net) -> tuple[nn.Module, list[str]]:
    """The network as its library makes it, in training mode, tried on images of this side, and what there is to say."""
    source, colon, name = spec.partition(":")
    if not colon or not name:
        raise ConfigError(
            f"--backbone {spec!r}: write timm:resnet18, torchvision:resnet18, smp:Unet/resnet18 for masks, or "
            "package.module:function"
        )
    if source in ("timm", "torchvision") and net.head == "conv":
        raise ConfigError(
            f"--backbone {spec} labels whole images, and here each pixel has a label: use smp:Unet/{ENCODER}, say"
        )
    if source == "smp" and net.head != "conv":
        raise ConfigError(f"--backbone {spec} labels pixels, and here whole images have labels: use timm:resnet18, say")
    make = {"timm": _of_timm, "torchvision": _of_torchvision, "smp": _of_smp}.get(source)
    if make is not None:
        model = make(name, net)
    else:
        model = from_factory(spec)(channels=net.channels, side=net.side, outputs=net.outputs)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--backbone {spec} returned {type(model).__name__}: return a torch.nn.Module")
    with _watched(model) as seen:
        _try(model, spec, net)
    return model.train(), _said_of_side(spec, net.side, min(seen, default=0))


def _of_timm(name: str, net: Net) -> nn.Module:
    timm = library("timm")
    if name not in timm.list_models():
        raise unknown("network of timm", name, timm.list_models())
    size = {"img_size": net.side} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    try:
        return timm.create_model(name, num_classes=net.outputs, in_chans=net.channels, **size)
    except (ValueError, AssertionError, RuntimeError, TypeError) as error:
        raise _unfit(f"timm:{name}", net, error) from None


def _of_torchvision(name: str, net: Net) -> nn.Module:
    models = library("torchvision").models
    if name not in models.list_models(module=models):
        raise unknown("network of torchvision for whole images", name, models.list_models(module=models))
    one_answer = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    size = {"image_size": net.side} if name.startswith("vit_") else {}
    try:
        model = models.get_model(name, weights=None, num_classes=net.outputs, **one_answer, **size)
    except (ValueError, AssertionError, RuntimeError, TypeError) as error:
        raise _unfit(f"torchvision:{name}", net, error) from None
    return _with_channels(model, net.channels)


def _of_smp(name: str, net: Net) -> nn.Module:
    smp = library("segmentation_models_pytorch")
    kind, _, encoder = name.partition("/")
    kinds = {made.__name__: made for made in smp.MODEL_ARCHITECTURES_MAPPING.values()}
    if kind not in kinds:
        raise unknown("network of segmentation_models_pytorch", kind, kinds)
    options = {"encoder_weights": None, "in_channels": net.channels, "classes": net.outputs}
    try:
        return kinds[kind](encoder or ENCODER, **options)
    except (ValueError, AssertionError, RuntimeError, KeyError, TypeError) as error:
        raise _unfit(f"smp:{name}", net, error) from None


def _with_channels(model: nn.Module, channels: int) -> nn.Module:
    """The network with a first convolution for another number of channels."""
    for path, layer in model.named_modules():
        if channels != COLOURS and isinstance(layer, nn.Conv2d) and layer.in_channels == COLOURS:
            options = {key: getattr(layer, key) for key in ("kernel_size", "stride", "padding", "dilation")}
            first = nn.Conv2d(channels, layer.out_channels, **options, bias=layer.bias is not None)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, first)
            break
    return model


def _try(model: nn.Module, spec: str, net: Net) -> None:
    """Run the network once: what it cannot take, or gives back in another form, is said before any training."""
    example = torch.zeros(2, net.channels, net.side, net.side)
    try:
        with torch.no_grad():
            found = model.eval()(example)
    except (ValueError, AssertionError, RuntimeError, TypeError, IndexError) as error:
        raise _unfit(spec, net, error) from None
    wanted = (2, net.outputs, *(example.shape[2:] if net.head == "conv" else ()))
    if not isinstance(found, torch.Tensor) or found.shape != wanted:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(f"--backbone {spec} gives {got} for two images, and {wanted} is needed: use another network")


def _unfit(spec: str, net: Net, error: Exception) -> ConfigError:
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ConfigError(
        f"--backbone {spec} does not take {net.channels} x {net.side} x {net.side} images ({why}): try another --side, "
        "such as 64, 128 or 224"
    )


# --- what there is to say about the side of its input -----------------------------------------------------------------


def _said_of_side(spec: str, side: int, smallest: int) -> list[str]:
    """Sentences about a side that is smaller than the network has in mind, or than its strides need."""
    notes, made_for = [], _made_for(spec)
    if side < made_for:
        notes.append(f"{spec} was made for {made_for} x {made_for} pixels and gets {side} x {side}")
    if 0 < smallest <= FEW:
        notes.append(
            f"its last convolutions see maps of {smallest} x {smallest}: give a larger --side, or a network with fewer "
            "strides"
        )
    return notes


def _made_for(spec: str) -> int:
    """The side of the images that a network was made for; 0 if that is not known."""
    source, _, name = spec.partition(":")
    if source == "timm":
        known = library("timm").get_pretrained_cfg(name)
        return int(known.input_size[-1]) if known else 0
    if source == "torchvision":
        return int(library("torchvision").models.get_model_weights(name).DEFAULT.transforms().crop_size[0])
    return 0


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[int]]:
    """The sides of the maps that convolutions of more than one pixel see."""
    seen: list[int] = []

    def look(layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if max(layer.kernel_size) > 1:
            seen.append(min(inputs[0].shape[2:]))

    hooks = [layer.register_forward_pre_hook(look) for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    yield seen
    for hook in hooks:
        hook.remove()
