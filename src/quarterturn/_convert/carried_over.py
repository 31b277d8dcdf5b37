"""What a network has beside its layers, and must not lose: frozen and tied parameters, modes, hooks."""

from collections.abc import Collection, Iterator

from torch import nn

from quarterturn.errors import ConversionError
from quarterturn.graph.refusal import RefusedParts

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def carry_over(old: nn.Module, new: nn.Module, plain: Collection[str] = ()) -> list[str]:
    """Give the new network what the old one has beside its layers; returns notes for the report.

    `plain` are the paths of parts that are in the new network as they were: they stand there as `part`.
    """
    _freeze(old, new, plain)
    _tie(old, new, plain)
    _set_modes(old, new, plain)
    return _notes_on_hooks(old, new, plain)


def old_path(path: str, plain: Collection[str]) -> str:
    """The name that a module or parameter of the new network has in the old one.

    >>> old_path("block.part.conv.weight", ["block"]), old_path("head.weight", ["block"])
    ('block.conv.weight', 'head.weight')
    """
    for outer in plain:
        if f"{path}.".startswith(f"{outer}.part."):
            return outer + path[len(outer) + len(".part") :]
    return path


def _freeze(old: nn.Module, new: nn.Module, plain: Collection[str]) -> None:
    """Parameters that were not trained are not trained."""
    trained = {name: p.requires_grad for name, p in old.named_parameters(remove_duplicate=False)}
    for name, parameter in new.named_parameters(remove_duplicate=False):
        parameter.requires_grad_(trained.get(old_path(name, plain), parameter.requires_grad))


def names_of_tied(model: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def _tie(old: nn.Module, new: nn.Module, plain: Collection[str]) -> None:
    """Parameters that were one stay one."""
    there = dict(new.named_parameters(remove_duplicate=False))
    new_names = {old_path(name, plain): name for name in there}
    for names in names_of_tied(old):
        kept = [new_names[name] for name in names if name in new_names]
        for name in kept[1:]:
            if there[name].shape != there[kept[0]].shape:
                raise ConversionError(
                    f"{kept[0]!r} and {name!r} are one parameter, but become two of different shapes, "
                    f"{tuple(there[kept[0]].shape)} and {tuple(there[name].shape)}: untie them first"
                )
            path, _, attribute = name.rpartition(".")
            setattr(new.get_submodule(path), attribute, there[kept[0]])


def _set_modes(old: nn.Module, new: nn.Module, plain: Collection[str]) -> None:
    """Every module is in the mode of the old one of its name, or of the nearest around it."""
    modes = {path: module.training for path, module in old.named_modules(remove_duplicate=False)}
    for path, module in new.named_modules(remove_duplicate=False):
        module.training = next(modes[outer] for outer in _outwards(old_path(path, plain)) if outer in modes)


def _outwards(path: str) -> Iterator[str]:
    """A path and those of the modules around it: "a.b", "a", ""."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def _notes_on_hooks(old: nn.Module, new: nn.Module, plain: Collection[str]) -> list[str]:
    """Refuse layers that lose hooks, which may change what they give, and name the modules that are no more."""
    there = {old_path(path, plain): module for path, module in new.named_modules(remove_duplicate=False)}
    lost, notes = [], []
    for path, module in old.named_modules():
        if not _has_hooks(module) or (path in there and any(map(_has_hooks, there[path].modules()))):
            continue
        if any(True for _ in module.children()):
            notes.append(f"{path or 'the network'}: its hooks are left out")
        else:
            lost.append(path)
    norms = [path for path in lost if _has_norm_of_weights(old.get_submodule(path))]
    if norms:
        why = "its weight is computed by a hook, as torch's older weight norm and spectral norm do"
        raise RefusedParts(f"{norms[0]}: {why}: remove it first", dict.fromkeys(norms, why), {})
    if lost:
        what = ", ".join(f"{path!r} ({type(old.get_submodule(path)).__name__})" for path in lost)
        raise ConversionError(
            f"these layers have hooks, which would be lost: {what}. Remove them, and register them on the converted "
            "network"
        )
    return notes


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in HOOKS)


def _has_norm_of_weights(module: nn.Module) -> bool:
    hooks = module._forward_pre_hooks.values()
    return any(type(hook).__module__.startswith("torch.nn.utils.") for hook in hooks)
