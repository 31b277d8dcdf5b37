"""Import this module, and timm loads exported networks: `timm.create_model("local-dir:DIR", pretrained=True)`."""

from typing import Any

from timm.models import build_model_with_cfg, register_model  # type: ignore[import-not-found]
from torch import nn

from quarterturn_lab.errors import ConfigError
from quarterturn_lab.hub import folder


def _build(
    settings: dict[str, Any],
    classes: list[str],
    num_classes: int,
    in_chans: int,
    img_size: int | tuple[int, int] | None = None,
    run_code: bool = False,
) -> nn.Module:
    channels, side = settings["net"]["channels"], settings["net"]["side"]
    if in_chans != channels:
        raise ConfigError(f"in_chans={in_chans}: this network takes {channels}")
    if img_size not in (None, side, (side, side), [side, side]):
        raise ConfigError(f"img_size={img_size}: this network takes images of {side} x {side}")
    names = tuple(classes) if num_classes == len(classes) else tuple(map(str, range(num_classes)))
    net = folder.network(settings, names, run_code)
    if num_classes != len(classes) and not hasattr(net, "output"):
        raise ConfigError(f"num_classes={num_classes}: this network has {len(classes)} outputs, and keeps them")
    vars(net)["num_classes"] = num_classes  # timm reads it
    return net


@register_model  # type: ignore[untyped-decorator]
def quarterturn_network(pretrained: bool = False, **options: Any) -> nn.Module:
    """A network of the lab. Its options come from config.json; another `num_classes` gives it a new output layer."""
    if "settings" not in options:
        raise ConfigError(
            f'{folder.ARCHITECTURE} is made from an exported folder: create_model("local-dir:DIR", pretrained=True)'
        )
    options["in_chans"] = options.get("in_chans", options["settings"]["net"]["channels"])
    return build_model_with_cfg(_build, folder.ARCHITECTURE, pretrained, kwargs_filter=("global_pool",), **options)
