"""What Ctrl-C does before a command has begun: it ends the process with status 130 and prints
nothing, because there is nothing to close yet. And what SIGTERM does in the first process of a
container, of which it is all that ends it in order.

`signal` is imported late: it loads `enum`, and an interrupt that comes before the handler is in
place must still be caught.
"""

import os

INTERRUPTED_STATUS = 130
"""128 and the number of SIGINT: what a shell reports for a command that SIGINT has ended."""


def leave_at_interrupts() -> None:
    """From now on Ctrl-C ends the process at once, unless it is ignored, as in the background jobs
    of a shell script.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Not KeyboardInterrupt: raised within an import it may be swallowed there, or printed.
        signal.signal(signal.SIGINT, _leave)
    if os.getpid() == 1:
        # The kernel gives the first process of a container no default action: without a handler
        # SIGTERM has no effect, and `docker stop` waits in vain before it kills.
        signal.signal(signal.SIGTERM, end_by_signal)


def end_by_signal(signum: int, frame: object) -> None:
    """End the process at once, with the status that shells report for one that a signal has
    ended.
    """
    os._exit(128 + signum)


def raise_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual: the command is loaded, and closes what
    it has opened.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave() -> None:
    """End the process as one that was interrupted."""
    os._exit(INTERRUPTED_STATUS)


def _leave(signum: int, frame: object) -> None:
    leave()
