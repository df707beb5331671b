"""Both packages under the name of the project: what you write (`actors`) and what hosts it
(`runtime`).

`from understudy import Actor, open_node` gives the same objects as the two packages. Each is
imported when it is first used. If a file of yours hides one of the two packages, importing this
module raises ImportError, which names that file.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from understudy.name_conflicts import refuse_hiding_files

if TYPE_CHECKING:
    from actors import (
        Actor,
        Answer,
        Call,
        CallContext,
        CallOptions,
        ChildCounts,
        ChildSpec,
        ChildStatus,
        DeathReport,
        DynamicSupervisor,
        Ended,
        ExitReason,
        Filter,
        Group,
        Handle,
        Ignore,
        Member,
        Next,
        NotExecutedError,
        OutcomeUnknownError,
        Reference,
        RemoteError,
        RestartBackoff,
        RetryPolicy,
        SpawnOptions,
        Stream,
        Supervisor,
        SupervisorStatus,
        UnderstudyError,
        VerifiedPeer,
        Watch,
        call_context,
        errors,
        message,
        method,
        register_converter,
        wait_all,
        wait_any,
    )
    from runtime import (
        AlreadyDone,
        LocalCluster,
        LogFilter,
        MapResults,
        Node,
        NodeProcess,
        Pool,
        Tls,
        __version__,
        aio,
        blocking,
        draw_tree,
        open_local_cluster,
        open_node,
        record,
        simulation,
        testing,
    )

__all__ = [
    "Actor",
    "AlreadyDone",
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
    "LocalCluster",
    "LogFilter",
    "MapResults",
    "Member",
    "Next",
    "Node",
    "NodeProcess",
    "NotExecutedError",
    "OutcomeUnknownError",
    "Pool",
    "Reference",
    "RemoteError",
    "RestartBackoff",
    "RetryPolicy",
    "SpawnOptions",
    "Stream",
    "Supervisor",
    "SupervisorStatus",
    "Tls",
    "UnderstudyError",
    "VerifiedPeer",
    "Watch",
    "__version__",
    "aio",
    "blocking",
    "call_context",
    "draw_tree",
    "errors",
    "message",
    "method",
    "open_local_cluster",
    "open_node",
    "record",
    "register_converter",
    "simulation",
    "testing",
    "wait_all",
    "wait_any",
]

DOORS = frozenset({"aio", "blocking", "simulation", "testing"})
"""Modules of `runtime` that programs import by themselves."""

refuse_hiding_files(sys.modules[__name__])

if not TYPE_CHECKING:
    # To a type checker a name that is not there is a mistake.

    def __getattr__(name: str) -> object:
        """Import what was asked for."""
        if name in DOORS:
            return import_module(f"runtime.{name}")
        if name not in __all__:
            # With the module, so that Python suggests the nearest of its names.
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}",
                name=name,
                obj=sys.modules[__name__],
            )
        ours = import_module("actors")
        return getattr(ours if name in ours.__all__ else import_module("runtime"), name)


def __dir__() -> list[str]:
    """For completion, which imports nothing."""
    return sorted({*globals(), *__all__})
