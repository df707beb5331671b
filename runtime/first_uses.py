"""What every node process would do for the first time when it starts: importing this module does
it. The warm process imports it before it forks, so that the nodes find it done.
"""

from __future__ import annotations

import hashlib
import hmac

from runtime.annotation_checks import fits_answer
from runtime.hosting.node_service import NodeService
from runtime.links.transports import split_host_port
from runtime.membership.remote_store import StoreService

# OpenSSL looks an algorithm up at its first use, which takes longer than the whole handshake.
hmac.new(b"first", b"use", hashlib.sha256).digest()

# The codec in which Python writes the host of each address that is looked up or dialled, also where
# that is a number: it has two large tables.
"localhost".encode("idna")

# The pattern of ports, which is compiled at its first use.
split_host_port("localhost:1")

# What a node asks of the member by which it joins, and then of the store: what these methods take
# and return is read from their annotations once.
for _service, _asked in (
    (NodeService, ("store_place",)),
    (StoreService, ("grant", "transact", "range", "follow", "put", "keep_alive")),
):
    for _name in _asked:
        _definition = _service.__methods__[_name]
        assert _definition.arity[0] <= _definition.arity[1]
        fits_answer(_definition.function, None)
