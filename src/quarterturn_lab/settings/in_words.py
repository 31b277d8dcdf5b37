"""Settings of a run as text, for reports and pages."""

from quarterturn_lab.settings.config import Config


def training_in_words(config: Config) -> str:
    """The optimiser, its learning rate over the run, and the options of training that are used.

    >>> from quarterturn_lab.settings.experiments import config_for
    >>> training_in_words(config_for("plankton-small", "baseline"))
    'Adam, learning rate 0.001, divided by ten at 75% and 92% of the run'
    >>> training_in_words(config_for("folder", "baseline", optimizer="adamw", schedule="cosine", warmup=9.0, ema=0.99))
    'AdamW, learning rate 0.001, lowered to zero along a cosine; warm-up over 9 steps; weights averaged with decay 0.99'
    """
    name = {"adam": "Adam", "adamw": "AdamW", "sgd": f"SGD with Nesterov momentum {config.momentum:g}"}[
        config.optimizer
    ]
    drops = f"divided by ten at {' and '.join(f'{drop:.0%}' for drop in config.drops)} of the run"
    warm = f"{config.warmup:.0%} of the run" if config.warmup < 1 else f"{config.warmup:g} steps"
    extras = {
        f"warm-up over {warm}": config.warmup,
        f"weights averaged with decay {config.ema:g}": config.ema,
        f"label smoothing {config.label_smoothing:g}": config.label_smoothing,
        "classes drawn equally often": config.balanced,
        "best weights on validation": config.keep == "best",
    }
    fall = drops if config.schedule == "drops" else "lowered to zero along a cosine"
    return "; ".join([f"{name}, learning rate {config.lr:g}, {fall}", *(text for text, used in extras.items() if used)])


METHODS = {
    "stack": "orientations are put side by side before the dense layers, which treat them differently",
    "oriented-max": "filters are turned and flipped, and the strongest answer counts",
    "gradual-pool": "orientations are pooled in pairs, on the way",
    "symmetric": "filters are symmetric themselves",
}
SHARES = {2: "half", 4: "a quarter", 8: "an eighth"}


def network_in_words(config: Config) -> str:
    """What a row's network does with orientations, in a sentence.

    >>> from quarterturn_lab.settings.experiments import config_for
    >>> network_in_words(config_for("synthetic", "baseline"))
    'an ordinary network'
    >>> network_in_words(config_for("synthetic", "pool-mean"))
    '4 orientations of the image go through the same layers (slice); at the end their mean is taken (pool)'
    >>> network_in_words(config_for("synthetic", "roll-all-quarter")).split("; ")[-1]
    'layers see all orientations of a feature (roll), with a quarter of the filters'
    """
    net, own = config.net, config.backbone or config.factory
    if own:
        return f"{own}{f', made equivariant to {net.group}' if net.group else ', as it is'}"
    width = f", with {SHARES.get(net.divide, f'1/{net.divide}')} of the filters" if net.divide > 1 else ""
    width = f", with {net.widen} times the filters" if net.widen > 1 else width
    kind = ("ConvNeXt-like " if net.convnext else "residual " if net.residual else "") + "network"
    if not net.group:
        return f"an ordinary {kind}{width}{'' if net.relu else ', without its last ReLU'}"
    if net.method != "pool":
        return f"related work ({net.group}): {METHODS[net.method]}"
    layers = "the same layers of a residual network" if net.residual else "the same layers"
    sliced = f"{net.pathways} orientations of the image go through {layers} (slice)"
    pooled = f"at the end their {net.pool} is taken{', after a ReLU' if net.relu and not net.residual else ''} (pool)"
    rolled = {"none": "", "dense": "; dense layers see all of them (roll)"}.get(
        net.roll, "; layers see all orientations of a feature (roll)"
    )
    return f"{sliced}; {pooled}{rolled}{width}"
