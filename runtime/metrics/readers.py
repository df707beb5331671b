"""Metrics over TLS: the node shows its certificate, and reads those of who asks."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import cast

import trio

from actors.own_logger import own_logger
from actors.peers import may_act_as
from runtime.limited_log import LimitedLog
from runtime.links.credentials import FileCredentials, certified_by
from runtime.links.encryption import tls_reason
from runtime.wire.handshake import Certified

Secured = trio.SSLStream[trio.SocketStream]

logger = own_logger("understudy.metrics")


class CertifiedReaders:
    """Decides who may read the metrics of a node that has certificates: clients whose own
    certificate has a role that may read facts, in the node's cluster. `files`: those of the node;
    several threads share them. `now` gives seconds.
    """

    def __init__(self, files: FileCredentials, cluster: str, now: Callable[[], float]) -> None:
        self._files = files
        self._cluster = cluster
        self._log = LimitedLog(logger, now)

    async def secured(self, stream: trio.SocketStream) -> tuple[Secured, str] | None:
        """Shake hands over `stream`. Returns the encrypted stream, and why its other end may not
        read metrics: "" if it may. None if no handshake came about, which is logged. Raises OSError
        where the other end has gone already.
        """
        credentials = self._files.current()
        # Anyone may shake hands: health is for those without a certificate, too.
        context = credentials.for_anyone
        assert context is not None, "credentials of files have one"
        secured = Secured(stream, context, server_side=True, https_compatible=True)
        # Before the handshake, in which it may go.
        remote = stream.socket.getpeername()[0]
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            reason = error.__cause__
            self._log.warning(
                "closed a connection of %s for metrics: its TLS handshake failed (%s)",
                remote,
                tls_reason(reason) if isinstance(reason, ssl.SSLError) else reason or error,
            )
            return None
        # It passes `getpeercert` on.
        shown = cast("ssl.SSLObject", secured)
        if not shown.getpeercert():
            return secured, self._asked_for("this request came without a certificate")
        return secured, self._refusal(certified_by(shown, credentials.names))

    def _refusal(self, certified: Certified) -> str:
        names = ", ".join(certified.uris) or "no name"
        if not certified.role or certified.cluster != self._cluster:
            return self._asked_for(f"this one is for {names}")
        if not may_act_as(certified.role, "observer"):
            return self._asked_for(f"this one has the role {certified.role!r}")
        return ""

    def _asked_for(self, shown: str) -> str:
        return (
            "metrics are for those who show a certificate of this cluster with the role observer, "
            f"operator or node, and {shown}: make one with "
            f"`understudy tls cert --cluster {self._cluster} --role observer --name NAME`\n"
        )
