"""A WSGI application that gunicorn loads before it forks (`--preload`): it connects as it is
imported, and once more in each worker, by the hook `post_fork`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from actors.errors import ForkedProcessError
from runtime.blocking import Blocking, BlockingCluster, connect
from tests.doors.actors_used import Counter

bind = "127.0.0.1:0"
workers = 2
preload_app = True


class Service:
    """What a process has of the cluster."""

    def __init__(self, name: str) -> None:
        self.cluster: BlockingCluster = connect(os.environ["CLUSTER"], name=name)
        self.counter: Blocking[Counter] = self.cluster.lookup(os.environ["COUNTER"], Counter)


class Services:
    """That of the process that loaded the application, and that of the worker."""

    def __init__(self) -> None:
        self.inherited = Service("master")
        assert self.inherited.counter.add(100) == 100
        self.own: Service | None = None


def post_fork(server: Any, worker: Any) -> None:
    """See gunicorn's documentation."""
    SERVICES.own = Service(f"web-{os.getpid()}")


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Adds one by the connection of the worker, or by that which it must not use."""
    service = SERVICES.own if environ["PATH_INFO"] == "/own" else SERVICES.inherited
    assert service is not None
    try:
        text = str(service.counter.add(1))
    except ForkedProcessError as error:
        text = str(error)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {text}".encode()]


# gunicorn reads this file as its configuration as well, in a namespace of its own: only the module
# has the application.
if __name__ == "tests.doors.preloaded_service":
    SERVICES = Services()
