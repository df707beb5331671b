"""A module that has the system refuse every second fork, beginning with the second, as it does at
its limit of processes.
"""

import errno
import itertools
import os

fork = os.fork
counter = itertools.count()


def refuse_every_second() -> int:
    if next(counter) % 2:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()


os.fork = refuse_every_second
