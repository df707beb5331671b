"""What the actors are that the runtime itself starts among those of users: people are to see a pool
and not the classes that it is made of.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, cast

POOL: Final = "pool"
POOL_KEEPER: Final = "pool keeper"
"""It makes its node one of those on which the supervisor of the pool is started again."""

ROLES: Final[Mapping[str, str]] = {
    "runtime.pools.supervisor:PoolSupervisor": POOL,
    "runtime.pools.supervisor:PoolKeeper": POOL_KEEPER,
    "runtime.pools.supervisor:FunctionMember": "member of a pool of a function",
    "runtime.pools.supervisor:CoroutineMember": "member of a pool of a function",
    "runtime.functions.worker:FunctionWorker": "worker of node.run",
}
"""By class path: what is shown is known also of actors on nodes that do not answer, and of earlier
versions.
"""


def role_of(class_path: str | None) -> str:
    """What the runtime has an actor of this class for; "" for an actor of a user's class."""
    return ROLES.get(class_path or "", "")


def members_of(instance: object) -> int | None:
    """How many members a pool has, by its supervisor on this node; None for anything else."""
    # Imported where there is a pool. By identity: a class of a user may have the same path.
    module = sys.modules.get("runtime.pools.supervisor")
    if module is None or type(instance) is not module.PoolSupervisor:
        return None
    return cast("int", instance.present_members)  # type: ignore[attr-defined]


def with_roles(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an actor for people: instead of a class of the runtime, what the actor is."""
    role = role_of(row["class"])
    if not role:
        return dict(row)
    size = row.get("members")
    return {**row, "class": f"({role})" if size is None else f"({role} of {size})"}
