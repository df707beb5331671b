"""The command `understudy`, whose nodes have leases of a minute, and otherwise their usual times:
`python -m tests.command_line.long_leases node ...`.

For tests that stop a node (SIGSTOP) and ask about it: on a busy machine a command may start after
the five seconds of a usual lease. Then the cluster has given the node up already.
"""

from __future__ import annotations

from runtime.command_line.entry import run
from runtime.environment import SystemEnvironment
from runtime.timings import Timings

LEASE = 60.0

if __name__ == "__main__":
    share = Timings().lease / LEASE
    timings = Timings(
        lease=LEASE,
        silence_share=Timings().silence_share * share,
        client_leases=Timings().client_leases * share,
    )
    # What nodes have if nobody gives them others.
    SystemEnvironment.__init__.__defaults__ = (timings,)
    run("understudy")
