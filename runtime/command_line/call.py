"""`understudy call`: call a method of a named actor from a shell."""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

import click
import trio

from actors.errors import MethodNotFoundError, NotExecutedError
from actors.handle import Handle, with_methods
from actors.method import Stream
from runtime.command_line.connect import ChosenCluster, cluster_options, connect
from runtime.command_line.imports import import_modules, import_option
from runtime.command_line.locales import unreadable
from runtime.command_line.units import Number, Readable, Text
from runtime.command_line.usage import CommandOfValues
from runtime.membership.cluster_client import ClusterClient
from runtime.printable import plain_lines
from runtime.wire.standard_types import TEXTS, named_tuple_fields

_OF_STREAMS: Final = (MethodNotFoundError, NotExecutedError)
"""With an error of one of these classes a node refuses a stream that is called for one value, and
the other way round; with the second one if it is of an earlier version.
"""


def _value(text: str) -> object:
    """An argument as JSON, or as text where it is none, or is nested deeper than any message may
    be.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def plain(value: object) -> object:
    """A result as JSON can hold it; what has no form there by its `repr`."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str | int | None) else _plain_text(key): plain(one)
            for key, one in value.items()
        }
    if (names := named_tuple_fields(type(value))) is not None:
        return {name: plain(one) for name, one in zip(names, cast("Any", value), strict=True)}
    if isinstance(value, list | tuple | deque):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if isinstance(value, str | int | float | None) else _plain_text(value)


def _plain_text(value: object) -> str:
    # The same text as through the HTTP gateway, where a type has one that says it in full.
    return str(value) if isinstance(value, TEXTS) else repr(value)


def _keywords(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, object]:
    named: dict[str, object] = {}
    for text in given:
        if problem := unreadable(text):
            raise click.BadParameter(problem)
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        if name in named:
            raise click.BadParameter(f"{name} is given twice")
        named[name] = _value(value)
    return named


@click.command(
    cls=CommandOfValues,
    epilog="Example:  understudy call counter add 5        understudy call counter add -5",
)
@click.argument("actor", type=Text())
@click.argument("method", type=Text())
@click.argument("arguments", nargs=-1, type=Readable())
@click.option(
    "--timeout",
    type=Number(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds to wait.",
)
@click.option(
    "--keyword",
    "-k",
    "keywords",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_keywords,
    help="An argument by its name; may be repeated.",
)
@import_option
@cluster_options
def call(
    actor: str,
    method: str,
    arguments: tuple[str, ...],
    timeout: float,
    keywords: dict[str, object],
    modules: tuple[str, ...],
    chosen: ChosenCluster,
    as_json: bool,
) -> None:
    """Call METHOD of ACTOR and print its result; of a stream each item, on a line of its own. An
    argument that parses as JSON is sent as that value, any other as text.

    A text is printed as it is, any other result as Python writes it: a method that returns nothing
    prints None. With --json each result is one line of JSON, None is null, and what JSON cannot
    say is a text.
    """
    import_modules(modules)

    def show(result: object) -> None:
        # In color: click would take what looks like the codes of colors out of a result.
        click.echo(json.dumps(plain(result)) if as_json else _text(result), color=True)

    connection = connect(chosen)
    values = [_value(text) for text in arguments]
    trio.run(_call, connection, actor, method, values, keywords, timeout, show)


def _text(result: object) -> object:
    """What is printed of a result. In a terminal it controls nothing; a file gets it as it is."""
    if sys.stdout.isatty():
        return plain_lines(str(result))
    # As a text: click prints an empty line for None. Bytes are written as they are.
    return result if isinstance(result, bytes) else str(result)


async def _call(
    connection: AbstractAsyncContextManager[ClusterClient],
    actor: str,
    method: str,
    arguments: list[object],
    keywords: dict[str, object],
    timeout: float,
    show: Callable[[object], None],
) -> None:
    async with connection as client:
        handle = (await client.lookup(actor, timeout)).options(timeout=timeout)
        bound = _bound(handle, method)
        try:
            result: object = await bound(*arguments, **keywords)
        except NotExecutedError as refused:
            # The command does not know the class. A stream is refused so; whatever else is, is
            # refused as a stream, too, and certainly never ran.
            if type(refused) not in _OF_STREAMS:
                raise
            items = _bound(with_methods(handle, {method: True}), method)(*arguments, **keywords)
            await _show_items(cast("Stream[object]", items), refused, show)
        else:
            show(result)


async def _show_items(
    items: Stream[object], refused: NotExecutedError, show: Callable[[object], None]
) -> None:
    """Show what a stream yields. Raises `refused` if the method is no stream."""
    async with items:
        try:
            show(await anext(items))
        except StopAsyncIteration:
            return
        except NotExecutedError as error:
            raise (refused if type(error) in _OF_STREAMS else error) from None
        async for item in items:
            show(item)


def _bound(handle: Handle, method: str) -> Callable[..., Awaitable[object]]:
    """The actor's method. Not what `getattr` gives: a handle has some names of its own, such as
    `name` and `options`.
    """
    if method.startswith("_"):
        raise MethodNotFoundError(
            f"{handle.name} has no @method {method!r}: what begins with an underscore cannot be "
            "called from outside",
            actor=handle.name,
            method=method,
        )
    try:
        return cast("Callable[..., Awaitable[object]]", handle.__getattr__(method))
    except AttributeError as error:
        raise MethodNotFoundError(str(error), actor=handle.name, method=method) from None
