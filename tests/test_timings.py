"""`Timings`: what depends on the lease follows it, and combinations that break a promise are
refused.
"""

from __future__ import annotations

import ast
import itertools
import math
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.timings import Timings
from tests.house import ROOT

DRAINING = ("drain_calls", "drain_actors", "hand_over", "goodbye", "leaving")

DERIVED = [name for name, value in vars(Timings).items() if isinstance(value, property)]


def test_the_times_that_users_get() -> None:
    """What docs and messages say, to the last bit: a formula that is rounded another way changes
    every simulated run.
    """
    assert {name: getattr(Timings(), name) for name in DERIVED} == {
        "renew_every": 5.0 / 3,
        "renewal_retry": 0.2,
        "held": 2 / 3 * 5.0,
        "succession": 10.0,
        "denial_patience": 5.0,
        "store_lost": 1.0,
        "store_asked": 2.0,
        "store_asked_again": 0.5,
        "etcd_quick": 1.0,
        "restart_grace": 5.0,
        "expiry_watch": 2.0,
        "expiry_look": 0.25,
        "expiry_late": 0.5,
        "loop_beat": 0.5,
        "loop_look": 0.25,
        "loop_late": 1.0,
        "loop_still": 0.25,
        "stood_in_after": 5.0 / 3 + 0.5,
        "block_reported": 2.5,
        "silence": 2.5,
        "beat": 0.5,
        "answering_beat": 1.0,
        "link_look": 0.25,
        "user_timeout": 5.0,
        "isolation_patience": 2.0,
        "client_patience": 5.0,
        "departed": 15.0,
        "isolated_inspection": 1.5,
        "drain_calls": 5.0,
        "drain_actors": 9.0,
        "hand_over": 4.0,
        "goodbye": 1.0,
        "leaving": 12.0,
        "convergence": 60.0,
        "quiescence": 25.0,
    }


@given(st.floats(0.3, 1e5))
def test_the_promises_hold_for_every_lease(lease: float) -> None:
    times = Timings(lease=lease)
    # A renewal that is lost is asked for again before the names pause.
    assert times.renew_every + times.renewal_retry < times.held < times.lease
    # A blocked loop is stood in for before the names pause.
    assert times.stood_in_after < times.held
    # A renewal that a member of etcd does not answer is asked of another before they do.
    assert times.renew_every + times.etcd_quick < times.held
    # A store that is served anew is found before its leases, which begin anew, are in doubt.
    assert times.store_lost + times.store_asked <= times.held
    # An isolated process has ended when its name can move.
    assert times.silence + times.beat + times.isolation_patience <= times.lease * (1 + 1e-12)
    # The store has handled every renewal that was sent in time before it ends a lease.
    assert times.renew_every < times.expiry_watch < times.restart_grace
    assert times.expiry_look < times.expiry_late < times.expiry_watch
    # A peer is seen to be unreachable before it is known to be dead.
    assert times.silence + times.beat + times.unreachable_after < times.lease
    assert times.silence < times.user_timeout
    # All steps of leaving fit into its time.
    assert times.drain_calls + times.hand_over + times.goodbye <= times.drain < times.leaving
    assert times.drain_calls < times.drain_actors < times.drain
    assert times.orphans < times.departed < times.quiescence


@given(st.floats(0.3, 1e4), st.floats(1.5, 10.0))
def test_a_longer_lease_makes_longer_what_follows_from_it(lease: float, factor: float) -> None:
    short, long = Timings(lease=lease), Timings(lease=factor * lease)
    for name in DERIVED:
        # What has a part that is no part of a lease grows as well, but less.
        grown = getattr(long, name) / getattr(short, name)
        if name in ("departed", "quiescence"):
            assert 1 < grown < factor
        elif name in (*DRAINING, "isolated_inspection"):
            assert grown == 1
        else:
            assert grown == pytest.approx(factor)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lease": 0.0}, "lease is a positive number"),
        ({"lease": -1.0}, "lease is a positive number"),
        ({"lease": math.inf}, "lease is a positive number"),
        ({"lease": math.nan}, "lease is a positive number"),
        ({"lease": 10**400}, "lease is a positive number"),
        ({"handshake": 0.0}, "handshake is a positive number"),
        ({"renewals": 2}, "fewer than three"),
        ({"held_share": 1.0}, "until it has ended, or longer"),
        ({"held_share": 0.35}, "is in doubt after 1.75 s"),
        ({"renewal_retries": 2}, "and again after 2.5 s"),
        ({"held_share": 0.4}, "stood in for after"),
        ({"silence_share": 0.9}, "leave nothing of a lease of 5 s"),
        ({"etcd_quick_leases": 0.4}, "a member of etcd does not answer"),
        ({"store_call": 2.0}, "one attempt at a member of etcd 2.5 s"),
        ({"beats": 1}, "fewer than two beats"),
        ({"lease": 0.1}, "no shorter than the silence"),
        ({"redial_first": 2.0}, "later than the last"),
    ],
)
def test_combinations_that_break_a_promise_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Timings(**changes)


def test_each_time_says_what_it_is_for() -> None:
    """The text below a field, and the docstring of a property: unit, formula, what breaks."""
    tree = ast.parse((ROOT / "runtime/timings.py").read_text())
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    described = {
        str(ast.unparse(field.target))
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert {field.name for field in attrs.fields(Timings)} - described == set()
    assert [name for name in DERIVED if not getattr(Timings, name).__doc__] == []
