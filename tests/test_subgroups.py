"""Subgroups, groups of volumes, the groups of a spacing, and messages for a group of another number of axes."""

import itertools
from collections.abc import Callable

import pytest
import torch
from reference import ALL_GROUPS
from torch import nn

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, GROUPS, MIRROR, OCTA, OCTA_FULL, Group, GroupError, OptionError, ShapeError
from quarterturn.groups import generators_of
from quarterturn.point_groups import determinant

AXES = (1, 2, 3)


def closed(elements: set[tuple[int, ...]]) -> bool:
    return all(qt.compose(g, h) in elements for g in elements for h in elements)


@pytest.mark.parametrize(
    "group", [FLIP, C2, MIRROR, C4, D4, qt.about(D4, 2), qt.mirrors(1, 2, 3)], ids=lambda g: g.name
)
def test_the_subgroups_are_all_closed_sets(group: Group) -> None:
    found = [frozenset(one.elements) for one in qt.subgroups(group)]
    others = group.elements[1:]
    sets = (
        {group.elements[0], *chosen} for n in range(len(others) + 1) for chosen in itertools.combinations(others, n)
    )
    assert len(found) == len(set(found))
    assert set(found) == {frozenset(one) for one in sets if closed(one)}


@pytest.mark.parametrize(("group", "count", "classes"), [(OCTA, 30, 11), (OCTA_FULL, 98, 33)], ids=lambda g: str(g))
def test_the_subgroups_of_the_cube(group: Group, count: int, classes: int) -> None:
    # the numbers of subgroups of S4 and of S4 x C2, and of their classes, as tables of groups have them
    every, some = qt.subgroups(group), qt.subgroups(group, up_to_conjugacy=True)
    assert (len(every), len(some)) == (count, classes)
    assert set(some) <= set(every)
    assert every[0].order == 1
    assert set(every[-1].elements) == set(group.elements)
    for one in every:
        assert group.order % one.order == 0
        conjugates = {
            frozenset(qt.compose(qt.compose(g, h), group.elements[group.inverse[i]]) for h in one.elements)
            for i, g in enumerate(group.elements)
        }
        assert sum(frozenset(other.elements) in conjugates for other in some) == 1


def test_the_classes_of_the_cube_have_the_crystallographers_names() -> None:
    names = sorted(one.point_group for one in qt.subgroups(OCTA_FULL, up_to_conjugacy=True))
    assert len(set(names)) == 25  # the 32 crystallographic point groups without the seven hexagonal ones
    assert names.count("C2") == names.count("Cs") == names.count("D2") == names.count("D2d") == 2
    assert names.count("C2v") == 3
    assert (OCTA.point_group, OCTA_FULL.point_group, qt.about(D4, 1).point_group) == ("O", "Oh", "C4v")
    assert (C4.point_group, D4.point_group, MIRROR.point_group, FLIP.point_group) == ("C4", "D4", "D1", "D1")


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_a_subgroup_does_not_depend_on_its_generators(group: Group) -> None:
    for one in qt.subgroups(group):
        assert group.subgroup(*one.elements) == group.subgroup(*reversed(one.elements)) == one
        assert group.subgroup(*generators_of(one.elements)) == one
    assert set(group.subgroup().elements) == {group.elements[0]}


def test_a_subgroup_with_a_name_is_that_group() -> None:
    assert D4.subgroup((+2, -1)) is C4
    assert OCTA_FULL.subgroup((1, 3, -2), (3, 2, -1)) is OCTA
    assert OCTA_FULL.subgroup((1, 3, -2), (1, 2, -3)) is GROUPS["D4-1"]


def test_what_is_no_subgroup_is_refused() -> None:
    with pytest.raises(GroupError, match=r"\(1, -2\) is not an element of C4"):
        C4.subgroup((1, -2))
    with pytest.raises(GroupError, match="not a signed permutation"):
        C4.subgroup((1, 1))
    with pytest.raises(GroupError, match="expected a Group"):
        qt.subgroups("C4")  # type: ignore[arg-type]


def test_the_table_has_a_line_for_each() -> None:
    found = qt.subgroups(D4)
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found)
    assert all(line.startswith(group.name) for line, group in zip(lines[1:], found, strict=True))


@pytest.mark.parametrize("group", [C2, MIRROR, C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("axis", AXES)
def test_a_group_about_an_axis_turns_each_plane_alike(group: Group, axis: int) -> None:
    volume = torch.randn(2, 3, 4, 4, 4, dtype=torch.float64)
    lifted = qt.about(group, axis)
    assert lifted.table == group.table
    for g in range(group.order):
        turned = qt.act(volume, lifted, g)
        for i in range(4):
            plane = qt.act(volume.select(1 + axis, i), group, g)
            assert torch.equal(turned.select(1 + axis, i), plane)


def test_mirrors_reverse_their_axes() -> None:
    for count in AXES:
        for axes in itertools.combinations(AXES, count):
            expected = {
                tuple(-a if a in chosen else a for a in AXES)
                for n in range(4)
                for chosen in itertools.combinations(axes, n)
            }
            assert set(qt.mirrors(*axes).elements) == set(qt.mirrors(*reversed(axes)).elements) == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda: qt.mirrors(),
        lambda: qt.mirrors(0),
        lambda: qt.mirrors(1, 1),
        lambda: qt.mirrors([1, 2]),
        lambda: qt.about(C4, 4),
    ],
)
def test_axes_that_a_volume_does_not_have_are_refused(call: Callable[[], Group]) -> None:
    with pytest.raises(GroupError, match="the axes of a volume are 1, 2 and 3"):
        call()


def test_only_groups_of_the_plane_go_about_an_axis() -> None:
    with pytest.raises(GroupError, match="group of the plane"):
        qt.about(OCTA, 1)


@pytest.mark.parametrize(
    "spacing", [(1,), (1, 1), (1, 2), (1, 1, 1), (1, 1, 3), (3, 1, 1), (1, 3, 1), (1, 2, 3), (0.98, 0.99, 3)]
)
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("reflections", [False, True])
def test_the_group_of_a_spacing_has_all_of_its_symmetries(
    spacing: tuple[float, ...], flip: bool, reflections: bool
) -> None:
    def alike(i: int, j: int) -> bool:
        return abs(spacing[i] - spacing[j]) < 0.1

    alone = [not any(alike(i, j) for j in range(len(spacing)) if j != i) for i in range(len(spacing))]
    if all(alone) and not flip:
        with pytest.raises(OptionError, match="pass flip=True"):
            qt.for_spacing(spacing, flip=flip, reflections=reflections)
        return
    expected = set()
    for axes in itertools.permutations(range(len(spacing))):
        for signs in itertools.product((1, -1), repeat=len(spacing)):
            g = tuple(sign * (axis + 1) for sign, axis in zip(signs, axes, strict=True))
            fits = all(alike(i, axis) for i, axis in enumerate(axes))
            keeps = flip or all(sign > 0 or not alone[i] for i, sign in enumerate(signs))
            if fits and keeps and (reflections or determinant(g) > 0):
                expected.add(g)
    assert set(qt.for_spacing(spacing, flip=flip, reflections=reflections).elements) == expected


def test_the_tolerance_of_a_spacing() -> None:
    assert qt.for_spacing((0.98, 0.99, 0.99)) is OCTA_FULL
    assert qt.for_spacing((0.98, 0.99, 3), tolerance=0.02) is GROUPS["D4-3"]
    with pytest.raises(OptionError, match="no two of the spacings"):
        qt.for_spacing((0.98, 0.99, 3), tolerance=0)
    with pytest.raises(OptionError, match="give another tolerance"):
        qt.for_spacing((1, 1.04, 1.08))


@pytest.mark.parametrize(
    "spacing", [(), (1, 1, 1, 1), (1, 0), (1, -1), (1, float("nan")), (1, float("inf")), 3, "11", None]
)
def test_a_spacing_is_positive_numbers(spacing: object) -> None:
    with pytest.raises(OptionError, match="a spacing is a positive number"):
        qt.for_spacing(spacing)  # type: ignore[arg-type]


IMAGE, VOLUME = torch.randn(2, 8, 6, 6), torch.randn(2, 8, 6, 6, 6)
WRONG = pytest.mark.parametrize(
    ("group", "x", "hint"), [(D4, VOLUME, "for volumes use"), (OCTA, IMAGE, "for images use")]
)


@WRONG
@pytest.mark.parametrize("rotate", ["maps", "filters"])
def test_a_group_of_another_number_of_axes_is_refused_by_layers(
    group: Group, x: torch.Tensor, hint: str, rotate: str
) -> None:
    how = {"rotate": rotate}
    layers = [
        qt.SliceConv(group, 8, 2, 3, **how), qt.RollConv(group, 1, 2, 3, **how), qt.MaxPool(group, 2, **how),
        qt.BatchNorm(group, 8, **how), qt.Pool(group, **how), qt.Slice(group), qt.Roll(group),
    ]  # fmt: skip
    for layer in layers:
        with pytest.raises(ShapeError, match=hint):
            layer(x)


@WRONG
def test_a_group_of_another_number_of_axes_is_refused_by_convert(group: Group, x: torch.Tensor, hint: str) -> None:
    layer = nn.Conv3d if x.dim() == 5 else nn.Conv2d
    model = nn.Sequential(layer(8, 4, 3), nn.ReLU(), layer(4, 4, 3))
    with pytest.raises(ShapeError, match=hint):
        qt.convert(model, group, example=x)
    with pytest.raises(qt.ConversionError, match=hint):
        qt.convert(model, group)
    with pytest.raises(ShapeError, match=hint):
        qt.wrap(model, group)(x)
    with pytest.raises(ShapeError, match=hint):
        qt.assert_equivariant(model, group, x)


def test_what_is_no_element_and_no_tolerance_is_refused_and_tables_are_short() -> None:
    with pytest.raises(GroupError, match=r"got the group C4-1: give \*group.elements"):
        OCTA.subgroup(qt.about(C4, 1))  # type: ignore[arg-type]
    assert OCTA.subgroup(*qt.about(C4, 1).elements) == qt.about(C4, 1)
    for tolerance in (-1, 1.5, float("nan")):
        with pytest.raises(OptionError, match="tolerance is a fraction"):
            qt.for_spacing((1, 1, 3), tolerance=tolerance)
    assert repr(qt.subgroups(D4)).splitlines()[0].split()[:2] == ["name", "point"]
