"""The application's own rule about calls: the function of `open_node(authorize=...)`."""

from __future__ import annotations

from collections.abc import Callable

from actors.filters import Call

Authorize = Callable[[Call], bool]
"""A function of the application that decides whether a call may be made."""


def is_allowed(authorize: Authorize, call: Call) -> bool:
    """Ask the function, which is user code on the loop, and must not wait. Raises what it raises.

    Only True allows, so that a function that forgets to return anything, or returns a coroutine,
    opens nothing. The report of a blocked loop finds this frame, and the call in it.
    """
    return authorize(call) is True
