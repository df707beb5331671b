"""Which connection makes room for a new one."""

from __future__ import annotations

from contextlib import ExitStack

from runtime.http_connections import ConnectionLimit, ServedConnection


async def test_the_one_that_has_waited_longest_for_its_client_makes_room() -> None:
    limit = ConnectionLimit(3)
    with ExitStack() as stack:

        def admitted() -> ServedConnection | None:
            return stack.enter_context(limit.admit())

        first, second, third = admitted(), admitted(), admitted()
        assert first is not None
        assert second is not None
        assert third is not None
        # Its request makes the first one the newest.
        with first.request():
            pass
        fourth = admitted()
        ended = [one.scope.cancel_called for one in (first, second, third)]
        assert ended == [False, True, False]
        assert fourth is not None
        with first.request(), third.request(), fourth.request():
            assert admitted() is None
            with third.sending():
                fifth = admitted()
                assert third.scope.cancel_called
        # What was ended is not ended again.
        assert fifth is not None
        assert admitted() is not None
        assert fifth.scope.cancel_called
        assert not first.scope.cancel_called
        assert not fourth.scope.cancel_called


async def test_one_of_two_answers_that_waits_for_the_client_does_not_end_the_other() -> None:
    limit = ConnectionLimit(1)
    with limit.admit() as one:
        assert one is not None
        with one.request(), one.request(), one.sending(), limit.admit() as other:
            assert other is None
        assert not one.scope.cancel_called


async def test_a_place_is_free_again_when_its_connection_ends() -> None:
    limit = ConnectionLimit(1)
    for _ in range(3):
        with limit.admit() as one:
            assert one is not None
            with one.request(), limit.admit() as other:
                assert other is None
