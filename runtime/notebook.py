"""An extension for notebooks: `%load_ext runtime.notebook`, then `%understudy help`.

It uses the blocking door, because the cells of a notebook are plain functions to their user. An
interrupt of the kernel cancels a call where it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import attrs

from actors.errors import UnderstudyError
from runtime.announcements import open_clusters
from runtime.blocking import BlockingCluster, connect
from runtime.environment import SystemEnvironment
from runtime.node import internals_of
from runtime.observation.cluster_html import status_html
from runtime.observation.node_queries import ask_for_actors
from runtime.observation.tree import Tree, draw_tree
from runtime.printable import many, plain

MAGIC = "understudy"
VARIABLE = "cluster"
"""The variable of the notebook in which the cluster is."""

DEFAULT_ADDRESS = "127.0.0.1:7400"

HELP = """\
%understudy connect [HOST:PORT [NAME]]  connect to the cluster of that name, of which a node listens
                                        there; it is in the variable `cluster` then. By default
                                        the local cluster of yours that is open
%understudy status                      the nodes and actors of `cluster`
%understudy tree                        its supervisors and their children
%understudy help                        this"""


def load_ipython_extension(ipython: Any) -> None:
    """Load the extension: IPython calls this for `%load_ext runtime.notebook`."""
    if _loaded(ipython) is None:
        ipython.register_magic_function(NotebookMagic(ipython).run, "line", MAGIC)


def unload_ipython_extension(ipython: Any) -> None:
    """Unload the extension: close what `%understudy connect` has opened."""
    magic = _loaded(ipython)
    if magic is not None:
        ipython.magics_manager.magics["line"].pop(MAGIC, None)
        magic.close()


def _loaded(ipython: Any) -> NotebookMagic | None:
    found = ipython.magics_manager.magics["line"].get(MAGIC)
    magic = getattr(found, "__self__", None)
    return magic if isinstance(magic, NotebookMagic) else None


@attrs.frozen
class NotebookView:
    """The value of a cell: HTML for notebooks, text for terminals."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


class NotebookMagic:
    """`%understudy`, in one notebook."""

    def __init__(self, ipython: Any) -> None:
        self._variables = cast("dict[str, object]", ipython.user_ns)
        self._own: BlockingCluster | None = None

    def run(self, line: str) -> NotebookView | None:
        """Run one line. User mistakes and errors of the cluster are one line, without a
        traceback.
        """
        from IPython.core.error import UsageError

        commands: Mapping[str, Callable[..., NotebookView | None]] = {
            "connect": self.connect,
            "status": self.status,
            "tree": self.tree,
            "help": self.help,
        }
        name, *words = line.split() or ["help"]
        command = commands.get(name)
        if command is None:
            raise UsageError(f"%understudy {name}: the commands are {', '.join(commands)}")
        if len(words) > (2 if name == "connect" else 0):
            raise UsageError(f"%understudy {name} takes no {words[-1]!r}; see %understudy help")
        try:
            return command(*words)
        except (UnderstudyError, ValueError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"%understudy {name}: {text}") from None

    def help(self) -> NotebookView:
        """Return the help text."""
        return NotebookView(f"<pre>{HELP}</pre>", HELP)

    def connect(self, address: str | None = None, name: str | None = None) -> None:
        """Connect, and close the connection of an earlier `connect`."""
        if address is None:
            local = open_clusters(SystemEnvironment())
            if len(local) > 1:
                listed = ", ".join(f"{one.address} ({one.program})" for one in local)
                raise ValueError(f"{len(local)} local clusters are open; say which: {listed}")
            address = local[0].address if local else DEFAULT_ADDRESS
        opened = connect(address, cluster=name)
        self.close()
        self._own = opened
        self._variables[VARIABLE] = opened

    def close(self) -> None:
        """Close the connection of `connect`, if there is one."""
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def status(self) -> NotebookView:
        """The nodes and their actors. A node that does not answer within a second is named."""
        cluster = self._cluster()
        node = cluster._door.node
        members = cluster.members()
        identities = [member.node_id for member in members]
        ask = partial(ask_for_actors, internals_of(node).endpoint, identities)
        reports = cluster._door.wait(ask)
        lines = [f"cluster {node.cluster}: {many(len(members), 'node')}"]
        for member in members:
            state = member.state if member.name in reports else "does not answer"
            lines.append(f"  {plain(member.name):<16} {state}")
            lines.extend(
                f"    {plain(str(actor['name'])):<24} {plain(str(actor['class']))}"
                for actor in reports.get(member.name, ())
            )
        return NotebookView(status_html(node.cluster, members, reports), "\n".join(lines))

    def tree(self) -> NotebookView:
        """The supervisors and their children."""
        found: Tree = self._cluster().tree()
        return NotebookView(found._repr_html_(), draw_tree(found))

    def _cluster(self) -> BlockingCluster:
        """The variable `cluster`, the connection, or the only cluster that a variable has."""
        found = self._variables.get(VARIABLE)
        if isinstance(found, BlockingCluster):
            return found
        if self._own is not None:
            return self._own
        others = {
            id(value): value
            for name, value in self._variables.items()
            if isinstance(value, BlockingCluster) and not name.startswith("_")
        }
        if len(others) != 1:
            raise ValueError(
                f"no variable `{VARIABLE}` has a cluster of runtime.blocking; %understudy connect "
                "HOST:PORT opens one"
            )
        return next(iter(others.values()))
