"""Limits of the system, reached on purpose: what must cost a call or a connection, and no node."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from trio._core._thread_cache import THREAD_CACHE


@contextmanager
def out_of_descriptors() -> Iterator[None]:
    """Within the block this process opens no file and no socket: EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    # Numbers below the limit are all taken.
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def out_of_threads() -> Iterator[None]:
    """Within the block the system grants this process no further thread. Patched: limits of
    processes do not hold for root.
    """

    def refuse(thread: threading.Thread) -> None:
        # As CPython does for EAGAIN of pthread_create.
        raise RuntimeError("can't start new thread")

    idle = dict(THREAD_CACHE._idle_workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        # Threads that trio keeps would serve all the same.
        THREAD_CACHE._idle_workers.clear()
        try:
            yield
        finally:
            THREAD_CACHE._idle_workers.update(idle)
