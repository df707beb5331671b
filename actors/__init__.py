"""What users write and catch: actors, methods, messages, options, supervisors and errors. Pure; `runtime` hosts it."""

from actors import errors
from actors.actor import Actor
from actors.errors import NotExecutedError, OutcomeUnknownError, RemoteError, UnderstudyError
from actors.groups import Answer, Group
from actors.handle import Handle
from actors.messages import message
from actors.method import method
from actors.options import CallOptions, SpawnOptions
from actors.reference import Reference
from actors.retry import RetryPolicy
from actors.stream import Stream
from actors.supervision import ExitReason
from actors.supervisor import ChildSpec, ChildStatus, Supervisor
from actors.watching import Ended, Watch

__all__ = [
    "Actor",
    "Answer",
    "CallOptions",
    "ChildSpec",
    "ChildStatus",
    "Ended",
    "ExitReason",
    "Group",
    "Handle",
    "NotExecutedError",
    "OutcomeUnknownError",
    "Reference",
    "RemoteError",
    "RetryPolicy",
    "SpawnOptions",
    "Stream",
    "Supervisor",
    "UnderstudyError",
    "Watch",
    "errors",
    "message",
    "method",
]
