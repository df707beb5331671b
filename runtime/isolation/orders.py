"""What a node and the processes of its isolated actors say to each other."""

from __future__ import annotations

import attrs

from actors.messages import message
from actors.method import Address
from actors.node import Member
from actors.options import SpawnOptions

ISOLATION_SERVICE = "@isolation"
"""The service of a node that its isolated actors use."""

CONTROL_SERVICE = "@control"
"""The service of such a process that its node uses."""

RESIDENT = "@resident"
"""The actor in such a process, for its node. Under its own name a forwarded call would look like one of the actor to itself."""


@message
@attrs.frozen(kw_only=True)
class Order:
    """What a process is to run. `address` is the actor's, on its node; `members` are those of the cluster at this moment. `chain`: who
    waits for the start; see `runtime.hosting.chains`.
    """

    class_path: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    options: SpawnOptions
    address: Address
    members: tuple[Member, ...]
    chain: str = ""


@message
@attrs.frozen
class StartFailure:
    """Why the actor did not start: `what` as `Type: text`, and the traceback.

    `needless`: it does not want to run, which is no failure; `what` is what it said.
    """

    what: str
    trace: str
    needless: bool = False


@message
@attrs.frozen
class Answer:
    """What the node answers: `value`, or where `code` is not empty the error that it and `plain` describe; see `runtime.calls.failures`."""

    value: object = None
    code: str = ""
    plain: dict[str, object] = attrs.field(factory=dict)
