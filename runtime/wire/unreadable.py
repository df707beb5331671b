"""Where a value is that a process cannot build from what was sent: found out for the error that
says so, when the decoder has refused the whole.

The decoder is run once more, with readers that raise nothing: the first value that cannot be built
is replaced by a mark, all that follows stays as the lists and maps in which it came, and the mark
is looked for in these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import attrs

from actors.errors import DecodeError

Step = int | str
"""An index in a list, or the name of a field or argument."""


@attrs.frozen
class UnreadablePlace:
    """The place of a value that cannot be built. `whole`: the item that it is in, as lists and maps
    where what they belong to was not built; `steps` lead to it from the outside.
    """

    whole: object
    steps: tuple[Step, ...]


class UnreadableSearch:
    """One search: the readers of a decoder, and what they have found."""

    def __init__(self) -> None:
        self.error: DecodeError | None = None
        """The first error of a reader."""
        self._mark = object()

    def guarded(self, read: Callable[[Any, bool], object]) -> Callable[[Any, bool], object]:
        """Return a callback of the decoder that reads like `read` until the first value that cannot
        be built.
        """

        def reading(content: Any, immutable: bool) -> object:
            if self.error is not None:
                # Inside of keys the decoder takes only what has a hash.
                return None if immutable else content
            try:
                return read(content, immutable)
            except DecodeError as error:
                self.error = error
                return self._mark

        return reading

    def steps_in(
        self, value: object, opened: Callable[[object], object]
    ) -> tuple[Step, ...] | None:
        """Return the steps from `value` to what could not be built; None if it is not in there.
        `opened` returns a list or map for what is none itself. As deep as the decoder goes.
        """
        if value is self._mark:
            return ()
        value = opened(value)
        items: Iterable[tuple[object, object]] = ()
        if type(value) is list or type(value) is tuple:
            items = enumerate(cast("list[object]", value))
        elif type(value) is dict:
            items = cast("dict[object, object]", value).items()
        for step, item in items:
            rest = self.steps_in(item, opened)
            if rest is not None:
                # The keys of a user's dict may be anything, and are not asked for their texts.
                return (step if type(step) is int or type(step) is str else "a key", *rest)
        return None
