"""The real irreducible representations (irreps) of a group, from its Cayley table, and its Fourier transform."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from quarterturn.groups import Group

Matrices = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Irrep:
    """A real irrep: orthogonal matrices `(G, d, d)`, one for each element.

    `commutant` is the dimension m of the matrices that commute with all of them: 1 real, 2 complex, 4 quaternionic.
    `columns` are d/m columns whose entries, as functions on the group, are linearly independent.
    """

    matrices: Matrices
    commutant: int
    columns: tuple[int, ...]

    @property
    def dimension(self) -> int:
        """The number d of rows and columns of the matrices."""
        return self.matrices.shape[1]


@lru_cache(maxsize=64)
def irreps(group: Group) -> tuple[Irrep, ...]:
    """The real irreps of a group, the trivial one first, with entries 0, 1 and -1 where possible.

    The eigenspaces of a random symmetric matrix that commutes with the regular representation are irreducible. Then
    `_signed_permutations` looks for a basis in which the matrices of an irrep are signed permutations.

    >>> from quarterturn import C4, D4
    >>> [irrep.dimension for irrep in irreps(C4)], [irrep.dimension for irrep in irreps(D4)]
    ([1, 1, 2], [1, 1, 1, 1, 2])
    """
    order = group.order
    table = np.array(group.table)
    identity = np.eye(order)
    left = np.stack([identity[:, table[g]] for g in range(order)])  # left[g][gh, h] = 1
    numbers = np.random.default_rng(0).standard_normal(order)
    numbers = numbers + numbers[list(group.inverse)]
    commuting = sum(numbers[g] * identity[table[:, g]] for g in range(order))
    values, vectors = np.linalg.eigh(commuting)
    borders = [0, *(np.flatnonzero(np.diff(values) > 1e-6) + 1), order]
    found: dict[tuple[float, ...], Irrep] = {}
    for start, end in itertools.pairwise(borders):
        basis = vectors[:, start:end]
        matrices = np.einsum("ia,gij,jb->gab", basis, left, basis)
        character = tuple(np.round(np.trace(matrices, axis1=1, axis2=2), 6) + 0.0)
        if character not in found:
            commutant = round(sum(c * c for c in character) / order)
            monomial = _signed_permutations(matrices, group)
            found[character] = Irrep(monomial, commutant, _independent_columns(monomial, commutant))
    ordered = sorted(found, key=lambda character: (character[0], [-c for c in character]))
    return tuple(found[character] for character in ordered)


def transform(group: Group) -> Matrices:
    """The Fourier transform `(G, G)`: a row rho(g)[a, b] over g, for each irrep rho, each of its columns b, each a.

    The rows are orthogonal, with squared norm |G|/d. In this basis the layer y[h] = sum W[s] x[sh] is block diagonal.
    """
    rows = [irrep.matrices[:, a, b] for irrep in irreps(group) for b in irrep.columns for a in range(irrep.dimension)]
    return np.stack(rows)


def products(group: Group) -> int:
    """How many products the Fourier basis needs instead of |G|^2: the sum of d^3/m over the irreps.

    >>> from quarterturn import C4, D4, OCTA
    >>> products(C4), products(D4), products(OCTA)
    (6, 12, 64)
    """
    return sum(irrep.dimension**3 // irrep.commutant for irrep in irreps(group))


def _independent_columns(matrices: Matrices, commutant: int) -> tuple[int, ...]:
    dimension = matrices.shape[1]
    columns: list[int] = []
    for b in range(dimension):
        functions = matrices[:, :, [*columns, b]].reshape(len(matrices), -1)
        if np.linalg.matrix_rank(functions, tol=1e-6) == functions.shape[1]:
            columns.append(b)
    assert len(columns) == dimension // commutant
    return tuple(columns)


def _signed_permutations(matrices: Matrices, group: Group) -> Matrices:
    """The same representation in a basis where its matrices are signed permutations; unchanged if none is found."""
    for vector in _candidates(matrices, group):
        orbit = matrices @ vector
        basis: list[npt.NDArray[np.float64]] = []
        for v in orbit:
            overlaps = [abs(float(v @ b)) for b in basis]
            if all(overlap < 1e-6 for overlap in overlaps):
                basis.append(v)
            elif max(overlaps) < 1 - 1e-6:
                break
        else:
            if len(basis) == len(vector):
                change = np.stack(basis, axis=1)
                exact = np.einsum("ia,gij,jb->gab", change, matrices, change)
                return np.round(exact) + 0.0
    return matrices


def _candidates(matrices: Matrices, group: Group) -> Iterator[npt.NDArray[np.float64]]:
    """Vectors that a subgroup fixes up to sign, for all subgroups with two generators and all signs of these."""
    everyone = range(group.order)
    for pair in itertools.combinations_with_replacement(everyone, 2):
        for signs in itertools.product((1, -1), repeat=2):
            character = {0: 1}
            fresh, consistent = [0], True
            while fresh and consistent:
                h = fresh.pop()
                for g, sign in zip(pair, signs, strict=True):
                    product, value = group.table[g][h], sign * character[h]
                    if product not in character:
                        character[product] = value
                        fresh.append(product)
                    consistent = consistent and character[product] == value
            if not consistent:
                continue
            projection = sum(sign * matrices[h] for h, sign in character.items()) / len(character)
            values, vectors = np.linalg.eigh((projection + projection.T) / 2)
            if values[-1] > 0.5:
                yield vectors[:, -1]
