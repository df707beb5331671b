"""Takes recordings of a node for timelines: one at a time, bounded in time and size."""

from __future__ import annotations

import json
import zlib
from functools import partial
from typing import Any

import trio

from runtime.calls.endpoint import RpcEndpoint
from runtime.environment import Environment
from runtime.hosting.timeline_recorder import TimelineRecorder

MOST_SECONDS = 60.0
"""Seconds that one recording takes at most."""


class Recordings:
    """The recordings of one node."""

    def __init__(self, endpoint: RpcEndpoint, environment: Environment) -> None:
        self._endpoint = endpoint
        self._environment = environment
        self._recording = False

    async def take(self, seconds: float) -> bytes:
        """Record for so many seconds, and return what `TimelineRecorder.finish` gives as JSON,
        compressed. b"" while another recording is taken.
        """
        if self._recording:
            return b""
        host = self._endpoint.host
        recorder = TimelineRecorder(self._environment.now, host.workers.running)
        self._recording = True
        try:
            self._endpoint.record(recorder)
            with trio.move_on_after(max(0.0, min(seconds, MOST_SECONDS))):
                await recorder.watch_loop()
        finally:
            # Also when the reader has gone: records without a reader only take memory.
            self._endpoint.record(None)
            self._recording = False
        recording = recorder.finish()
        # In a thread: minutes of a busy node take seconds to be written and compressed.
        return await self._environment.in_thread(partial(_packed, recording), abandon=True)


def _packed(recording: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(recording).encode())
