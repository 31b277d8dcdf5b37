"""The command `check`: the equivariance of a trained network, layer by layer."""

from pathlib import Path

import quarterturn as qt
from quarterturn_lab.data.dataset import Dataset, Scenes
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.evaluation.score import examples, scene_error
from quarterturn_lab.runs.trained import load_with_data
from quarterturn_lab.runs.trust import Trust
from quarterturn_lab.settings.networks import AXES, group_for


def check_run(directory: Path, group_name: str | None, data_folder: str | None, whole: bool, trust: Trust) -> bool:
    """Print the symmetry law and the error of each layer. True if the network's output is equivariant."""
    config, data, net = load_with_data(directory, data_folder, trust)
    group = group_for(group_name or config.net.group or AXES[config.net.axes], config.net.axes)
    if whole and isinstance(data, Dataset):
        raise ConfigError(
            "--whole is for networks that label each pixel; this one labels whole images: leave --whole out"
        )
    images = examples(config, data, data.test[: 4 if config.net.axes == 2 else 1]).double()
    net = net.double()
    print(f"{'layer':>22}  {'kind':<16} {'law under ' + group.name:<24} relative error")
    for layer in qt.laws_by_layer(net, group, images):
        law = layer.law if layer.error < 1e-6 else "none"
        print(f"{layer.path:>22}  {layer.layer:<16} {law:<24} {layer.error:.1e}")
    try:
        qt.assert_equivariant(net, group, images)
    except qt.NotEquivariantError as error:
        print(f"\n{error}")
        return False
    worst = max(qt.equivariance_error(net, group, images).relative)
    print(f"\nequivariant to {group.name}: largest relative error of the output {worst:.1e}")
    if whole and isinstance(data, Scenes):
        for i in data.test:
            found = scene_error(config, net.float(), data, int(i), group)
            size = " x ".join(map(str, data.images[int(i)].shape[:0:-1]))
            print(f"{data.names[i]}, {size}: largest change of a probability in the mask {found:.1e}")
            if found > 1e-4:
                return False
    return True
