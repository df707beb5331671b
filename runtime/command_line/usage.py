"""Groups of commands whose mistakes in usage all name the command: click does not say to which of
them an option belongs that lacks its argument.
"""

from __future__ import annotations

from typing import Any

import click


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
