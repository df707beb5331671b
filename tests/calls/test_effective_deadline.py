"""That our reading of a task's deadline is trio's."""

from __future__ import annotations

import math
from typing import Literal

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from runtime.calls.deadlines import effective_deadline

Layer = tuple[Literal["scope", "shielded", "nursery", "cancelled"], float]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["scope", "shielded", "nursery", "cancelled"]),
            st.floats(-5, 50) | st.just(math.inf),
        ),
        max_size=6,
    )
)
def test_the_deadline_of_a_task_is_what_trio_says_it_is(layers: list[Layer]) -> None:
    compared = 0

    async def descend(rest: list[Layer]) -> None:
        nonlocal compared
        assert effective_deadline(trio.lowlevel.current_task()) == trio.current_effective_deadline()
        compared += 1
        if not rest:
            return
        kind, seconds = rest[0]
        if kind == "nursery":
            # its scope is what is looked at
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112
                nursery.start_soon(descend, rest[1:])
            return
        with trio.CancelScope(
            deadline=trio.current_time() + seconds, shield=kind == "shielded"
        ) as scope:
            if kind == "cancelled":
                scope.cancel()
            await descend(rest[1:])

    async def main() -> None:
        await descend(layers)

    trio.run(main, clock=MockClock())
    assert (
        compared == len(layers) + 1
        or any(kind == "cancelled" for kind, _ in layers)
        or any(seconds <= 0 for _, seconds in layers)
    )


async def test_where_trio_is_not_as_expected_it_is_asked() -> None:
    with trio.CancelScope(deadline=trio.current_time() + 100):
        assert effective_deadline(object()) == trio.current_effective_deadline()
        await trio.lowlevel.checkpoint()


async def test_the_short_way_is_the_one_that_is_taken() -> None:
    class Missing:
        """Not what a task is: asking trio instead would not notice."""

        class _cancel_status:  # noqa: N801  the name is trio's
            effectively_cancelled = True

    assert effective_deadline(Missing()) == -math.inf
