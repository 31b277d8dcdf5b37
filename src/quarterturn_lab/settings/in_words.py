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
