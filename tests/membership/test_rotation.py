"""The steps of a rotation: any two nodes understand each other at any moment, from any state."""

from __future__ import annotations

import itertools
import random

import pytest

from runtime.membership.rotation import next_step

OLD, NEW, THIRD = "old", "new", "third"


def applied(ids: tuple[str, ...], step: str) -> tuple[str, ...]:
    """What a node has after a step to `NEW`."""
    if step == "install":
        return ids if NEW in ids else (*ids, NEW)
    if step == "use":
        return (NEW, *(one for one in ids if one != NEW))
    return (NEW,)


def understand(keyrings: dict[str, tuple[str, ...]]) -> bool:
    """True if each accepts what each other one proves."""
    return all(one[0] in other for one, other in itertools.permutations(keyrings.values(), 2))


@pytest.mark.parametrize("seed", range(50))
def test_a_rotation_ends_and_breaks_nothing_on_the_way(seed: int) -> None:
    draw = random.Random(seed)
    states: list[tuple[str, ...]] = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,), (OLD, THIRD)]
    keyrings: dict[str, tuple[str, ...]] = {
        f"n{number}": draw.choice(states) for number in range(draw.randint(1, 6))
    }
    if not understand(keyrings):
        # No walk of ours leads there.
        states = [(OLD,)]
        keyrings = dict.fromkeys(keyrings, states[0])
    for _ in range(4):
        step = next_step(keyrings, NEW)
        if step is None:
            break
        order = list(step.nodes)
        draw.shuffle(order)
        for node in order:
            keyrings[node] = applied(keyrings[node], step.step)
            assert understand(keyrings), (step, keyrings)
    assert set(keyrings.values()) == {(NEW,)}


def test_a_node_that_has_joined_meanwhile_is_taken_along_first() -> None:
    step = next_step({"one": (NEW, OLD), "two": (NEW, OLD), "late": (OLD,)}, NEW)
    assert step is not None
    assert (step.step, step.nodes) == ("install", ("late",))


def test_to_take_it_back_is_the_same_walk_to_the_other_secret() -> None:
    step = next_step({"one": (NEW, OLD), "two": (OLD, NEW)}, OLD)
    assert step is not None
    assert (step.step, step.nodes) == ("use", ("one",))
