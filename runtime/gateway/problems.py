"""Problems: the answers that an HTTP client gets in place of a value (RFC 9457), and the status
code that says the outcome of the call.

    200  the value
    422  the method raised
    503  certainly not executed: repeat it, after the seconds in Retry-After
    504  unknown: it may have run
    404, 403, 400, 406, 409  certainly not executed, and a repeat would not be either
"""

from __future__ import annotations

import attrs

from actors import errors
from runtime.plain_calls.keyed_calls import PlainOutcome
from runtime.plain_calls.service import IS_STREAM, NO_STREAM

RETRY_AFTER = 1
"""Seconds. Refusals pass within seconds: a mailbox has room again, an actor is placed again."""

RETRY_HEADERS = (("retry-after", str(RETRY_AFTER)),)

NOT_EXECUTED = "not executed"

_TITLES = {
    400: "The request is malformed",
    401: "A token is required",
    403: "This may not be called",
    404: "There is no such thing",
    405: "The method of the request does not fit",
    406: "No representation that you accept",
    408: "The request took too long",
    409: "The key was used for another call",
    413: "The request is too large",
    415: "The media type is not supported",
    422: "The method raised",
    503: "The call was not executed",
    504: "The outcome of the call is unknown",
}

_REFUSALS = {
    "ActorNotFoundError": (404, "check the name; GET /v1/openapi.json lists what may be called"),
    "MethodNotFoundError": (404, "check the name; GET /v1/openapi.json lists what may be called"),
    "MethodNotExposedError": (403, "mark the method with @method(http=True), or allow it"),
    "NotAllowedError": (403, "start the gateway with a role that the method allows (--role)"),
    "BadArgumentsError": (400, "correct the arguments; GET /v1/openapi.json has their schema"),
    "EncodeError": (400, "correct the arguments"),
    "CallCycleError": (503, "repeat the call"),
    "KeyReusedError": (409, "use a new Idempotency-Key for a new call"),
    IS_STREAM: (406, "accept text/event-stream or application/jsonl"),
    NO_STREAM: (406, "accept application/json or application/cbor"),
}
"""By the type of the error; any other that says "not executed" is 503."""

_NEXT = {
    "not executed": "repeat the call: it certainly did not run",
    "unknown": "it may have run: read the state, then decide; a repeat with the same "
    "Idempotency-Key never runs it twice",
    "raised": "the method ran and raised; a repeat with the same Idempotency-Key gets this answer",
}

_BY_OUTCOME = {
    NOT_EXECUTED: errors.NotExecutedError,
    "raised": errors.RemoteError,
    "unknown": errors.OutcomeUnknownError,
}
"""The error whose explanation is shown, by outcome, if the error itself has none: it is the user's,
or a newer node's.
"""

OF_SERVERS = frozenset(
    {
        "BadAction",
        "BadBody",
        "BadHeader",
        "BadPath",
        "BadTopic",
        "BodyTooLarge",
        "BodyTooSlow",
        "ClusterLost",
        "DashboardFailure",
        "GatewayFailure",
        "HeaderTwice",
        "HostRefused",
        "KeyOfStream",
        "MediaType",
        NO_STREAM,
        "NodesSilent",
        "NotAcceptable",
        "OriginRefused",
        "PathNotFound",
        "ReadOnly",
        "RequestMethod",
        IS_STREAM,
        "TokenRequired",
        "TooManyActors",
        "TooManyConnections",
        "TooManyPages",
        "TooManyRequests",
    }
)
"""The errors that only HTTP servers answer with. They are no classes, and actors/errors.md explains
them as well.
"""


class ProblemError(Exception):
    """Raised within the gateway to answer a request with a problem. `headers`: besides those that
    every answer has.
    """

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        next_step: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(status, error, detail, NOT_EXECUTED, next_step, headers=headers)

    @classmethod
    def of(cls, problem: Problem) -> ProblemError:
        """The error that answers with a problem."""
        error = cls(problem.status, problem.error, problem.detail, problem.next_step)
        error.problem = problem
        return error


@attrs.frozen
class Problem:
    """The answer to a call that has no value. `error`: the class of the error."""

    status: int
    error: str
    detail: str
    outcome: str
    next_step: str
    more: dict[str, object] = attrs.field(factory=dict)
    headers: tuple[tuple[str, str], ...] = ()

    def plain(self) -> dict[str, object]:
        """The body of the answer."""
        return {
            "type": "about:blank",
            "title": _TITLES.get(self.status, "The call was not executed"),
            "status": self.status,
            "detail": self.detail,
            "outcome": self.outcome,
            "error": self.error,
            "next": self.next_step,
            "explain": explaining(self.error, self.outcome),
            **self.more,
        }


def explaining(error: str, outcome: str) -> str:
    """The command that explains an error of this name, after a call with this outcome."""
    cls = getattr(errors, error, None)
    is_ours = isinstance(cls, type) and issubclass(cls, errors.UnderstudyError)
    # What a method raised is the user's, also if it has a name of ours.
    if outcome == "raised" or not (is_ours or error in OF_SERVERS):
        error = _BY_OUTCOME[outcome].__name__
    return f"understudy explain {error}"


def status_of(outcome: str, error: str) -> int:
    """The status of a call that has ended so, with an error of this type."""
    if outcome == "raised":
        return 422
    if outcome == NOT_EXECUTED:
        return _REFUSALS.get(error, (503, ""))[0]
    # Also an outcome that a newer node has reported and this version does not know.
    return 504


def problem_of(outcome: PlainOutcome, actor: str, method: str) -> Problem:
    """The problem that says how a call has ended."""
    assert outcome.outcome != "value"
    error = str(outcome.error.get("type", "CallError"))
    detail = str(outcome.error.get("message", ""))
    more: dict[str, object] = {"actor": actor, "method": method}
    headers: tuple[tuple[str, str], ...] = ()
    next_step = _NEXT.get(outcome.outcome, _NEXT["unknown"])
    status = status_of(outcome.outcome, error)
    if outcome.outcome == "raised":
        more |= {
            "class": outcome.error.get("class", ""),
            "fields": outcome.error.get("fields", {}),
        }
    elif outcome.outcome == NOT_EXECUTED:
        next_step = _REFUSALS.get(error, (status, next_step))[1]
        if status == 503:
            headers = RETRY_HEADERS
    known = outcome.outcome if outcome.outcome in _NEXT else "unknown"
    return Problem(status, error, detail, known, next_step, more, headers)
