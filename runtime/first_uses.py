"""What every node process would do for the first time when it starts: importing this module does
it. The warm process imports it before it forks, so that the nodes find it done.
"""

from __future__ import annotations

import hashlib
import hmac

# OpenSSL looks an algorithm up at its first use, which takes longer than the whole handshake.
hmac.new(b"first", b"use", hashlib.sha256).digest()

# The codec in which Python writes the host of each address that is looked up or dialled, also where
# that is a number: it has two large tables.
"localhost".encode("idna")
