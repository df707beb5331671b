"""Imports the modules that a request to start an actor, or to run a function, names, before the
request is decoded.

Decoding imports nothing. But a node that was started without the application has none of its
classes until it is asked to start an actor: that request names the class, and may carry messages of
the application. So the classes that it names, its own and those of child specs in it, are found in
the bytes without building anything of them; modules that are missing are imported beside the event
loop, and the request is read after that.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable

import trio

from actors.errors import DecodeError
from actors.messages import import_path
from actors.own_logger import own_logger
from actors.supervisor import ChildSpec
from runtime.environment import Environment, NoThreadError
from runtime.limited_log import LimitedLog
from runtime.links.link import Link
from runtime.wire.arrays import first_number, first_text
from runtime.wire.classes import import_class, is_imported
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame

STARTING = frozenset(
    {
        ("@node", "spawn"),
        ("@node", "spawn_many"),
        ("@node", "spawn_each"),
        ("@isolation", "start"),
        ("@isolation", "start_many"),
        ("@isolation", "stand"),
        ("@functions", "run"),
        ("@functions", "run_if_room"),
        ("@isolation", "run"),
    }
)
"""Services and methods whose first argument is the path of a class of actors, or of a function."""

HEAD_BYTES = 96
"""Bytes at the beginning of a call in which the names of service and method are: a list, a number,
a name, an epoch and a name, however long their numbers and lengths are written.
"""

_MAY_START = re.compile(
    "|".join(sorted({method for _, method in STARTING}, key=len, reverse=True)).encode()
)

MOST_CLASSES = 256
"""Classes that one request may name and have imported."""

logger = own_logger("understudy.calls")

_CHILD_SPEC = import_path(ChildSpec)
_CHILD_SPEC_BYTES = _CHILD_SPEC.encode()


class Imports:
    """The imports under way for requests of other nodes, each of which is read when its own is
    done.
    """

    def __init__(self, codec: Codec, environment: Environment, nursery: trio.Nursery) -> None:
        self._codec = codec
        self._environment = environment
        self._log = LimitedLog(logger, lambda: environment.now())
        self._nursery = nursery
        self._waiting: set[tuple[Link, int]] = set()

    def begin(self, link: Link, frame: Frame, then: Callable[[Link, Frame], None]) -> bool:
        """Return True if the request names modules that must be imported first; `then` is called
        afterwards, unless the request is cancelled meanwhile.
        """
        # Most calls of services start nothing. Looking into one costs as much as reading it, so the
        # name of the method is sought first: of a frame's control part, it is in the first bytes.
        found = _MAY_START.search(frame.control, 0, HEAD_BYTES)
        if found is None or (not frame.segments and _names_only_known(frame.control, found.end())):
            return False
        missing = self._missing(frame)
        if not missing:
            return False
        key = link, first_number(frame.control)
        self._waiting.add(key)
        self._nursery.start_soon(self._import, missing, key, functools.partial(then, link, frame))
        return True

    def close(self) -> list[tuple[Link, int]]:
        """Return the requests that wait, and their links: none of them is read any more."""
        waiting, self._waiting = self._waiting, set()
        # In the same order in each run of a simulation.
        return sorted(waiting, key=lambda one: (one[0].peer.identity, one[1]))

    def cancel(self, link: Link, number: int) -> bool:
        """The caller of a request gave up; False if it waits for no import."""
        waits = (link, number) in self._waiting
        self._waiting.discard((link, number))
        return waits

    def _missing(self, frame: Frame) -> list[str]:
        """The classes that a request names whose modules are not imported yet. Raises
        ProtocolError.
        """
        seen: list[str] = []

        def see(path: str, fields: object) -> None:
            if (
                path == _CHILD_SPEC
                and isinstance(fields, dict)
                and type(fields.get("actor")) is str
                and len(seen) < MOST_CLASSES
            ):
                seen.append(fields["actor"])

        parts = self._codec.skim(frame.control, frame.segments, see)
        if (
            type(parts) is not list
            or len(parts) < 5
            or type(parts[1]) is not str
            or type(parts[3]) is not str
        ):
            return []
        if (parts[1], parts[3]) not in STARTING:
            return []
        arguments = parts[4]
        first = arguments[0] if type(arguments) is list and arguments else None
        if type(first) is list and first:
            first = first[0]
        return [path for path in [first, *seen] if type(path) is str and not is_imported(path)]

    async def _import(
        self, paths: list[str], key: tuple[Link, int], then: Callable[[], None]
    ) -> None:
        errors: list[DecodeError | NoThreadError] = []
        try:
            errors += await self._environment.in_thread(functools.partial(_import_all, paths))
        except NoThreadError as refused:
            errors.append(refused)
        for error in errors:
            # Limited, because peers choose what they name.
            self._log.log(
                logging.INFO,
                "cannot import the class that a request to start an actor names: %s",
                error,
            )
        link = key[0]
        if key not in self._waiting:
            return
        self._waiting.discard(key)
        if link.ended is None:
            link.handle_later(then)


def _names_only_known(control: bytes, at: int) -> bool:
    """True if the arguments that begin at `at` are seen to name a class whose module is imported,
    and no child spec. False says nothing: they may be written in another way.
    """
    path = first_text(control, at)
    return (
        path != b""
        and path.isascii()
        and is_imported(path.decode())
        and _CHILD_SPEC_BYTES not in control
    )


def _import_all(paths: list[str]) -> list[DecodeError]:
    """Import them, and return why some cannot be imported. The start of an actor reports the same
    error, to its caller.
    """
    errors: list[DecodeError] = []
    for path in paths:
        try:
            import_class(path)
        except DecodeError as error:
            errors.append(error)
    return errors
