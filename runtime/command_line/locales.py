"""Arguments and output where the locale's encoding is not UTF-8, as with `LC_ALL=C`: Python reads
each byte that the encoding does not have as a lone surrogate, which no name has.
"""

from __future__ import annotations

import codecs
import io
import re
import sys

_ESCAPED = re.compile(r"(?:\\udc[89a-f][0-9a-f])+")
"""Lone surrogates of bytes, as `repr` writes them."""

_FIRST = 0xDC00
"""The lone surrogate of byte 0, of which Python uses those from byte 128 on."""


def unreadable(text: str) -> str:
    """Why a text of the command line cannot be used, as a sentence; "" if it can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return ""
    encoding = sys.getfilesystemencoding()
    advice = "" if encoding == "utf-8" else ": set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
    return f"{readable(repr(text))} is no text in {encoding}, the encoding of the locale{advice}."


def readable(line: str) -> str:
    """A line for people, in which the bytes behind lone surrogates are read as UTF-8."""
    return _ESCAPED.sub(_read, line)


def _read(found: re.Match[str]) -> str:
    codes = found[0].split("\\u")[1:]
    return bytes(int(code, 16) - _FIRST for code in codes).decode(errors="backslashreplace")


def write_all(stream: object) -> None:
    """Make a stream write what its encoding does not have as `\\xe9`, instead of failing. A lone
    surrogate is written as the byte that it was read from, such as one of a file's name.
    """
    if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
        codecs.register_error("understudy.escape", _escaped)
        stream.reconfigure(errors="understudy.escape")


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    written = b"".join(
        bytes([ord(one) - _FIRST])
        if _FIRST + 128 <= ord(one) < _FIRST + 256
        else one.encode("ascii", "backslashreplace")
        for one in error.object[error.start : error.end]
    )
    return written, error.end
