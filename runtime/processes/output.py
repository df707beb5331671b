"""Lines out of the raw output of a process: pure, and bounded however the bytes come."""

from __future__ import annotations

MAX_LINE_BYTES = 64 * 1024
"""A longer line is passed on in pieces of this size."""


class LineSplitter:
    """Bytes in, text lines out; invalid UTF-8 becomes U+FFFD. Keeps less than `MAX_LINE_BYTES` between calls."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their line ends."""
        *whole, rest = (self._rest + data).split(b"\n")
        lines = [text for line in whole for text in self._pieces(line)]
        while len(rest) >= MAX_LINE_BYTES:
            cut = _character_boundary(rest, MAX_LINE_BYTES)
            lines.append(_text(rest[:cut]))
            rest = rest[cut:]
        self._rest = rest
        return lines

    def flush(self) -> list[str]:
        """The last line, if it has no line end."""
        rest, self._rest = self._rest, b""
        return self._pieces(rest) if rest else []

    def _pieces(self, line: bytes) -> list[str]:
        line = line.removesuffix(b"\r")
        if len(line) <= MAX_LINE_BYTES:
            return [_text(line)]
        pieces = []
        while line:
            cut = _character_boundary(line, MAX_LINE_BYTES)
            pieces.append(_text(line[:cut]))
            line = line[cut:]
        return pieces


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _character_boundary(line: bytes, limit: int) -> int:
    """The largest cut up to `limit` that does not split a UTF-8 character (at most four bytes long)."""
    if len(line) <= limit:
        return len(line)
    for cut in range(limit, limit - 4, -1):
        if line[cut] & 0xC0 != 0x80:
            return cut
    return limit
