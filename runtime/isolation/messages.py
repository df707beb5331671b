"""The messages between a node and the processes of its isolated actors."""

from __future__ import annotations

import attrs

from actors.actor import Member
from actors.messages import message
from actors.method import Address
from actors.options import SpawnOptions

ISOLATION_SERVICE = "@isolation"
"""The service of a node that its isolated actors use."""


CONTROL_SERVICE = "@control"
"""The service of such a process that its node uses."""


STACK_SERVICE = "@stacks"
"""The service of such a process that shows its stacks, also while its actor starts."""


CHILD_DEBUG_SERVICE = "@child-debug"
"""The service of such a process for `understudy debug`."""


ISOLATED_ACTOR = "@resident"
"""The name under which the node calls the actor in such a process. Under its own name a forwarded
call would look like a call of the actor to itself. The text is part of the protocol.
"""


@message
@attrs.frozen(kw_only=True)
class LaunchRequest:
    """The actor that a process is to run. `address` is the actor's address on its node; `members`
    are the members of the cluster at this moment. `chain`: the call chain that waits for the start;
    see `runtime.hosting.chains`. `context`: the call context of the code that starts the actor; see
    `actors.call_context`.
    """

    class_path: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    options: SpawnOptions
    address: Address
    members: tuple[Member, ...]
    chain: str = ""
    context: str = ""


@message
@attrs.frozen
class StartFailure:
    """Why the actor did not start: `what` as `Type: text`, and the traceback.

    `needless`: its `on_start` raised `Ignore`, so it has not failed; `what` is that text.
    """

    what: str
    trace: str
    needless: bool = False


@message
@attrs.frozen
class NodeAnswer:
    """The node's answer: `value`, or, if `code` is not empty, the error that `code` and `plain`
    describe; see `runtime.calls.error_codec`.
    """

    value: object = None
    code: str = ""
    plain: dict[str, object] = attrs.field(factory=dict)
