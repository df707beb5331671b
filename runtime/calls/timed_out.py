"""The error of a call whose timeout has passed, and the facts that its text is made from.

A layer that makes one call for another (a function's, by a service) changes the facts, and gets the
error of its own call: no text is taken apart.
"""

from __future__ import annotations

from typing import Final

import attrs

from actors.errors import CallError, CallTimeoutError, DeadlineExceededError
from runtime.wire.exceptions import attributes_of

_FACTS: Final = "_understudy_timed_out"
"""The attribute in which such an error keeps its facts."""


@attrs.frozen
class TimedOut:
    """The facts. `name`: what was called, as texts say it; `timeout`: in seconds; `what` did not
    happen within it; `why`: the end of the text, why the call was not made, "" if that is not
    known.
    """

    name: str
    timeout: float
    may_have_run: bool
    what: str = "gave no answer"
    why: str = ""

    @classmethod
    def of(cls, error: CallError) -> TimedOut | None:
        """Return the facts of an error that `error` has made; None for any other."""
        found = attributes_of(error).get(_FACTS)
        return found if type(found) is cls else None

    def error(
        self,
        *,
        actor: str | None = None,
        method: str | None = None,
        node: str | None = None,
        epoch: int | None = None,
        attempts: int = 0,
    ) -> CallError:
        """Make the error, with these attributes."""
        text = f"{self.name} {self.what} within its timeout of {self.timeout:g} s"
        cls: type[CallError]
        if self.may_have_run:
            cls, text = CallTimeoutError, f"{text}; it was cancelled, but may have taken effect"
        else:
            cls, text = DeadlineExceededError, f"{text}; it did not run and will not{self.why}"
        error = cls(text, actor=actor, method=method, node=node, epoch=epoch, attempts=attempts)
        attributes_of(error)[_FACTS] = self
        return error
