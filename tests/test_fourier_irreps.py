"""Irreps of every group from its Cayley table, and the dense layers that they make cheap."""

import itertools

import numpy as np
import pytest
import torch
from reference import ALL_GROUPS

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, MIRROR, OCTA, OCTA_FULL, Group, generate
from quarterturn.fourier import group_linear
from quarterturn.fourier.irreps import irreps, products, transform
from quarterturn.kernel.structures import isomorphism, structure

each_group = pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)


@each_group
def test_irreps_are_representations(group: Group) -> None:
    for irrep in irreps(group):
        for g, h in itertools.product(range(group.order), repeat=2):
            np.testing.assert_allclose(
                irrep.matrices[g] @ irrep.matrices[h], irrep.matrices[group.table[g][h]], atol=1e-12
            )
        np.testing.assert_allclose(irrep.matrices @ irrep.matrices.transpose(0, 2, 1)[:, :, :], eyes(irrep), atol=1e-12)


def eyes(irrep) -> np.ndarray:
    return np.broadcast_to(np.eye(irrep.dimension), irrep.matrices.shape)


@each_group
def test_they_are_all_and_irreducible(group: Group) -> None:
    found = irreps(group)
    characters = np.array([np.trace(irrep.matrices, axis1=1, axis2=2) for irrep in found])
    np.testing.assert_allclose(
        characters @ characters.T / group.order, np.diag([irrep.commutant for irrep in found]), atol=1e-9
    )
    assert sum(irrep.dimension**2 // irrep.commutant for irrep in found) == group.order
    assert (found[0].matrices == 1).all()


@each_group
def test_the_transform_is_orthogonal_and_makes_translations_block_diagonal(group: Group) -> None:
    forward = transform(group)
    sizes = [group.order / irrep.dimension for irrep in irreps(group) for _ in range(irrep.dimension)]
    sizes = [
        group.order / irrep.dimension for irrep in irreps(group) for _ in range(irrep.dimension * len(irrep.columns))
    ]
    np.testing.assert_allclose(forward @ forward.T, np.diag(sizes), atol=1e-12)
    inside = np.zeros((group.order, group.order), dtype=bool)
    row = 0
    for irrep in irreps(group):
        for _ in irrep.columns:
            inside[row : row + irrep.dimension, row : row + irrep.dimension] = True
            row += irrep.dimension
    for s in range(group.order):
        translation = np.eye(group.order)[list(group.table[s])]  # (translation x)[h] = x[sh]
        block = forward @ translation @ np.linalg.inv(forward)
        np.testing.assert_allclose(block[~inside], 0, atol=1e-12)
        assert group.order == 2 or s == 0 or np.abs(block[inside]).max() > 0.5


@pytest.mark.parametrize("group", [FLIP, C2, MIRROR, C4, D4], ids=lambda g: g.name)
def test_small_groups_need_additions_only(group: Group) -> None:
    assert set(np.unique(transform(group))) <= {-1.0, 0.0, 1.0}


def test_how_many_products_are_left() -> None:
    assert [products(g) for g in (FLIP, C2, MIRROR, C4, D4, OCTA, OCTA_FULL)] == [2, 2, 2, 6, 12, 64, 128]


def test_groups_are_recognised_by_their_tables_alone() -> None:
    turned_about = generate("other name", (-2, +1))  # the other quarter turn first
    flips_first = generate("flips first", (+1, -2), (+2, +1))
    for group in (turned_about, flips_first, D4, C4, C2, MIRROR, FLIP):
        place = structure(group).place
        model = next(m for m in (C2, C4, D4) if m.order == group.order)
        for a, b in itertools.product(range(group.order), repeat=2):
            assert place[model.table[a][b]] == group.table[place[a]][place[b]]
    assert structure(generate("flips", (-1, 2), (1, -2))).exact == 1
    assert isomorphism(C4, generate("flips", (-1, 2), (1, -2))) is None
    assert structure(OCTA) is None
    assert structure(generate("none", (1, 2))) is None
    assert structure(generate("C4 of a volume", (1, 3, -2))) is None


@each_group
def test_dense_layers_are_the_definition(group: Group) -> None:
    x = torch.randn(3, 4 * group.order, dtype=torch.float64)
    weight = torch.randn(5, 4 * group.order, dtype=torch.float64)
    bias = torch.randn(5, dtype=torch.float64)
    wanted = qt.stack(torch.nn.functional.linear(qt.roll(qt.unstack(x, group), group), weight, bias), group)
    torch.testing.assert_close(group_linear(x, weight, bias, group), wanted)


def test_dense_layers_have_gradients_and_refuse_other_shapes() -> None:
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 8), (3, 8), (3,))]
    assert torch.autograd.gradcheck(lambda x, w, b: group_linear(x, w, b, C4), inputs)
    with pytest.raises(qt.ShapeError, match=r"stacked features \(N, in\*4\)"):
        group_linear(torch.zeros(2, 6), torch.zeros(3, 6), None, C4)
