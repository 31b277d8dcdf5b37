"""The Fourier transform of a group as a list of additions, in an order that makes layers equivariant to the bit.

A layer on the group is y[h] = sum W[s] f(sh). For an irrep rho, `f^ = sum f(t) rho(t)` gives `y^ = W^^T f^` with
`W^ = sum W[s] rho(s)`. Turning the input by g translates f to f(tg), which multiplies f^ by rho(g^-1) from the right:
the columns of f^ are exchanged and change signs, if rho's matrices are signed permutations. The bits follow if three
things hold, and they are arranged here:

- A number F[j, b] of f^, the sum of +-f(t) over all t that take line b to line j, is added up along a chain of
  subgroups K of the stabiliser of line j. Its partial sums run over cosets Kt, which a translation maps to such cosets.
- A sum of two does not depend on their order. A sum of three does, so that (largest + smallest) + middle is taken.
- Columns are never mixed: one product for each of them, in one order.

The cube's two-dimensional irrep has no basis of such lines. It has three lines at 120 degrees: their three columns are
one more than is needed (12 products for 8), and rows are differences of the F[j, b] of one column. All sums are of
+-1 times numbers; scales are in the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quarterturn.fourier.irreps import Irrep, Matrices, irreps
from quarterturn.groups import Group, closure

Signed = tuple[tuple[int, int], ...]  # (element, sign) of a sum, sorted


class Job(NamedTuple):
    """Products of one irrep: for each row, `parts` analysed numbers times weights `(parts, columns)`."""

    rows: int
    parts: int
    columns: int


class Step(NamedTuple):
    """One sum of two or three numbers with signs, into the place `to`; numbers 0, 1, ... are the inputs."""

    to: int
    terms: tuple[tuple[int, int], ...]  # (place, sign)


@dataclass(frozen=True)
class Program:
    """Sums one after the other. Places: the inputs, then the outputs, then what is needed between."""

    inputs: int
    outputs: int
    places: int
    steps: tuple[Step, ...]

    def run(self, values: Sequence[npt.NDArray[np.float64]]) -> list[npt.NDArray[np.float64]]:
        """What it computes, for tests."""
        held: dict[int, npt.NDArray[np.float64]] = dict(enumerate(values))
        for step in self.steps:
            held[step.to] = added([sign * held[place] for place, sign in step.terms])
        return [held[self.inputs + i] for i in range(self.outputs)]


def added(terms: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """The sum of up to three numbers, in an order that depends on their values alone."""
    if len(terms) == 3:
        low, middle, high = np.sort(np.stack(terms), axis=0)
        return (high + low) + middle
    return sum(terms[1:], terms[0])


@dataclass(frozen=True)
class Transform:
    """A layer on the group in the Fourier basis.

    `analysis` takes the |G| values of f to the parts of all jobs, in the order (job, part, row). `weights` is the
    matrix from W to the jobs' weights (job, part, column). `synthesis` takes the products (job, column, row) to y. Its
    adjoint takes y's gradient to those of the products: `gather[i]` is the analysed part, and its sign, of product i.
    `exact` says whether a layer is equivariant to the bit.
    """

    jobs: tuple[Job, ...]
    analysis: Program
    weights: Matrices
    synthesis: Program
    gather: tuple[tuple[int, int], ...]
    exact: bool


@lru_cache(maxsize=64)
def transform_of(group: Group) -> Transform | None:
    """The transform of a group, or None if an irrep has no basis of lines as described above."""
    found = [_lines(irrep, group) for irrep in irreps(group)]
    lines = [one for one in found if one is not None]
    if len(lines) < len(found):
        return None
    jobs: list[Job] = []
    weights: list[npt.NDArray[np.float64]] = []
    gather: list[tuple[int, int]] = []
    parts = sums = 0
    analysis = _Builder(group.order)
    chains = _Chains(group, [one.stabiliser(j) for one in lines for j in range(len(one.vectors))])
    outputs: list[int] = []
    for one in lines:
        values = [[analysis.sum_over(chains, one.cosets(j, b)) for j in range(len(one.vectors))] for b in one.columns]
        d, columns = 2 if one.hexagonal else len(one.vectors), len(one.columns)
        rows = [one.rows(analysis, column) for column in values]
        outputs += [row[p] for p in range(d) for row in rows]
        scaled = one.weights() * d / (group.order * one.frame)
        if one.commutant == 2 and not one.hexagonal:
            jobs.append(Job(2, 1, 2))  # each of the two rows by itself: a turn exchanges them
            weights += [scaled[:, 0, c] for c in range(2)]
            gather += [(parts, 1), (parts + 1, 1), (parts + 1, 1), (parts, -1)]
        else:
            jobs.append(Job(columns, d, d))
            weights += [scaled[:, p, c] for p in range(d) for c in range(d)]
            gather += [(parts + i, 1) for i in range(columns * d)]
        parts += columns * d
        sums += jobs[-1].rows * jobs[-1].columns
    return Transform(
        tuple(jobs),
        analysis.program(outputs),
        np.stack(weights),
        _synthesis(group, lines, jobs, sums),
        tuple(gather),
        all(one.commutant == 1 or not one.hexagonal for one in lines),
    )


def _synthesis(group: Group, lines: "Sequence[_Lines]", jobs: Sequence[Job], sums: int) -> Program:
    """y[h]: for each irrep the sum over its columns b of what the product has along the line to which h takes b."""
    builder = _Builder(sums)
    found: list[list[int]] = [[] for _ in range(group.order)]
    first = 0
    for one, job in zip(lines, jobs, strict=True):
        if one.commutant == 2 and not one.hexagonal:
            along = [[builder.sum([(first, 1), (first + 3, -1)]), builder.sum([(first + 1, 1), (first + 2, 1)])]]
        else:
            along = [[first + j * job.rows + b for j in range(job.columns)] for b in range(job.rows)]
            if one.hexagonal:
                along = [[*of_b, builder.sum([(of_b[0], -1), (of_b[1], -1)])] for of_b in along]
        for h in range(group.order):
            terms = []
            for i, b in enumerate(one.columns):
                j, sign = one.moved[h][b]
                terms.append((along[i][j], sign))
            found[h].append(builder.sum(terms))
        first += job.rows * job.columns
    outputs = []
    for of_h in found:
        total = of_h[0]
        for place in of_h[1:]:
            total = builder.sum([(total, 1), (place, 1)])
        outputs.append(total)
    return builder.program(outputs)


# --- the lines of an irrep --------------------------------------------------------------------------------------------


class _Lines(NamedTuple):
    """Vectors that the group exchanges up to sign: `moved[g][b]` is (j, sign) if g takes b to sign * vector j."""

    group: Group
    irrep: Irrep
    vectors: list[npt.NDArray[np.float64]]
    moved: list[list[tuple[int, int]]]
    columns: list[int]
    hexagonal: bool

    @property
    def commutant(self) -> int:
        return self.irrep.commutant

    @property
    def frame(self) -> float:
        """The factor by which the columns that are used overcount: sum of v v^T is this times the identity."""
        return 1.5 if self.hexagonal and len(self.columns) == 3 else 1.0

    def stabiliser(self, j: int) -> frozenset[int]:
        return frozenset(g for g in range(self.group.order) if self.moved[g][j][0] == j)

    def cosets(self, j: int, b: int) -> Signed:
        """The elements that take line b to line j, with signs."""
        return tuple((t, self.moved[t][b][1]) for t in range(self.group.order) if self.moved[t][b][0] == j)

    def rows(self, builder: "_Builder", of_lines: list[int]) -> list[int]:
        """What is multiplied, from F[j, b] for each line j; three lines are one too many."""
        if not self.hexagonal:
            return of_lines if self.commutant == 1 else of_lines[:2]
        return [builder.sum([(of_lines[j], 1), (of_lines[2], -1)]) for j in range(2)]

    def weights(self) -> Matrices:
        """`(G, part, column)`: the matrices of the irrep in the bases that rows and products have."""
        if not self.hexagonal:
            basis = np.stack(self.vectors[: self.irrep.dimension], axis=1)
            return np.einsum("ia,gij,jb->gab", basis, self.irrep.matrices, basis)
        v = np.stack(self.vectors)  # (3, 2)
        # rows of f^ are r f^ with <r_c, v_j> = 1, 0, -1 and 0, 1, -1; products are <v_c, y^>
        r = np.linalg.lstsq(v, np.array([[1.0, 0], [0, 1], [-1, -1]]), rcond=None)[0].T
        return np.einsum("pi,gij,cj->gpc", np.linalg.inv(r).T, self.irrep.matrices, v[:2])


def _lines(irrep: Irrep, group: Group) -> _Lines | None:
    d = irrep.dimension
    identity = np.eye(d)
    if np.abs(np.abs(irrep.matrices).sum(axis=1) - 1).max() < 1e-6:
        vectors, hexagonal = [identity[b] for b in range(d)], False
    elif d == 2:
        found = _three_lines(irrep)
        if found is None:
            return None
        vectors, hexagonal = found, True
    else:
        return None
    if irrep.commutant > 1 and d != 2:
        return None
    moved = []
    for matrix in irrep.matrices:
        images = []
        for v in vectors:
            along = [float(matrix @ v @ w) for w in vectors]
            j = int(np.argmax(np.abs(along)))
            images.append((j, 1 if along[j] > 0 else -1))
        moved.append(images)
    columns = [0] if irrep.commutant > 1 else list(range(len(vectors)))
    return _Lines(group, irrep, vectors, moved, columns, hexagonal)


def _three_lines(irrep: Irrep) -> list[npt.NDArray[np.float64]] | None:
    """Three unit vectors at 120 degrees that the group exchanges up to sign, or None."""
    candidates = [vector for m in irrep.matrices for vector in np.linalg.eigh((m + m.T) / 2)[1].T]
    turn = np.array([[-0.5, -np.sqrt(0.75)], [np.sqrt(0.75), -0.5]])
    for v in candidates:
        three = [v, turn @ v, turn @ turn @ v]
        overlaps = np.abs(np.einsum("ai,gij,bj->gab", np.stack(three), irrep.matrices, np.stack(three)))
        if np.abs(overlaps.max(axis=1) - 1).max() < 1e-6:
            order = dict.fromkeys(int(np.argmax(image)) for image in overlaps[:, :, 0])  # as the elements reach them
            return [three[j] for j in order]
    return None


# --- programs ---------------------------------------------------------------------------------------------------------


class _Chains:
    """For each stabiliser a chain of subgroups, each of prime index in the next; common ones are preferred."""

    def __init__(self, group: Group, stabilisers: Sequence[frozenset[int]]) -> None:
        self.group = group
        self.below: dict[frozenset[int], frozenset[int]] = {}
        everything = {closure(group, (a, b)) for a in range(group.order) for b in range(group.order)}
        everything |= {closure(group, one | two) for one in everything for two in everything if len(one) == 2}
        self.shared = {one: sum(one <= other for other in stabilisers) for one in everything}

    def under(self, subgroup: frozenset[int]) -> frozenset[int]:
        """The subgroup of it over which partial sums run."""
        if subgroup not in self.below:
            inside = [one for one in self.shared if one < subgroup and len(subgroup) // len(one) in (2, 3)]
            self.below[subgroup] = min(inside, key=lambda one: (-self.shared[one], -len(one), sorted(one)))
        return self.below[subgroup]


class _Builder:
    """Collects sums; what is there already is not computed again."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[Step] = []
        self.known: dict[tuple[tuple[int, int], ...], int] = {}
        self.sums: dict[Signed, int] = {}

    def sum(self, terms: Sequence[tuple[int, int]]) -> int:
        if len(terms) == 1 and terms[0][1] > 0:
            return terms[0][0]
        key = tuple(sorted(terms))
        if key not in self.known:
            self.known[key] = self.inputs + len(self.steps)
            self.steps.append(Step(self.known[key], key))
        return self.known[key]

    def sum_over(self, chains: _Chains, terms: Signed) -> int:
        """The sum over a coset Kt with signs, along the chain below K."""
        if terms in self.sums:
            return self.sums[terms]
        if len(terms) == 1:
            return self.sum([terms[0]])
        group = chains.group
        signs = dict(terms)
        first = group.inverse[terms[0][0]]
        under = chains.under(frozenset(group.table[t][first] for t, _ in terms))
        pieces: list[tuple[int, int]] = []
        left = list(signs)
        while left:
            coset = sorted(group.table[k][left[0]] for k in under)
            sign = signs[coset[0]]
            pieces.append((self.sum_over(chains, tuple((t, sign * signs[t]) for t in coset)), sign))
            left = [t for t in left if t not in coset]
        self.sums[terms] = self.sum(pieces)
        return self.sums[terms]

    def program(self, outputs: Sequence[int]) -> Program:
        """The sums with their places: outputs where they belong, places between used again when nobody needs them."""
        place = {i: i for i in range(self.inputs)}
        steps = list(self.steps)
        given: dict[int, int] = {}
        for i, output in enumerate(outputs):
            if output < self.inputs or output in given:  # a copy
                steps.append(Step(self.inputs + len(steps), ((output, 1),)))
                output = steps[-1].to
            given[output] = self.inputs + i
        steps = _in_pairs(steps)
        last = {source: step.to for step in steps for source, _ in step.terms}
        free: list[int] = []
        next_place = self.inputs + len(outputs)
        written: list[Step] = []
        for step in steps:
            if step.to in given:
                place[step.to] = given[step.to]
            elif free:
                place[step.to] = free.pop()
            else:
                place[step.to] = next_place
                next_place += 1
            written.append(Step(place[step.to], tuple((place[source], sign) for source, sign in step.terms)))
            for source in {source for source, _ in step.terms}:
                if last[source] == step.to and source >= self.inputs and source not in given:
                    free.append(place[source])
        return Program(self.inputs, len(outputs), next_place, tuple(written))


def _in_pairs(steps: Sequence[Step]) -> list[Step]:
    """The same sums, those of the same two numbers one after the other: they are read once for both."""
    following: dict[frozenset[int], list[Step]] = {}
    for step in steps:
        following.setdefault(frozenset(place for place, _ in step.terms), []).append(step)
    return [each for step in steps for each in following.pop(frozenset(place for place, _ in step.terms), [])]
