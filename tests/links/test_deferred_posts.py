"""Deferred posts have their turns in order, each once, unless they are withdrawn; checked against a
list.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from runtime.links.deferred_posts import FEWEST_TO_CLEAR, DeferredPost, DeferredPosts


def posts_of(queue: DeferredPosts, count: int, told: list[int]) -> list[DeferredPost]:
    """Make so many, which note their numbers in `told`."""

    return [queue.add(partial(told.append, number)) for number in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_turns_come_in_order_to_those_that_were_not_withdrawn(seed: int) -> None:
    draw, queue, told = random.Random(seed), DeferredPosts(), list[int]()
    posts = posts_of(queue, 2_000, told)
    waiting = dict(enumerate(posts))
    expected: list[int] = []
    while waiting:
        assert queue.waiting == len(waiting)
        queue.check_invariants()
        if draw.random() < 0.6:
            for number in draw.sample(sorted(waiting), min(len(waiting), draw.randrange(1, 700))):
                waiting.pop(number).withdraw()
        else:
            for _ in range(draw.randrange(1, 300)):
                act = queue.next()
                if act is None:
                    break
                act()
                first = min(waiting)
                del waiting[first]
                expected.append(first)
    assert queue.next() is None
    assert told == expected
    # Each of them was withdrawn before, or has had its turn.
    for post in posts:
        post.withdraw()
    assert queue.waiting == 0
    queue.check_invariants()


def test_many_thousands_that_are_withdrawn_leave_little_behind() -> None:
    queue = DeferredPosts()
    for post in posts_of(queue, 50_000, []):
        post.withdraw()
    assert len(queue._posts) <= FEWEST_TO_CLEAR
    queue.check_invariants()


def test_the_end_of_the_link_is_told_to_those_that_wait_for_it() -> None:
    queue, told = DeferredPosts(), list[str]()
    queue.add(lambda: told.append("acted"), lambda: told.append("had its turn"))
    queue.add(lambda: told.append("acted"), lambda: told.append("withdrawn")).withdraw()
    posts = [
        queue.add(lambda: told.append("acted"), lambda: told.append("first")),
        queue.add(lambda: told.append("acted")),
        queue.add(lambda: told.append("acted"), lambda: told.append("last")),
    ]
    act = queue.next()
    assert act is not None
    act()
    for on_end in queue.end():
        on_end()
    assert told == ["acted", "first", "last"]
    assert queue.next() is None
    assert queue.waiting == 0
    for post in posts:
        post.withdraw()
    queue.check_invariants()
