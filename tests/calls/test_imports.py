"""Requests that start actors are searched for modules to import; what need not be searched is
told by its first bytes, and never wrongly.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, cast

import pytest
import trio
from cbor2 import dumps

from actors import ChildSpec, Supervisor
from actors.messages import import_path
from runtime.calls.imports import STARTING, Imports, _names_only_known
from runtime.environment import SystemEnvironment
from runtime.limited_log import BURST
from runtime.links.link import Link
from runtime.wire.codec import Codec
from runtime.wire.frames import Frame, Kind

KNOWN = import_path(Supervisor)
UNKNOWN = "no_such_application.actors:Shop"
CODEC = Codec(sentinel=b"sentinel")


def control(service: str, method: str, *args: object, number: int = 7) -> bytes:
    """The control part of a call, as a client writes it."""
    return b"".join(
        [
            b"\x86",
            b"\x1a" + number.to_bytes(4, "big"),
            dumps(service),
            dumps(0),
            dumps(method),
            CODEC.encode_arguments(args, {}, []),
            dumps(None),
        ]
    )


def searched(frame: Frame) -> bool:
    """Whether modules are to be imported for it, with the first look and without."""
    looks = Imports(CODEC, cast("Any", None), cast("Any", Nursery()))
    whole = bool(looks._missing(frame))
    began = looks.begin(cast("Link", None), frame, lambda link, frame: None)
    assert began == whole
    return began


class Nursery:
    def start_soon(self, *args: object, **kwargs: object) -> None:
        """Nothing is imported here."""


@pytest.mark.parametrize(("service", "method"), sorted(STARTING))
@pytest.mark.parametrize("long", [False, True])
def test_each_method_that_starts_something_is_searched(
    service: str, method: str, long: bool
) -> None:
    # The path of a class is a short text or a long one: they are written in different ways.
    unknown = f"no_such_application.{'a' * 40}:Shop" if long else "no_such:Shop"
    known = KNOWN if long else "actors.actor:Actor"
    assert searched(Frame(Kind.CALL, 0, control(service, method, unknown, (), {}), ()))
    assert not searched(Frame(Kind.CALL, 0, control(service, method, known, (), {}), ()))


def test_the_classes_of_child_specs_are_found_beside_a_known_class() -> None:
    child = ChildSpec(id="shop", actor=UNKNOWN)
    assert searched(Frame(Kind.CALL, 0, control("@node", "spawn", KNOWN, ((child,),), {}), ()))


def test_what_is_not_yet_whole_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        class __spec__:  # noqa: N801
            _initializing = True

    monkeypatch.setitem(sys.modules, "half_imported", cast("Any", Half()))
    frame = Frame(Kind.CALL, 0, control("@node", "spawn", "half_imported:Shop", (), {}), ())
    assert searched(frame)


def test_other_calls_of_services_are_not_searched() -> None:
    for method in ("status", "stop_actor", "transaction"):
        assert not searched(Frame(Kind.CALL, 0, control("@node", method, UNKNOWN), ()))


def test_a_request_that_is_cut_off_is_left_to_who_reads_it() -> None:
    whole = control("@node", "spawn", KNOWN, (), {})
    at = whole.index(b"espawn") + 6
    assert _names_only_known(whole, at)
    for end in range(at + 2 + len(KNOWN)):
        assert not _names_only_known(whole[:end], at)


def test_a_peer_that_names_unknown_classes_cannot_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            imports = Imports(CODEC, SystemEnvironment(), nursery)
            for number in range(5 * BURST):
                path = [f"no_such_application_{number}:Shop"]
                await imports._import(path, (cast("Link", None), number), lambda: None)

    with caplog.at_level(logging.INFO, logger="understudy.calls"):
        trio.run(main)
    assert len(caplog.messages) == BURST
