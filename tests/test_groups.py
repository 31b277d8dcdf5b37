"""Groups: the axioms, the order of the elements that checkpoints rely on, and what is refused."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import ALL_GROUPS

import quarterturn as qt
from quarterturn import C2, C4, D4, FLIP, GROUPS, MIRROR, OCTA, OCTA_FULL, Group, GroupError, compose, generate, named

PINNED = {
    "flip": "+1 -1",
    "C2": "+1+2 -1-2",
    "mirror": "+1+2 +1-2",
    "C4": "+1+2 +2-1 -1-2 -2+1",
    "D4": "+1+2 +2-1 -1-2 -2+1 +1-2 -2-1 -1+2 +2+1",
    "octa": (
        "+1+2+3 +1+3-2 +1-2-3 +1-3+2 +3+2-1 +3-1-2 +3-2+1 +3+1+2 -2+3-1 -2-1-3 -2-3+1 -2+1+3 "
        "-1+2-3 -1-3-2 -1-2+3 -1+3+2 -3-2-1 -3-1+2 -3+2+1 -3+1-2 +2-3-1 +2-1+3 +2+3+1 +2+1-3"
    ),
    "octa-full": (
        "+1+2+3 +1+3-2 +1-2-3 +1-3+2 +3+2-1 +3-1-2 +3-2+1 +3+1+2 -2+3-1 -2-1-3 -2-3+1 -2+1+3 "
        "-1+2-3 -1-3-2 -1-2+3 -1+3+2 -3-2-1 -3-1+2 -3+2+1 -3+1-2 +2-3-1 +2-1+3 +2+3+1 +2+1-3 "
        "-1+2+3 -1+3-2 -1-2-3 -1-3+2 +3+2+1 +3+1-2 +3-2-1 +3-1+2 -2+3+1 -2+1-3 -2-3-1 -2-1+3 "
        "+1+2-3 +1-3-2 +1-2+3 +1+3+2 -3-2+1 -3+1+2 -3+2-1 -3-1-2 +2-3+1 +2+1+3 +2+3-1 +2-1-3"
    ),
    "C2-1": "+1+2+3 +1-2-3",
    "C4-1": "+1+2+3 +1+3-2 +1-2-3 +1-3+2",
    "D4-1": "+1+2+3 +1+3-2 +1-2-3 +1-3+2 +1+2-3 +1-3-2 +1-2+3 +1+3+2",
    "D4h-1": (
        "+1+2+3 +1+3-2 +1-2-3 +1-3+2 +1+2-3 +1-3-2 +1-2+3 +1+3+2 "
        "-1+2+3 -1+3-2 -1-2-3 -1-3+2 -1+2-3 -1-3-2 -1-2+3 -1+3+2"
    ),
    "C2-2": "+1+2+3 -1+2-3",
    "C4-2": "+1+2+3 +3+2-1 -1+2-3 -3+2+1",
    "D4-2": "+1+2+3 +3+2-1 -1+2-3 -3+2+1 +1+2-3 -3+2-1 -1+2+3 +3+2+1",
    "D4h-2": (
        "+1+2+3 +3+2-1 -1+2-3 -3+2+1 +1+2-3 -3+2-1 -1+2+3 +3+2+1 "
        "+1-2+3 +3-2-1 -1-2-3 -3-2+1 +1-2-3 -3-2-1 -1-2+3 +3-2+1"
    ),
    "C2-3": "+1+2+3 -1-2+3",
    "C4-3": "+1+2+3 +2-1+3 -1-2+3 -2+1+3",
    "D4-3": "+1+2+3 +2-1+3 -1-2+3 -2+1+3 +1-2+3 -2-1+3 -1+2+3 +2+1+3",
    "D4h-3": (
        "+1+2+3 +2-1+3 -1-2+3 -2+1+3 +1-2+3 -2-1+3 -1+2+3 +2+1+3 "
        "+1+2-3 +2-1-3 -1-2-3 -2+1-3 +1-2-3 -2-1-3 -1+2-3 +2+1-3"
    ),
    "mirror-1": "+1+2+3 -1+2+3",
    "mirror-2": "+1+2+3 +1-2+3",
    "mirror-3": "+1+2+3 +1+2-3",
    "mirrors-1-2": "+1+2+3 -1+2+3 +1-2+3 -1-2+3",
    "mirrors-1-3": "+1+2+3 -1+2+3 +1+2-3 -1+2-3",
    "mirrors-2-3": "+1+2+3 +1-2+3 +1+2-3 +1-2-3",
    "mirrors-1-2-3": "+1+2+3 -1+2+3 +1-2+3 -1-2+3 +1+2-3 -1+2-3 +1-2-3 -1-2-3",
}


def written(group: Group) -> str:
    return " ".join("".join(f"{a:+d}" for a in element) for element in group.elements)


def test_the_elements_of_all_named_groups_are_pinned() -> None:
    assert {name: written(group) for name, group in GROUPS.items()} == PINNED


def test_the_named_groups_are_nested_and_of_the_right_order() -> None:
    assert D4.elements[:4] == C4.elements
    assert OCTA_FULL.elements[:24] == OCTA.elements
    assert [g.order for g in (FLIP, C2, MIRROR, C4, D4, OCTA, OCTA_FULL)] == [2, 2, 2, 4, 8, 24, 48]
    assert [g.dim for g in (FLIP, C2, MIRROR, C4, D4, OCTA, OCTA_FULL)] == [1, 2, 2, 2, 2, 3, 3]


def test_d4_is_the_turns_and_then_the_turns_after_a_flip() -> None:
    r, m = (+2, -1), (+1, -2)
    e, r2, r3 = compose(r, compose(r, compose(r, r))), compose(r, r), compose(r, compose(r, r))
    assert D4.elements == (e, r, r2, r3, m, compose(r, m), compose(r2, m), compose(r3, m))


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda g: g.name)
def test_the_table_is_a_group(group: Group) -> None:
    everything = range(group.order)
    for g in everything:
        assert group.table[0][g] == group.table[g][0] == g
        assert group.table[g][group.inverse[g]] == group.table[group.inverse[g]][g] == 0
        assert sorted(group.table[g]) == sorted(row[g] for row in group.table) == list(everything)
        for h in everything:
            assert group.elements[group.table[g][h]] == compose(group.elements[g], group.elements[h])
            for k in everything:
                assert group.table[group.table[g][h]][k] == group.table[g][group.table[h][k]]


def test_which_axes_a_group_exchanges() -> None:
    assert FLIP.exchanged == C2.exchanged == MIRROR.exchanged == ()
    assert C4.exchanged == D4.exchanged == ((1, 2),)
    assert OCTA.exchanged == OCTA_FULL.exchanged == ((1, 2, 3),)
    assert generate("about the first axis", (1, 3, -2)).exchanged == ((2, 3),)


def test_a_group_is_frozen_hashable_and_picklable() -> None:
    with pytest.raises(AttributeError):
        C4.name = "other"  # type: ignore[misc]
    assert len({C4, D4, generate("C4", (+2, -1))}) == 2
    again = pickle.loads(pickle.dumps(D4))
    assert again == D4
    assert again.table == D4.table


@given(
    st.lists(
        st.permutations([1, 2, 3]).flatmap(lambda p: st.tuples(*(st.sampled_from((a, -a)) for a in p))),
        min_size=1,
        max_size=3,
    )
)
def test_generators_of_any_kind_close(generators: list[tuple[int, ...]]) -> None:
    group = generate("any", *generators)
    assert set(generators) <= set(group.elements)
    assert 48 % group.order == 0


def test_a_further_generator_appends_whole_cosets() -> None:
    group = OCTA_FULL
    for block in (4, 24):
        for start in range(0, group.order, block):
            first = group.elements[start]
            assert group.elements[start : start + block] == tuple(compose(h, first) for h in group.elements[:block])


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ([], "at least one"),
        ([()], "not a signed permutation"),
        ([(1, 1)], r"\(1, 1\) is not a signed permutation"),
        ([(0, 1)], "not a signed permutation"),
        ([(1, 3)], "not a signed permutation"),
        ([(2, -1), (1, 2, 3)], "has 2 axes and .* has 3"),
        ([5], "tuples of signed axes"),
        ([(1.5, 2)], "tuples of signed axes"),
    ],
)
def test_bad_generators_are_refused(generators: list, message: str) -> None:
    with pytest.raises(GroupError, match=message):
        generate("bad", *generators)


def test_a_group_must_be_closed_and_begin_with_the_identity() -> None:
    with pytest.raises(GroupError, match="not closed"):
        Group("half", ((1, 2), (2, -1)))
    with pytest.raises(GroupError, match="begin with the identity"):
        Group("late", ((-1, -2), (1, 2)))


def test_names_are_found_and_near_misses_answered() -> None:
    assert named("octa-full") is OCTA_FULL
    assert named("d4") is D4
    with pytest.raises(qt.OptionError, match="unknown group 'octa-ful': did you mean 'octa-full'"):
        named("octa-ful")
    with pytest.raises(qt.QuarterturnError, match="choose from 'flip', 'C2'"):
        named("xyzzy")
