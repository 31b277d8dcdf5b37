"""Pretrained weights from a local file, fitted to a network: names, outputs and channels may differ."""

import pickle
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from quarterturn_lab.errors import ConfigError

Weights = dict[str, Tensor]
# What torch raises for a damaged file.
UNREADABLE = (
    *(pickle.UnpicklingError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, AssertionError, ImportError, MemoryError, OSError, zipfile.BadZipFile, struct.error),
)
# Where files keep the weights beside other things, and what other code puts before their names.
NESTS = ("state_dict", "model_state_dict", "model", "net", "weights", "params")
PREFIXES = ("module.", "model.", "_orig_mod.", "net.", "backbone.", "encoder.")
ENOUGH = 0.8  # of the file's tensors, and of those of the network's parts that it is for
HEADS = 2  # layers that may have another shape: some networks have two heads


@dataclass(frozen=True)
class Fit:
    """What of a file goes into a network: by the network's names."""

    taken: Weights
    renewed: tuple[str, ...]  # in both, with other shapes
    missing: tuple[str, ...]  # not in the file
    unused: tuple[str, ...]  # not in the network


def load_weights(model: nn.Module, file: Path, name: str) -> list[str]:
    """Load what fits, and say what. A file that is for another network raises an error."""
    own = {key: value for key, value in model.state_dict().items() if not key.endswith("num_batches_tracked")}
    found = read(file)
    fits = [_fit(own, renamed) for renamed in _renamings(found, [name for name, _ in model.named_children()])]
    best = max(fits, key=lambda fit: len(fit.taken))
    _check(best, own, file, name)
    model.load_state_dict(best.taken, strict=False)
    return _said(best, own, file)


def read(file: Path) -> Weights:
    """The tensors in a file. No code in it runs: pickles of anything but tensors are refused."""
    try:
        found: Any = load_file(file) if file.suffix == ".safetensors" else _unpickled(file)
    except SafetensorError as error:
        raise ConfigError(f"--weights {file} is not a .safetensors file ({error}): give it its right name") from None
    for nest in NESTS:
        if isinstance(found, dict) and isinstance(found.get(nest), dict):
            found = found[nest]
            break
    tensors = {k: v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, dict) else {}
    if not tensors:
        raise ConfigError(f"--weights {file} holds no named tensors: save the network's state_dict()")
    return tensors


def refuse_compressed(file: Path | IO[bytes]) -> None:
    """Raise if a file of torch is compressed, which torch never does: a small one could become any size."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                raise ValueError("torch compresses nothing, and this is compressed")


def _unpickled(file: Path) -> Any:
    try:
        refuse_compressed(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise ConfigError(
                f"--weights {file} holds Python objects, and loading those could run any code: where you trust it, "
                "save its tensors alone, torch.save(model.state_dict(), FILE)"
            ) from None
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"--weights {file} cannot be read ({why}): give a .safetensors or .pth file") from None


def _renamings(found: Weights, parts: list[str]) -> list[Weights]:
    """The tensors under the names they may have in the network: a prefix less, and perhaps that of a part more."""
    names = [found]
    while len(shorter := _without_prefix(names[-1])) and shorter.keys() != names[-1].keys():
        names.append(shorter)
    return [*names, *({f"{part}.{k}": v for k, v in each.items()} for each in names for part in parts)]


def _without_prefix(found: Weights) -> Weights:
    for prefix in PREFIXES:
        if sum(name.startswith(prefix) for name in found) > len(found) / 2:
            return {name.removeprefix(prefix): value for name, value in found.items()}
    return found


def _fit(own: Weights, found: Weights) -> Fit:
    taken, renewed = {}, []
    for name in own.keys() & found.keys():
        value = _of_channels(found[name], own[name].shape)
        if value is None:
            renewed.append(name)
        else:
            taken[name] = value
    order = list(own)
    return Fit(
        taken,
        tuple(sorted(renewed, key=order.index)),
        tuple(name for name in order if name not in found),
        tuple(name for name in found if name not in own and not name.endswith("num_batches_tracked")),
    )


def _of_channels(value: Tensor, shape: torch.Size) -> Tensor | None:
    """The tensor if it has that shape, or a filter for colour images as one for so many channels: its mean, repeated.

    All channels together then weigh as much as the three colours did.
    """
    if value.shape == shape:
        return value
    if len(shape) == 4 and value.shape[1:2] == (3,) and value.shape[:1] + value.shape[2:] == shape[:1] + shape[2:]:
        return value.mean(1, keepdim=True).expand(shape) * (3 / shape[1])
    return None


def _check(fit: Fit, own: Weights, file: Path, name: str) -> None:
    parts = {key.partition(".")[0] for key in fit.taken}
    of_parts = [key for key in own if key.partition(".")[0] in parts and key not in fit.renewed]
    in_file = len(fit.taken) + len(fit.unused)
    other = {key.rpartition(".")[0] for key in fit.renewed}
    if fit.taken and len(other) <= HEADS and len(fit.taken) >= ENOUGH * max(len(of_parts), in_file):
        return
    some = next(iter((*fit.unused, *fit.missing, *fit.renewed)), "")
    raise ConfigError(
        f"--weights {file} is for another network than {name}: {len(fit.taken)} of its {len(own)} tensors fit, and not "
        f"{some}, say: give the file of this network, or another --backbone"
    )


def _said(fit: Fit, own: Weights, file: Path) -> list[str]:
    notes = [f"{len(fit.taken)} of {len(own)} tensors from {file.name}"]
    new = [*fit.renewed, *fit.missing]
    if new:
        some = ", ".join(new[:4]) + (f" and {len(new) - 4} more" if len(new) > 4 else "")
        notes.append(f"new, because the file has none of that form: {some}")
    if fit.unused:
        notes.append(f"not used of the file: {', '.join(fit.unused[:4])}" + (", ..." if len(fit.unused) > 4 else ""))
    return notes
