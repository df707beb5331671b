"""Errors of starts on other nodes, as the user reads them who has started the actor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
def about_start(what: str, member: Member) -> Iterator[None]:
    """Where the service of `member` has not answered, raise an error about `what` was to be started
    there, and not about that service, of which users know nothing.
    """
    try:
        yield
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
        else:
            # Without the history of its attempts: they are the service's.
            said = str(error).partition("\n")[0]
            text = said.replace(
                f"{NODE_SERVICE}.{error.method}", f"the start of {what} on node {member.name}"
            )
        raise kind(text, node=member.name, attempts=error.attempts) from None


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
