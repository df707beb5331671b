"""The option `--log-format` of the commands whose processes go on for long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click

from runtime.logs.formats import LOG_FORMATS, LogFormat, write_logs

F = TypeVar("F", bound=Callable[..., Any])


def _write(context: click.Context, parameter: click.Parameter, value: LogFormat) -> None:
    # At once: what is logged while the other options are read has the same form.
    handlers = logging.getLogger().handlers
    write_logs(handlers[0].level if handlers else logging.WARNING, value)


def log_format_option(command: F) -> F:
    """The option `--log-format`, which takes effect by itself."""
    return click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        expose_value=False,
        callback=_write,
        help="How logs are written to stderr: as text, or each line as a JSON object that names "
        "node, actor and call.",
    )(command)
