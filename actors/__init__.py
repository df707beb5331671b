"""What users write and catch: actors, methods, messages, options, supervisors and errors. Pure; `runtime` hosts it."""

from actors import errors
from actors.actor import Actor, Ignore
from actors.children import ChildCounts, ChildSpec, ChildStatus, DeathReport, SupervisorStatus
from actors.errors import NotExecutedError, OutcomeUnknownError, RemoteError, UnderstudyError
from actors.groups import Answer, Group
from actors.handle import Handle
from actors.messages import message
from actors.method import method
from actors.options import CallOptions, SpawnOptions
from actors.reference import Reference, wait_all, wait_any
from actors.retry import RetryPolicy
from actors.stream import Stream
from actors.supervision import ExitReason, RestartBackoff
from actors.supervisor import DynamicSupervisor, Supervisor
from actors.watching import Ended, Watch

__all__ = [
    "Actor",
    "Answer",
    "CallOptions",
    "ChildCounts",
    "ChildSpec",
    "ChildStatus",
    "DeathReport",
    "DynamicSupervisor",
    "Ended",
    "ExitReason",
    "Group",
    "Handle",
    "Ignore",
    "NotExecutedError",
    "OutcomeUnknownError",
    "Reference",
    "RemoteError",
    "RestartBackoff",
    "RetryPolicy",
    "SpawnOptions",
    "Stream",
    "Supervisor",
    "SupervisorStatus",
    "UnderstudyError",
    "Watch",
    "errors",
    "message",
    "method",
    "wait_all",
    "wait_any",
]
