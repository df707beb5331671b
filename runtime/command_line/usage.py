"""How commands read what they are given, where click does it otherwise: mistakes in usage all name
the command, because click does not say to which of them an option belongs that lacks its argument;
and a negative number is a value, which click takes for an option.
"""

from __future__ import annotations

import re
from typing import Any

import click

_NEGATIVE = re.compile(r"-(\.?[0-9].*|Infinity)", re.DOTALL)
"""What no option begins with."""

_VALUE = "\0"
"""Stands before a negative number while click reads the command line. No argument of a process
contains it.
"""


class NamingGroup(click.Group):
    """A group of which each usage error has the context of the command that it is about."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            command = self.get_command(ctx, name) if name is not None else None
            # The context of the command has ended with its parser, so another one is made.
            if error.ctx is None and command is not None:
                error.ctx = click.Context(command, info_name=name, parent=ctx)
            raise


class CommandOfValues(click.Command):
    """A command whose arguments may be negative numbers: `understudy call counter add -5`."""

    def make_parser(self, ctx: click.Context) -> Any:
        """Return click's parser, which gets the negative numbers marked."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_marked(args: list[str]) -> Any:
            marked = [f"{_VALUE}{one}" if _NEGATIVE.fullmatch(one) else one for one in args]
            return tuple(map(_unmarked, parse(marked)))

        parser.parse_args = parse_marked
        return parser


def _unmarked(given: Any) -> Any:
    """What click has read, without the marks."""
    if isinstance(given, str):
        return given.removeprefix(_VALUE)
    if isinstance(given, dict):
        return {key: _unmarked(value) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return type(given)(map(_unmarked, given))
    return given
