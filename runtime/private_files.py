"""Files with secrets and keys, which must be for the user of the process alone.

What others can read is refused, as ssh refuses keys and Erlang its cookie. A warning would be
overlooked, and with such a file another user of the machine can run code on every node.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path


def refuse_open_file(what: str, path: Path | str, *, group: bool = False) -> None:
    """Raises ValueError if others than the user of this process can use the file `path`, or if it
    belongs to another user than this one and root; and OSError if it is not there. `what`: a name
    for the errors; `group`: the rights of its group are left as they are.
    """
    status = os.stat(path)
    mode = status.st_mode & 0o777
    user = os.geteuid()
    # Root can read the file of any user, who knows what is in it and may change it at any time.
    if stat.S_ISREG(status.st_mode) and status.st_uid not in (user, 0):
        raise ValueError(
            f"the {what} {path} belongs to another user (uid {status.st_uid}), who can read and "
            f"change it. If you have put it there: chown {user} {shlex.quote(str(path))}"
        )
    # Credentials of systemd and secrets of Kubernetes are files of root that a service, which is
    # not root, reads by its group: their mode is 0440.
    by_group = status.st_uid == 0 != user
    allowed = 0o070 if group else 0o040 if by_group else 0
    # Others read what a pipe or a device holds by other means than its mode.
    if stat.S_ISREG(status.st_mode) and mode & 0o077 & ~allowed:
        raise ValueError(
            f"others can read the {what} {path} (mode {mode:o}): "
            f"chmod {'440' if by_group else '600'} {shlex.quote(str(path))}"
        )
