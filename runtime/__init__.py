"""What hosts actors: nodes, local clusters, and everything between them.

Each name is imported when it is first used. What needs none of them, such as the plug-in that
pytest loads in every run, costs no more than this file.
"""

import sys

from runtime.version import __version__

TYPE_CHECKING = False
# To a type checker it is True. Loading `typing` takes longer than everything else here, and the
# command `understudy` loads this file before it can handle Ctrl-C; so is `importlib` loaded late.
if TYPE_CHECKING:
    from runtime.cluster_processes import LocalCluster, NodeProcess
    from runtime.elastic import record
    from runtime.links.encryption import Tls
    from runtime.local_cluster import open_local_cluster
    from runtime.logs.formats import LogFilter
    from runtime.node import Node
    from runtime.node.opening import open_node
    from runtime.observation.tree import draw_tree
    from runtime.pools.journal import AlreadyDone
    from runtime.pools.map_run import MapResults
    from runtime.pools.pool import Pool

__all__ = [
    "AlreadyDone",
    "LocalCluster",
    "LogFilter",
    "MapResults",
    "Node",
    "NodeProcess",
    "Pool",
    "Tls",
    "__version__",
    "draw_tree",
    "open_local_cluster",
    "open_node",
    "record",
]

PLACES = {
    "AlreadyDone": "runtime.pools.journal",
    "LocalCluster": "runtime.cluster_processes",
    "LogFilter": "runtime.logs.formats",
    "MapResults": "runtime.pools.map_run",
    "Node": "runtime.node",
    "NodeProcess": "runtime.cluster_processes",
    "Pool": "runtime.pools.pool",
    "Tls": "runtime.links.encryption",
    "draw_tree": "runtime.observation.tree",
    "open_local_cluster": "runtime.local_cluster",
    "open_node": "runtime.node.opening",
    "record": "runtime.elastic",
}
"""The modules that define the names above."""


def _refuse_hiding_files() -> None:
    """Raise ImportError if a file of the user's hides a package that modules here import before
    `actors`, which would refuse it.
    """
    for name in ("attr", "attrs", "cbor2", "outcome", "sortedcontainers", "trio"):
        loaded = sys.modules.get(name)
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        specs = (find(name, None) for find in finders if find is not None)
        spec = next(filter(None, specs), None) if loaded is None else loaded.__spec__
        if spec is not None and spec.submodule_search_locations is None:
            # Raises the error.
            __import__("actors")


def _is_command() -> bool:
    """True in a process of the command `understudy`: its script, or `python -m`, which names
    itself so while it looks for the module.
    """
    started = sys.argv[0] if getattr(sys, "argv", None) else ""
    modules = {"understudy", "runtime.command_line"}
    return started.rpartition("/")[2] == "understudy" or (
        started == "-m" and not modules.isdisjoint(sys.orig_argv)
    )


try:
    _refuse_hiding_files()
except KeyboardInterrupt:
    # It is most of what runs before the command can handle Ctrl-C.
    if not _is_command():
        raise
    import os

    os._exit(130)


if not TYPE_CHECKING:
    # To a type checker a name that is not there is a mistake.

    def __getattr__(name: str) -> object:
        """Import what was asked for."""
        from importlib import import_module

        place = PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(place), name)


def __dir__() -> list[str]:
    """For completion, which imports nothing."""
    return sorted({*globals(), *PLACES})
