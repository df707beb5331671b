"""Who makes a call: the process at the other end of a connection, as far as it has proven who it
is. What it merely says of itself, in arguments or in the call context, is not part of this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, cast, get_args

import attrs

from actors.short_repr import short_repr

PeerRole = Literal["node", "operator", "client", "observer"]
"""What a certificate says that its holder is.

A node may do everything, because it can run any code. An operator may call methods, read all facts
about the cluster, and stop actors and nodes. A client may call methods. An observer may read facts.
"""

Proof = Literal["certificate", "secret", "self"]
"""How a peer has proven who it is: by a certificate of the cluster's CA; by the cluster's secret,
where no certificate was shown; not at all, because it is the node itself.
"""

CALLERS: frozenset[PeerRole] = frozenset(("operator", "client"))
"""The roles, besides nodes, that may call a method that says nothing else."""


_ACTS_AS: Final[Mapping[PeerRole, frozenset[PeerRole]]] = MappingProxyType(
    {
        "node": frozenset(("node", "operator", "client", "observer")),
        "operator": frozenset(("operator", "client", "observer")),
        "client": frozenset(("client",)),
        "observer": frozenset(("observer",)),
    }
)


def may_act_as(role: PeerRole, other: PeerRole) -> bool:
    """True if what has proven one role may take the rights of the other: its own, or fewer."""
    return other in _ACTS_AS[role]


@attrs.frozen
class VerifiedPeer:
    """Who makes a call, as its node has verified it.

    `role`: of the certificate; "node" where the proof is the secret, which every member has; or
    the lesser role that the process has asked for.
    `name`: of the certificate, such as the person's or program's; of a node the node's name.
    `node`, `incarnation`: the process, as it names itself; no two that are connected at once have
    the same. `proof`: what verifies the role and the name. `certificate`: the SHA-256 of the
    certificate, in hexadecimal digits; "" for the other proofs. `certified`: the role in the
    certificate, where the process has asked for a lesser one; None otherwise.
    """

    role: PeerRole
    name: str
    node: str
    incarnation: int
    proof: Proof
    certificate: str = ""
    certified: PeerRole | None = None

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}"


def checked_allow(given: object, method: str) -> frozenset[PeerRole] | None:
    """Return the roles that `@method(allow=...)` names. Raises TypeError or ValueError."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"@method: allow of {method} is a tuple of roles, not {short_repr(given)}")
    roles = frozenset(cast("Iterable[object]", given))
    for role in roles:
        if role not in get_args(PeerRole):
            raise ValueError(
                f"@method: allow of {method} names {short_repr(role)}; the roles are "
                f"{', '.join(get_args(PeerRole))}"
            )
    return cast("frozenset[PeerRole]", roles)


def may_call(role: PeerRole, allow: Collection[PeerRole] | None) -> bool:
    """True if a peer of this role may call a method that allows these roles; None: those that may
    call methods in general.
    """
    return role == "node" or role in (CALLERS if allow is None else allow)
