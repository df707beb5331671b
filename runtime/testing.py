"""For tests of programs that use this runtime: make the faults happen that production will.

    from runtime.testing import Faults

    faults = Faults()
    faults.add("reply-lost", times=1, method="add")
    async with open_node(faults=faults) as node:
        ...

Without a change to the program, `UNDERSTUDY_FAULTS="reply-lost=0.1,request-lost=0.1"` switches faults on in every node that starts.
"""

from runtime.faults import Fault, Faults, Point

__all__ = ["Fault", "Faults", "Point"]
