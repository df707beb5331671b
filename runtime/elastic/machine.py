"""The decisions of an agent of an elastic job, without I/O. Events in, effects out, in the order in
which they are to begin.

The agent is in one of four states. *joining*: none of its workers runs, and it waits for a round.
*running*: workers run; if the membership changed and they may stay, it waits for the next round
meanwhile (`rejoining`). *stopping*: workers are being stopped, to join a new round, to start again
in the present one, or for good; or they have been stopped, and the answer to the request for a
restart has not come yet. *ended*: nothing more is decided.
"""

from __future__ import annotations

from typing import Literal

import attrs

from runtime.elastic.ranks import RankAssignment

Policy = Literal["group", "worker", "spare"]
State = Literal["joining", "running", "stopping", "ended"]

POLICIES: tuple[Policy, ...] = ("group", "worker", "spare")

FINISHED = "finished"
"""The reason that is shown for a rendezvous that was closed when all workers of its job had ended
well.
"""


@attrs.frozen
class Rules:
    """The user's settings for the job. `notify`: workers keep running when the membership changes,
    and are notified; otherwise they are restarted, as by torchrun.

    `loss_seconds`: the longest time until the loss of an agent is known, which is longer than its
    lease (by `Timings.loss_margin`); 0 if the job cannot continue without that agent anyway.
    """

    local_world_size: int
    policy: Policy = "group"
    notify: bool = False
    loss_seconds: float = attrs.field(kw_only=True)


@attrs.frozen
class Joined:
    """A round is complete, and its ranks are known."""

    placement: RankAssignment


@attrs.frozen
class JoinFailed:
    """This agent has not joined a round. `kind`: the rendezvous was closed, the job has finished,
    too few agents came in time, the store is lost, this agent was a spare, or another reason, which
    `text` names.
    """

    kind: Literal["closed", "finished", "timeout", "lost", "spare", "other"]
    text: str


@attrs.frozen
class WorkerExited:
    """A worker ended without being stopped. `failed`: its exit status was not 0."""

    local_rank: int
    failed: bool


@attrs.frozen
class Stopped:
    """Every worker that was being stopped has ended, or some cannot end: then `stuck` says that
    they hang in the kernel, and that this machine can run no more workers.
    """

    stuck: str = ""


@attrs.frozen
class Answered:
    """The answer to `AskRestart`: whether the restart is granted, and in `text` why not."""

    incident: str
    granted: bool
    text: str = ""


@attrs.frozen
class MembershipChanged:
    """The agents of the round have changed. `left`: those that are gone without having finished;
    `waiting`: how many wait for the next round; `closed`: why the rendezvous was closed, and
    `finished`: whether that is because the job has finished.
    """

    left: tuple[str, ...] = ()
    waiting: int = 0
    closed: str = ""
    finished: bool = False

    @property
    def failed(self) -> str:
        """Why the job has failed; "" if it has not."""
        return "" if self.finished else self.closed


@attrs.frozen
class AgentLost:
    """This agent is cut off from the job: other agents may take its place soon."""

    text: str


@attrs.frozen
class Signalled:
    """The agent has received one of the signals that end it."""

    signum: int


Event = (
    Joined
    | JoinFailed
    | WorkerExited
    | Stopped
    | Answered
    | MembershipChanged
    | AgentLost
    | Signalled
)


@attrs.frozen
class Join:
    """Take part in the next round; this cancels an earlier attempt. `behind_spares`: give a spare
    the place first.

    `patient`: while the store is away, try again; otherwise fail at once, because workers run that
    must not run without the store.
    """

    behind_spares: bool = False
    patient: bool = True


@attrs.frozen
class CancelJoin:
    """Give up waiting for a round."""


@attrs.frozen
class StartWorkers:
    """Start these workers, with the ranks of the current placement."""

    local_ranks: tuple[int, ...]


@attrs.frozen
class StopWorkers:
    """Stop all running workers, then report `Stopped`. `signum`: the signal that they get first (0:
    the configured one).

    `at_once`: leave workers little time before SIGKILL, because other agents may take their places
    soon, or the user has sent a second signal.
    """

    signum: int = 0
    at_once: bool = False


@attrs.frozen
class AskRestart:
    """Ask for a restart from the job's budget, then report `Answered`.

    First hold a roll call: wait for at most `roll_call` seconds until all other agents of the round
    have answered. Workers that fail because another agent was lost need no restart from the budget,
    and their failure is seen earlier than that loss.
    """

    incident: str
    roll_call: float = 0.0


@attrs.frozen
class CancelAsk:
    """Withdraw a request for a restart: another agent caused the failure, or this agent's own place
    is lost.
    """


@attrs.frozen
class Notify:
    """Notify the running workers of the current placement."""


@attrs.frozen
class MarkDone:
    """Record that all workers of this agent have ended, and leave."""

    failed: bool


@attrs.frozen
class Leave:
    """Leave the rendezvous; the others continue."""


@attrs.frozen
class Close:
    """Close the rendezvous: the job is over for all."""

    reason: str


@attrs.frozen
class End:
    """The agent ends with this exit code; always the last effect."""

    code: int
    text: str = ""


Effect = (
    Join
    | CancelJoin
    | StartWorkers
    | StopWorkers
    | AskRestart
    | CancelAsk
    | Notify
    | MarkDone
    | Leave
    | Close
    | End
)


@attrs.define
class _PendingStop:
    """The plan for after the workers that are being stopped have ended.

    `granted`: the answer to the request for a restart; None until it has come. `stopped`: all
    workers have ended. `lost_agent`: an agent of the round was lost, so no restart from the budget
    is needed. `last`: the effects of `after="end"`.
    """

    after: Literal["join", "start", "end"] = "join"
    incident: str | None = None
    granted: bool | None = True
    why_not: str = ""
    behind_spares: bool = False
    stopped: bool = False
    lost_agent: bool = False
    last: tuple[Effect, ...] = ()


class AgentMachine:
    """Decides what one agent does. Pass it the events; carry out the effects that it returns, in
    their order.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state: State = "joining"
        self.rejoining = False
        self.placement: RankAssignment | None = None
        self.running: set[int] = set()
        self.succeeded: set[int] = set()
        self.given_up: set[int] = set()
        self._starts: dict[int, int] = {}
        self._asked: dict[str, int] = {}
        self._stop = _PendingStop()

    @property
    def failing(self) -> bool:
        """True if the agent has ended its part, or is about to."""
        return self.state == "ended" or (
            self.state == "stopping" and (self._stop.after == "end" or self._stop.granted is False)
        )

    def begin(self) -> list[Effect]:
        """Return the first effect: to join a round."""
        return [Join()]

    def handle(self, event: Event) -> list[Effect]:
        """Decide what to do about an event, and return the effects. Events that arrive too late,
        because a decision was made meanwhile, change nothing.
        """
        if self.state == "joining":
            effects = self._while_joining(event)
        elif self.state == "running":
            effects = self._while_running(event)
        elif self.state == "stopping":
            effects = self._while_stopping(event)
        else:
            effects = []
        self.check_invariants()
        return effects

    def check_invariants(self) -> None:
        """Assert what holds between any two events. Checked after each event: that is cheap beside
        what an event causes.
        """
        ranks = self.running | self.succeeded | self.given_up
        assert ranks <= set(range(self.rules.local_world_size)), "a worker has a local rank"
        assert len(ranks) == len(self.running) + len(self.succeeded) + len(self.given_up), (
            "a worker runs, has succeeded or is given up"
        )
        assert self.state in ("running", "stopping") or not self.running
        assert not self.rejoining or self.state == "running"
        assert self.placement is not None or self.state in ("joining", "ended")
        assert not self._asked or (self.state == "running" and self.rules.policy == "worker")
        assert self.running.isdisjoint(self._asked.values()), "a restart is asked for what is down"
        assert self.running <= self._starts.keys()

    def _while_joining(self, event: Event) -> list[Effect]:
        match event:
            case Joined(placement):
                self.placement = placement
                return self._start()
            case JoinFailed("spare" | "finished", text):
                return self._end(End(0, text))
            case JoinFailed(_, text):
                return self._end(Leave(), End(1, text))
            case Signalled(signum):
                return self._end(CancelJoin(), Leave(), End(128 + signum))
            case _:
                return []

    def _while_running(self, event: Event) -> list[Effect]:
        match event:
            case WorkerExited(local_rank, failed):
                return self._on_exited(local_rank, failed=failed)
            case Answered(incident, granted):
                return self._on_answered(incident, granted=granted)
            case MembershipChanged():
                return self._on_changed(event)
            case Joined(placement):
                return self._on_joined_again(placement)
            case JoinFailed("lost", _):
                return self._stop_workers(_PendingStop(), at_once=True)
            case JoinFailed("finished", _):
                # All others are done, and these workers are the last ones: they run to their end.
                self.rejoining = False
                return []
            case JoinFailed(_, text):
                return self._stop_for_good(Leave(), End(1, text))
            case AgentLost():
                return self._stop_workers(_PendingStop(), at_once=True)
            case Signalled(signum):
                return self._stop_for_good(Leave(), End(128 + signum), signum=signum)
            case _:
                return []

    def _on_exited(self, local_rank: int, *, failed: bool) -> list[Effect]:
        # Its exit was on its way when it was stopped, or its group was.
        if local_rank not in self.running:
            return []
        self.running.remove(local_rank)
        if not failed:
            self.succeeded.add(local_rank)
            return self._finish_if_done()
        assert self.placement is not None
        place = f"{self.placement.round}"
        if self.rules.policy == "worker":
            # A worker by itself: its rank in this round, and how often it was started, make the
            # incident one of its own.
            incident = f"{place}/{self.placement.rank_of(local_rank)}/{self._starts[local_rank]}"
            self._asked[incident] = local_rank
            return [AskRestart(incident)]
        spare = self.rules.policy == "spare"
        incident = f"{place}/group-{self.placement.own.group_rank}" if spare else place
        roll_call = self.rules.loss_seconds if self.placement.group_world_size > 1 else 0.0
        return [
            *self._stop_workers(_PendingStop(incident=incident, granted=None, behind_spares=spare)),
            AskRestart(incident, roll_call),
        ]

    def _on_answered(self, incident: str, *, granted: bool) -> list[Effect]:
        local_rank = self._asked.pop(incident, None)
        # The answer came too late: the worker was started again with the next round.
        if local_rank is None:
            return []
        if granted:
            return self._start_these((local_rank,))
        # It stays down. The other workers do not depend on it, and run to their own end.
        self.given_up.add(local_rank)
        return self._finish_if_done()

    def _on_changed(self, change: MembershipChanged) -> list[Effect]:
        if change.failed:
            return self._stop_for_good(
                Leave(), End(1, f"the rendezvous was closed: {change.failed}")
            )
        # Closed because the job has finished: the workers that still run end by themselves.
        if change.closed:
            return []
        if not change.left and not change.waiting:
            return []
        if self.rules.policy == "group" and not self.rules.notify:
            return self._stop_workers(_PendingStop())
        if self.rejoining:
            return []
        self.rejoining = True
        return [Join(patient=False)]

    def _on_joined_again(self, placement: RankAssignment) -> list[Effect]:
        # The attempt was cancelled when its success was already on its way.
        if not self.rejoining:
            return []
        self.rejoining = False
        before, self.placement = self.placement, placement
        assert before is not None
        same = placement.same_ranks(before) and (
            self.rules.policy == "worker" or placement.same_master(before)
        )
        if same or self.rules.notify:
            return [Notify()]
        return self._stop_workers(_PendingStop(after="start"))

    def _while_stopping(self, event: Event) -> list[Effect]:
        stop = self._stop
        match event:
            case Stopped(stuck):
                stop.stopped = True
                self.running.clear()
                if stuck and stop.after != "end":
                    stop.after, stop.last = "end", (Leave(), End(1, stuck))
            case Answered(incident, granted, text) if incident == stop.incident:
                stop.granted, stop.why_not = granted, text
            case MembershipChanged() if event.failed:
                if stop.after != "end":
                    stop.after, stop.last = (
                        "end",
                        (Leave(), End(1, f"the rendezvous was closed: {event.failed}")),
                    )
            case MembershipChanged(left=left) if left:
                return [*self._lose(stop), *self._proceed()]
            case AgentLost():
                cancelled = self._lose(stop)
                # The earlier reason for stopping does not matter any more: the workers must stop
                # quickly.
                return [
                    *cancelled,
                    *(self._proceed() if stop.stopped else [StopWorkers(at_once=True)]),
                ]
            case Signalled(signum):
                impatient = stop.after == "end"
                if not impatient:
                    stop.after, stop.last = "end", (Leave(), End(128 + signum))
                if not stop.stopped:
                    return [StopWorkers(signum, at_once=impatient)]
            case _:
                # The exit of a worker that is being stopped, or the end of an attempt to join that
                # was cancelled.
                return []
        return self._proceed()

    def _lose(self, stop: _PendingStop) -> list[Effect]:
        asking = stop.after == "join" and stop.granted is None and not stop.lost_agent
        stop.lost_agent = True
        if stop.after == "start":
            # The round that the workers were to start in is over.
            stop.after = "join"
        return [CancelAsk()] if asking else []

    def _proceed(self) -> list[Effect]:
        stop = self._stop
        if not stop.stopped:
            # No worker may start beside one of the round before that still runs.
            return []
        assert not self.running
        if stop.after == "end":
            return self._end(*stop.last)
        if stop.after == "start":
            return self._start()
        # The answer to the request for a restart has not come yet.
        if stop.granted is None and not stop.lost_agent:
            return []
        if stop.granted or stop.lost_agent:
            self.state = "joining"
            return [Join(behind_spares=stop.behind_spares and not stop.lost_agent)]
        return self._end(Close(f"failed: {self._stop.why_not}"), End(1, self._stop.why_not))

    def _start(self) -> list[Effect]:
        if self.rules.policy != "worker":
            # Ranks of one group depend on each other, so workers that had finished start again as
            # well.
            self.succeeded.clear()
            self.given_up.clear()
        self.state = "running"
        self._asked.clear()
        wanted = tuple(
            rank
            for rank in range(self.rules.local_world_size)
            if rank not in self.succeeded | self.given_up
        )
        return self._start_these(wanted) if wanted else self._finish_if_done()

    def _start_these(self, local_ranks: tuple[int, ...]) -> list[Effect]:
        self.running.update(local_ranks)
        for local_rank in local_ranks:
            self._starts[local_rank] = self._starts.get(local_rank, 0) + 1
        return [StartWorkers(local_ranks)]

    def _finish_if_done(self) -> list[Effect]:
        if self.running or self._asked:
            return []
        failed = bool(self.given_up)
        text = (
            f"local rank {', '.join(map(str, sorted(self.given_up)))} failed, and no restart was "
            "left"
            if failed
            else ""
        )
        leaving: list[Effect] = [CancelJoin()] if self.rejoining else []
        return self._end(*leaving, MarkDone(failed), End(int(failed), text))

    def _stop_workers(
        self, stop: _PendingStop, signum: int = 0, *, at_once: bool = False
    ) -> list[Effect]:
        cancel: list[Effect] = [CancelJoin()] if self.rejoining else []
        self.state = "stopping"
        self.rejoining = False
        self._asked.clear()
        self._stop = stop
        return [*cancel, StopWorkers(signum, at_once)]

    def _stop_for_good(self, *last: Effect, signum: int = 0) -> list[Effect]:
        return self._stop_workers(_PendingStop(after="end", last=last), signum)

    def _end(self, *effects: Effect) -> list[Effect]:
        self.state = "ended"
        self.rejoining = False
        self._asked.clear()
        return list(effects)
