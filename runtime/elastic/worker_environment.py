"""The environment and the command line of a worker; no I/O. The names of the variables are those of
torchrun, so that scripts written for torchrun run unchanged.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from runtime.elastic.expiry import WATCHDOG
from runtime.elastic.guardian import MARK
from runtime.elastic.ranks import RankAssignment
from runtime.elastic.runner import ERROR_FILE
from runtime.elastic.settings import ElasticSettings

MEMBERSHIP_FILE = "UNDERSTUDY_MEMBERSHIP_FILE"


def environment_of(
    inherited: Mapping[str, str],
    settings: ElasticSettings,
    placement: RankAssignment,
    local_rank: int,
    *,
    restarts: int,
    error_file: str,
    membership_file: str,
    mark: str,
    watchdog: int,
) -> dict[str, str]:
    """Return all environment variables of a worker. `restarts`: the restarts that were counted
    before this start. `watchdog`: the descriptor of its pipe to us.
    """
    own = placement.own
    given = {
        "RANK": placement.rank_of(local_rank),
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": placement.world_size,
        "LOCAL_WORLD_SIZE": own.local_world_size,
        "GROUP_RANK": own.group_rank,
        "GROUP_WORLD_SIZE": placement.group_world_size,
        "ROLE_NAME": settings.role,
        "ROLE_RANK": own.role_base_rank + local_rank,
        "ROLE_WORLD_SIZE": own.role_world_size,
        "MASTER_ADDR": placement.master_address,
        "MASTER_PORT": placement.master_port,
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_MAX_RESTARTS": settings.max_restarts,
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        ERROR_FILE: error_file,
        MEMBERSHIP_FILE: membership_file,
        MARK: mark,
        WATCHDOG: watchdog,
    }
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if own.local_world_size > 1:
        # Otherwise each worker would use all processors.
        defaults["OMP_NUM_THREADS"] = "1"
    return {**defaults, **inherited, **{name: str(value) for name, value in given.items()}}


def substituted(command: Sequence[str], local_rank: int) -> list[str]:
    """Return the arguments with `${local_rank}` replaced. Other texts with a dollar sign stay
    unchanged.
    """
    return [string.Template(part).safe_substitute(local_rank=str(local_rank)) for part in command]


def line_prefix(template: str, role: str, rank: int, local_rank: int, host: str) -> str:
    """Return the prefix of a worker's lines on the console."""
    if not template:
        return f"[{role}{rank}]: "
    return string.Template(template).safe_substitute(
        role_name=role, rank=str(rank), local_rank=str(local_rank), hostname=host
    )
