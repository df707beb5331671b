"""Which member of a pool a call goes to, over many seeds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from actors import message
from actors.identifiers import ActorId
from runtime.pools.pool import KeyWriter, Router
from runtime.wire.codec import Codec

SEEDS = 20
KEYS = range(300)


def members(count: int) -> list[ActorId]:
    return [ActorId(f"pool/member-{number}", 7) for number in range(count)]


def router(seed: int, loads: dict[ActorId, int] | None = None) -> Router:
    keys = KeyWriter(Codec(sentinel=bytes(8)))
    return Router(random.Random(seed).random, (loads or {}).__getitem__, keys.bytes_of)


def test_each_member_has_its_turn_in_any_order_of_members() -> None:
    for seed in range(SEEDS):
        draw, chooser = random.Random(seed), router(seed)
        present = members(1 + seed % 5)
        for _ in range(3):
            turns: list[ActorId] = []
            for _ in present:
                draw.shuffle(present)
                turns.append(chooser.choose(present, "round-robin"))
            assert sorted(turns) == sorted(present), "each of them once"


def test_no_member_has_two_turns_in_a_row_when_others_come_and_go() -> None:
    for seed in range(SEEDS):
        draw, chooser = random.Random(seed), router(seed)
        for _ in range(50):
            present = draw.sample(members(8), draw.randrange(2, 8))
            assert chooser.choose(present, "round-robin") != chooser.choose(present, "round-robin")


def test_a_key_has_one_member_for_all_callers() -> None:
    present = members(5)
    placed = {key: router(1).choose(present, "hash", key) for key in KEYS}
    assert placed == {key: router(2).choose(present[::-1], "hash", key) for key in KEYS}
    assert min(Counter(placed.values()).values()) > len(KEYS) / 10, "each member has many keys"
    # The same in each process, whatever its hash seed: computed once, and written down here.
    assert "".join(router(1).choose(present, "hash", key).name[-1] for key in "abcdef") == "304323"


@message
@attrs.frozen
class Customer:
    names: frozenset[str]
    number: int


KEYS_WRITTEN = """
from tests.pools import test_routing as t
print(t.placed_keys())
"""


def placed_keys() -> str:
    """The members of keys of which a repr, or the order in it, differs from process to process."""
    chooser, present = router(1), members(20)
    names = frozenset(f"customer {number}" for number in range(50))
    keys = [
        names,
        (1, names),
        Customer(names, 3),
        Customer(frozenset(), 1 << 20_000),
        None,
        (None,),
    ]
    return " ".join(chooser.choose(present, "hash", key).name for key in keys if key is not None)


def test_keys_of_sets_and_messages_have_the_same_member_in_all_processes() -> None:
    placed = placed_keys()
    for seed in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", KEYS_WRITTEN],
            env=environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.strip() == placed


def test_plain_keys_keep_the_members_that_they_had_in_earlier_versions() -> None:
    present = members(10)
    keys = ["a", "ä'\ud800", b"\xff", 7, -(1 << 70), True, 1.5]
    placed = [router(1).choose(present, "hash", key).name[-1] for key in keys]
    assert "".join(placed) == "5560178"
    assert router(1).choose(present, "hash", 1 << 20_000) in present


class Own:
    def __repr__(self) -> str:
        raise ValueError("its own")


@pytest.mark.parametrize("key", [Own(), object(), (1, {Own()})])
def test_a_key_that_differs_from_process_to_process_is_refused(key: Any) -> None:
    with pytest.raises(TypeError, match=r"must be the same in all processes: .*\. key"):
        router(1).choose(members(3), "hash", key)


def test_a_member_that_comes_or_goes_moves_only_keys_of_its_own() -> None:
    chooser = router(1)
    few, many = members(5), members(6)
    for key in KEYS:
        before, after = chooser.choose(few, "hash", key), chooser.choose(many, "hash", key)
        assert after in (before, many[-1])
    assert any(chooser.choose(many, "hash", key) == many[-1] for key in KEYS)


def test_of_two_members_the_less_loaded_is_chosen() -> None:
    for seed in range(SEEDS):
        draw = random.Random(seed)
        present = members(draw.randrange(2, 7))
        loads = dict(zip(present, draw.sample(range(100), len(present)), strict=True))
        chooser = router(seed, loads)
        chosen = Counter(chooser.choose(present, "least-loaded") for _ in range(200))
        by_load = sorted(present, key=loads.__getitem__)
        assert set(chosen) == set(by_load[:-1]), "not the most loaded, and not always the least"
        assert chosen.most_common(1)[0][0] == by_load[0]


def test_any_member_is_chosen_at_random() -> None:
    for seed in range(SEEDS):
        chooser, present = router(seed), members(2 + seed % 5)
        chosen = [chooser.choose(present, "random") for _ in range(200)]
        assert set(chosen) == set(present)
        assert any(one == other for one, other in pairwise(chosen))


def test_the_only_member_is_chosen() -> None:
    (only,) = members(1)
    for routing in ("least-loaded", "round-robin", "random", "hash"):
        assert router(1, {only: 9}).choose([only], routing, key=1) == only
