"""Errors of starts on other nodes, as the user reads them who has started the actor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from actors.actor import Member
from actors.errors import (
    ActorNotFoundError,
    CallError,
    DeadlineExceededError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    OutcomeUnknownError,
    RemoteError,
    UnderstudyError,
)
from actors.messages import import_path
from runtime.calls.error_codec import plain_error
from runtime.hosting.node_service import NODE_SERVICE

ELSEWHERE = "start it again, or elsewhere"
"""The advice of errors about nodes that have ended, or cannot be reached."""


@contextmanager
def about_start(
    what: str, member: Member, now: Callable[[], float], *, named: bool
) -> Iterator[None]:
    """Where the service of `member` has not answered, raise an error about `what` was to be started
    there, and not about that service, of which users know nothing, nor its attempts. `now`: the
    node's clock; `named`: other tasks can find by its name what was started. What is not `named` is
    taken back by the caller where it may start yet: see `may_start_yet`.
    """
    began = now()
    try:
        yield
    except trio.Cancelled as error:
        # People read it in the traceback of the error that their time limit raises.
        error.add_note(
            f"The start of {what} on node {member.name} had no answer after {now() - began:.1f} s. "
            "If it has started, it is stopped again: no task has its handle."
        )
        raise
    except (
        ActorNotFoundError,
        DeadlineExceededError,
        NodeUnreachableError,
        OutcomeUnknownError,
    ) as error:
        if error.actor != NODE_SERVICE:
            raise
        ended = f"node {member.name} ended"
        kind: type[CallError] = type(error)
        if isinstance(error, ActorNotFoundError):
            kind = NodeUnreachableError
            text = f"{what} was not started: {ended} before it could be asked; {ELSEWHERE}"
        elif isinstance(error, NodeUnreachableError):
            text = (
                f"{what} was not started: there was no connection to node {member.name} in time; "
                f"{ELSEWHERE}"
            )
        elif isinstance(error, NodeDiedError) or (
            isinstance(error, OutcomeUnknownError)
            and isinstance(error.__cause__, ActorNotFoundError)
        ):
            kind = NodeDiedError
            text = (
                f"{ended} while it started {what}, which is gone with it if it had started; "
                f"{ELSEWHERE}"
            )
        elif isinstance(error, DeadlineExceededError):
            text = (
                f"{what} was not started: node {member.name} had not begun with it after "
                f"{now() - began:.1f} s, and will not; {ELSEWHERE}"
            )
        else:
            next_step = (
                "look it up by its name, or start it again"
                if named
                else f"if it has, it is stopped again, as no task has its handle; {ELSEWHERE}"
            )
            text = (
                f"{what} may have started on node {member.name}, whose answer has not come after "
                f"{now() - began:.1f} s, and will not; {next_step}"
            )
        raise kind(text, node=member.name, attempts=error.attempts) from None


def may_start_yet(error: OutcomeUnknownError) -> bool:
    """False if what was to be started has ended with its node."""
    return not isinstance(error, NodeDiedError)


def of_class(path: str) -> str:
    """Say what an actor without a name is."""
    return f"an actor of class {path.rpartition(':')[2]}"


def own_error(error: RemoteError, member: Member) -> UnderstudyError:
    """Return the runtime's own error that the service of `member` has raised, as if it had been
    raised here; `error` itself, if it raised another one.
    """
    if error.remote_type == import_path(NodeDrainingError):
        # The service has raised it, so it is about that node, and the actor has not started.
        return NodeDrainingError(str(error).removeprefix("NodeDrainingError: "), node=member.name)
    return plain_error(error) or error
