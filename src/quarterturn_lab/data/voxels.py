"""Which turns and mirrors the size of voxels allows: an element may exchange axes of equal spacing alone."""

from collections.abc import Iterable, Sequence

import quarterturn as qt
from quarterturn_lab.errors import ConfigError
from quarterturn_lab.settings.networks import group_for

AXES = (1, 2, 3)


def allowed(spacings: Iterable[tuple[float, ...]]) -> qt.Group:
    """The largest group that the spacing of every volume allows."""
    elements = set(qt.OCTA_FULL.elements)
    for spacing in set(spacings):
        try:
            elements &= set(qt.for_spacing(spacing, flip=True).elements)
        except qt.errors.OptionError:  # nearly equal spacings are not exchanged
            elements &= set(qt.mirrors(*AXES).elements)
    return qt.OCTA_FULL.subgroup(*elements)


def turns_of(spacing: tuple[float, ...]) -> qt.Group:
    """The turns that a spacing allows, without mirrors.

    >>> turns_of((1, 1, 1)).name, turns_of((1, 1.04, 1.08)).order
    ('octa', 4)
    """
    return qt.OCTA.subgroup(*set(qt.OCTA.elements) & set(allowed([spacing]).elements))


def check(name: str, spacings: Sequence[tuple[float, ...]]) -> qt.Group:
    """The group of that name, if the voxels of all volumes allow it."""
    group, largest = group_for(name, 3), allowed(spacings)
    if set(group.elements) <= set(largest.elements):
        return group
    wrong = next(each for each in spacings if not set(group.elements) <= set(allowed([each]).elements))
    size = " x ".join(f"{side:g}" for side in wrong)
    turns = next((f"D4-{axis}" for axis in AXES if set(qt.named(f"D4-{axis}").elements) <= set(largest.elements)), None)
    better = f"{turns}, or {largest.name} with all mirrors" if turns else f"{largest.name}, or a mirror of one axis"
    raise ConfigError(f"{group.name} exchanges axes, and voxels of {size} mm are not cubes: use {better}")
