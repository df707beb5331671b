"""What users write and catch: actors, methods, messages, options, supervisors and errors. Pure;
`runtime` hosts it.
"""

# First: it refuses files that hide the packages which the others import.
import actors.hidden_packages  # noqa: F401

# isort: split
from actors import errors
from actors.actor import Actor, Ended, Ignore, Member, Watch
from actors.call_context import CallContext, call_context
from actors.converters import register_converter
from actors.errors import NotExecutedError, OutcomeUnknownError, RemoteError, UnderstudyError
from actors.filters import Call, Filter, Next
from actors.groups import Answer, Group
from actors.handle import Handle
from actors.messages import message
from actors.method import Stream, method
from actors.options import CallOptions, SpawnOptions
from actors.peers import VerifiedPeer
from actors.reference import Reference, wait_all, wait_any
from actors.retry import RetryPolicy
from actors.supervision import ExitReason, RestartBackoff
from actors.supervisor import (
    ChildCounts,
    ChildSpec,
    ChildStatus,
    DeathReport,
    DynamicSupervisor,
    Supervisor,
    SupervisorStatus,
)

__all__ = [
    "Actor",
    "Answer",
    "Call",
    "CallContext",
    "CallOptions",
    "ChildCounts",
    "ChildSpec",
    "ChildStatus",
    "DeathReport",
    "DynamicSupervisor",
    "Ended",
    "ExitReason",
    "Filter",
    "Group",
    "Handle",
    "Ignore",
    "Member",
    "Next",
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
    "VerifiedPeer",
    "Watch",
    "call_context",
    "errors",
    "message",
    "method",
    "register_converter",
    "wait_all",
    "wait_any",
]
