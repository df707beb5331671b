"""The service `@debug` of every node: the failures of its actors that it keeps, and values in their
frames. `understudy debug` asks it; only operators may.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any, Final, cast

import trio

from actors.actor import Actor
from actors.method import method
from runtime.calls.endpoint import RpcEndpoint
from runtime.hosting.bounded_text import bounded_line, cut
from runtime.hosting.host import ActorHost
from runtime.user_errors import guarded, summary_of

DEBUG_SERVICE: Final = "@debug"

EVALUATION_SECONDS: Final = 5.0
"""How long an expression may take. Its thread is left running then."""

MOST_EVALUATIONS: Final = 4
"""Expressions that are evaluated at once, those that were left running included."""

MOST_EXPRESSION: Final = 4096
MOST_RESULT: Final = 8192
"""Characters of what an expression gives."""

NOT_KEPT = "it was not started with --post-mortem or --debuggable"


class DebugService(Actor):
    """Tells of the failures that the node keeps, if it does."""

    def __init__(self, host: ActorHost) -> None:
        self._host = host
        self._threads = trio.CapacityLimiter(MOST_EVALUATIONS)

    @method(concurrent=True, idempotent=True)
    async def failures(self, actor: str) -> dict[str, Any]:
        """The last failures of the actors of this name, the latest last. `problem`: why none are
        kept; `dropped`: how many, of all actors, came too fast to be kept.
        """
        kept = self._host.post_mortems
        if kept is None:
            return {"failures": [], "dropped": 0, "problem": NOT_KEPT}
        failures = [failure.told() for failure in kept.of(actor)]
        return {"failures": failures, "dropped": kept.dropped, "problem": ""}

    @method(concurrent=True)
    async def evaluate(
        self, actor: str, number: int, frame: int, expression: str
    ) -> dict[str, str]:
        """Look a value up in a frame of a failure, see `value_at`: its text, or the `problem`."""
        kept = self._host.post_mortems
        failures = kept.of(actor) if kept is not None else ()
        record = next((one for one in failures if one.number == number), None)
        if record is None:
            return {"text": "", "problem": f"failure {number} is not kept any more"}
        if not 0 <= frame < len(record.live):
            return {"text": "", "problem": "its node was not started with --debuggable"}
        if len(expression) > MOST_EXPRESSION:
            return {"text": "", "problem": f"it is longer than {MOST_EXPRESSION} characters"}
        with trio.move_on_after(EVALUATION_SECONDS):
            found: dict[str, str] = await self._host.in_thread(
                partial(evaluated, expression, record.live[frame]), self._threads, abandon=True
            )
            return found
        return {"text": "", "problem": f"it took longer than {EVALUATION_SECONDS:g} s"}


def evaluated(expression: str, frame: FrameType) -> dict[str, str]:
    """What an expression gives in a frame, as text. Properties run user code; for a thread."""

    def evaluate() -> dict[str, str]:
        names = {**frame.f_globals, **frame.f_locals}
        value = value_at(ast.parse(expression.strip(), "<debug>", "eval").body, names)
        return {"text": bounded_line(value, MOST_RESULT), "problem": ""}

    return guarded(evaluate, lambda error: {"text": "", "problem": cut(summary_of(error), 1000)})


def value_at(path: ast.expr, names: Mapping[str, object]) -> object:
    """The value at a path: a name, an attribute or item of one, and so on. Nothing is called: what
    comes over the network never becomes code. Raises ValueError for another expression, and what
    looking it up raises.
    """
    steps: list[ast.Attribute | ast.Subscript] = []
    while isinstance(path, ast.Attribute | ast.Subscript):
        steps.append(path)
        path = path.value
    if not isinstance(path, ast.Name):
        raise ValueError("only names, their attributes and items, such as self.stock['bread']")
    if path.id not in names:
        raise NameError(f"name {path.id!r} is not defined")
    value: Any = names[path.id]
    for step in reversed(steps):
        if isinstance(step, ast.Attribute):
            value = getattr(value, step.attr)
        else:
            # A literal alone, for example 3 or 'bread' or (1, 2).
            value = value[ast.literal_eval(step.slice)]
    return cast("object", value)


def debug_of(endpoint: RpcEndpoint, node: str, incarnation: int) -> Any:
    """The debug service of a node, to be called."""
    return endpoint.system_handle(DebugService, DEBUG_SERVICE, node, incarnation)
