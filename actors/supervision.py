"""The terms of supervision: what a supervisor knows of its children, and what it can decide.

The words are Erlang/OTP's. Plain values without behaviour, used between the decisions
(`actors.restarts`), those who declare supervisors (`actors.supervisor`) and the runtime that
carries decisions out.
"""

from __future__ import annotations

from typing import Literal, get_args

import attrs

from actors.exact import exact_fields
from actors.messages import message
from actors.options import is_unprintable
from actors.retry import check_number, growing_delay
from actors.short_repr import short_repr

RestartType = Literal["permanent", "transient", "temporary"]
Strategy = Literal["one-for-one", "one-for-all", "rest-for-one"]
AutomaticShutdown = Literal["never", "any-significant", "all-significant"]
ExitKind = Literal[
    "normal",
    "shutdown",
    "raised",
    "exit code",
    "signal",
    "stopped",
    "parent stopped",
    "node died",
    "node left",
    "start failed",
    "not placed",
    "idle",
    "killed",
    "no such actor",
]
ChildState = Literal["stopped", "starting", "running", "exited", "stopping", "restarting"]
Phase = Literal["new", "starting", "running", "stopping", "ended"]
RequestKind = Literal["add", "terminate", "restart", "delete"]
Reply = Literal[
    "started",
    "ignored",
    "start failed",
    "already started",
    "already present",
    "stopped",
    "deleted",
    "running",
    "restarting",
    "not found",
    "too many children",
    "supervisor stopped",
]
ChildKind = Literal["worker", "supervisor"]
Shutdown = float | Literal["kill"] | None
"""How a child is stopped: the seconds that it may take, "kill" for at once and without `on_stop`,
None for no limit.
"""


def check_word(what: str, word: object, words: object) -> None:
    """Raise a ValueError, which lists the words of a Literal type, for a word that is none of
    them.
    """
    if word not in get_args(words):
        raise ValueError(
            f"{what} must be one of {', '.join(map(repr, get_args(words)))}, not {short_repr(word)}"
        )


@message
@attrs.frozen
class ExitReason:
    """Why an actor ended, or did not start. `text` is for people, `traceback` shows where it was
    raised; both may be empty. "not placed": it was not started, because no node fitted, or the node
    or the store failed. "killed": it was ended without its `on_stop`, or because it did not stop in
    its time.
    """

    kind: ExitKind
    text: str = ""
    traceback: str = attrs.field(default="", repr=False)

    def __attrs_post_init__(self) -> None:
        check_word("kind of an exit", self.kind, ExitKind)

    @property
    def is_normal(self) -> bool:
        """True for the ends that OTP calls normal or shutdown: a transient child is not restarted
        after one.
        """
        return self.kind in ("normal", "shutdown", "stopped", "parent stopped", "idle")

    @property
    def is_failure(self) -> bool:
        """False for ends that are not the actor's fault but that of its node or the store: a
        restart after them uses up no intensity.
        """
        return self.kind not in ("node died", "node left", "not placed")

    @property
    def is_passed_on(self) -> bool:
        """True for the ends that stop linked actors. An actor whose node left in order is only
        moved.
        """
        return not self.is_normal and self.kind != "node left"

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text not in ("", self.kind) else self.kind


@attrs.frozen(field_transformer=exact_fields)
class ChildRule:
    """The rules of one child, on which decisions depend.

    `shutdown`: seconds that it may take to stop, "kill" for none, None for no limit. `significant`:
    its end by itself can end the supervisor (see `RestartMachine`). Raises TypeError or ValueError,
    naming the child, for invalid values.
    """

    id: str
    restart: RestartType = attrs.field(default="permanent", kw_only=True)
    significant: bool = attrs.field(default=False, kw_only=True)
    shutdown: Shutdown = attrs.field(default=5.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise TypeError(f"a child's id must be a str, not {short_repr(self.id)}")
        if not self.id:
            raise ValueError("a child's id must not be empty")
        if self.id != self.id.strip() or is_unprintable(self.id):
            # It ends the child's name.
            raise ValueError(
                f"child {self.id!r}: an id has no control characters, no lone surrogates, and no "
                "spaces at the ends"
            )
        check_word(f"child {self.id!r}: restart", self.restart, RestartType)
        if not isinstance(self.significant, bool):
            raise TypeError(
                f"child {self.id!r}: significant must be True or False, not "
                f"{short_repr(self.significant)}"
            )
        if self.significant and self.restart == "permanent":
            raise ValueError(
                f"child {self.id!r}: a permanent child is restarted whenever it ends, so it "
                "cannot be significant; give restart='transient' or 'temporary' together with it"
            )
        if self.shutdown is not None and self.shutdown != "kill":
            check_number(f"child {self.id!r}: shutdown", self.shutdown)


@message
@attrs.frozen(kw_only=True, field_transformer=exact_fields)
class RestartBackoff:
    """Waits between the restarts of a child, where OTP has none.

    `initial_delay`: seconds before the first restart; each further one in a row waits `backoff`
    times longer, up to `max_delay`, spread by `jitter` (a share from 0 to 1) to either side. A
    child that ran for `calm` seconds starts over at the first delay. Raises TypeError or
    ValueError, naming the field, for what makes no sense.
    """

    initial_delay: float = 0.1
    backoff: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.2
    calm: float = 60.0

    def __attrs_post_init__(self) -> None:
        check_number("initial_delay", self.initial_delay)
        check_number("backoff", self.backoff, least=1.0)
        check_number("max_delay", self.max_delay)
        check_number("jitter", self.jitter, most=1.0)
        check_number("calm", self.calm)

    def delay(self, failures: int, draw: float) -> float:
        """Seconds before the restart that follows this many failures in a row (1 is the first);
        `draw` in [0, 1) is the jitter's.
        """
        return growing_delay(
            failures,
            draw,
            initial=self.initial_delay,
            factor=self.backoff,
            most=self.max_delay,
            jitter=self.jitter,
        )


PLACEMENT_BACKOFF = RestartBackoff(
    initial_delay=0.1, backoff=2.0, max_delay=5.0, jitter=0.2, calm=60.0
)
"""The delays between restarts that are not the child's fault; the first is immediate. They bound
what the intensity does not: a child whose nodes die repeatedly, and children for which there is no
node. At most 5 s, because a node that has come back is used only after this delay.
"""


@attrs.frozen
class StartChild:
    """Start the child; answer with `started`, `ignored` or `start_failed`. A `StopChild` of it may
    come first.
    """

    id: str


@attrs.frozen
class StopChild:
    """Stop the child, or its start if that is still going on; answer with `stopped`. `shutdown` is
    its rule's.
    """

    id: str
    shutdown: Shutdown


@attrs.frozen
class TryAgain:
    """Call `try_again(id, now)` at time `at`: the child's restart waits for it. An outdated call is
    ignored, so it needs no cancelling.
    """

    id: str
    at: float


@attrs.frozen
class Forgotten:
    """The child's spec is no longer kept."""

    id: str


@attrs.frozen
class SupervisorAnswer:
    """The answer to a request. `reason` is there for "start failed"."""

    request: object
    reply: Reply
    reason: ExitReason | None = None


@attrs.frozen
class AllStarted:
    """All children have started, so the supervisor has started."""


@attrs.frozen
class Exit:
    """All children have ended; the supervisor ends with this reason."""

    reason: ExitReason


Effect = StartChild | StopChild | TryAgain | Forgotten | SupervisorAnswer | AllStarted | Exit


@attrs.frozen
class ChildView:
    """The public state of one child. "restarting" includes waiting for the next try; `restarts`
    counts the restarts that succeeded.
    """

    rule: ChildRule
    state: ChildState
    restarts: int
    last_exit: ExitReason | None
