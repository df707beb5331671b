"""An error that is kept where it was caught, and raised somewhere else."""

from __future__ import annotations


class ErrorToRaise:
    """Keeps one error until it is raised: in another task or thread, or at a later time.

    Once raised it is not kept any more. Its traceback then has the frames of those that refer to
    this object; with the error in it there would be a circle, and everything that these frames
    refer to would stay until the cyclic garbage collector runs.
    """

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error

    def is_of(self, error: BaseException | None) -> bool:
        """True if it is this very error."""
        return self._error is error

    def raise_it(self) -> None:
        """Raise the error. Does nothing if it was raised before."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # No circle with this frame, which the traceback has.
            del error
