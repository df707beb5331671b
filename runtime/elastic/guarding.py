"""The guardian of an agent's workers, started: for our own agent and for torch's."""

from __future__ import annotations

import os
import subprocess
import sys

from runtime.elastic import guardian

SHARE = 0.8
"""Of the time for which nobody else may take the places of workers, that passes before they are killed."""


def fence_seconds(lease_seconds: float, keep_alive_interval: float) -> float:
    """For how many seconds an agent may not run before its workers are killed.

    Its last renewal may be an interval old when it stops, and its workers have to be gone before the rest of its lease is.
    """
    return SHARE * (lease_seconds - keep_alive_interval)


def start_guardian(mark: str, seconds: float) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process that kills all that carries `mark` when this process has ended, or has written nothing for `seconds`.

    Returns it, and our end of the pipe to it, which does not block. Raises OSError if there can be no further process.
    """
    reader, writer = os.pipe()
    environment = {name: value for name, value in os.environ.items() if name != guardian.MARK}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(reader), mark, str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[reader],
            start_new_session=True,
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    os.set_blocking(writer, False)
    return process, writer
