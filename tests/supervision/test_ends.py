"""What the log tells of the ends of supervised actors: nothing of those that were meant, one line of a death, with what follows from it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from actors import Actor, ChildSpec, DynamicSupervisor, Supervisor, method
from actors.errors import ActorNotFoundError, ActorStartError
from actors.supervision import ExitReason, RestartType
from runtime import open_node
from runtime.pools.supervisor import PoolSupervisor
from runtime.supervision.end_lines import end_line, lost_line

SECRET = "a secret for the tests of logs"


class Worker(Actor):
    """Dies when it is end_line to."""

    @method
    async def die(self) -> None:
        self.nursery.start_soon(self.choke)

    async def choke(self) -> None:
        raise RuntimeError("poison")


TRACEBACK = 'Traceback:\n  File "/lib/trio.py", line 7, in run\n  File "/app/work.py", line 40, in choke\n    raise RuntimeError\n'


@pytest.mark.parametrize(
    ("reason", "restart", "failed", "ends_supervisor", "level", "text"),
    [
        (
            ExitReason("raised", "RuntimeError: poison", TRACEBACK), "permanent", False, False, logging.WARNING,
            "w has ended on n (raised: RuntimeError: poison, at /app/work.py:40 in choke); it is started again",
        ),
        (
            ExitReason("node died", "node n is gone"), "temporary", False, False, logging.WARNING,
            "w has ended on n (node died: node n is gone); it is not started again, being temporary",
        ),
        (ExitReason("node left"), "permanent", False, False, logging.INFO, "w has ended on n (node left); it is started again"),
        (
            ExitReason("normal"), "transient", False, False, logging.INFO,
            "w has ended on n (normal); it is not started again, being transient",
        ),
        (
            ExitReason("start failed", "two\nlines\n\nand more"), "transient", True, False, logging.WARNING,
            "w did not start (start failed: two lines); it is started again",
        ),
        (
            ExitReason("signal", "9"), "permanent", False, True, logging.ERROR,
            "w has ended on n (signal: 9); its supervisor ends with it, and stops its other children",
        ),
        (
            ExitReason("normal"), "transient", False, True, logging.INFO,
            "w has ended on n (normal); its supervisor ends with it, and stops its other children",
        ),
    ],
)  # fmt: skip
def test_an_end_is_one_line_with_what_follows_from_it(
    reason: ExitReason, restart: str, failed: bool, ends_supervisor: bool, level: int, text: str
) -> None:
    assert end_line("w", "n", reason, restart, failed=failed, ends_supervisor=ends_supervisor) == (  # type: ignore[arg-type]
        level,
        text,
    )


def test_the_end_of_a_temporary_child_says_what_its_supervisor_does_in_its_place() -> None:
    replaced = PoolSupervisor.after_temporary
    assert replaced is not None
    _, text = end_line(
        "pool/member-1",
        "n",
        ExitReason("signal", "9"),
        "temporary",
        failed=False,
        ends_supervisor=False,
        temporary=replaced,
    )
    assert text.endswith(
        "; it is not started again: the pool starts another member if it needs one"
    )
    reason = ExitReason("node died", "n")
    _, text = lost_line(
        "pool", [("a", "temporary")], reason, ends_supervisor=False, temporary=replaced
    )
    assert text.endswith(
        "; it is not started again: the pool starts another member if it needs one"
    )


@pytest.mark.parametrize(
    ("lost", "ends_supervisor", "level", "follows"),
    [
        ([("a", "permanent")], False, logging.WARNING, "s has lost a (node died: n); it is started again"),
        (
            [("a", "permanent"), ("b", "transient")], False, logging.WARNING,
            "s has lost a, b (node died: n); they are started again",
        ),
        (
            [("a", "temporary"), ("b", "temporary")], False, logging.WARNING,
            "s has lost a, b (node died: n); they are not started again, being temporary",
        ),
        (
            [("a", "temporary"), ("b", "permanent")], False, logging.WARNING,
            "s has lost a, b (node died: n); started again: b; not started again, being temporary: a",
        ),
        (
            [("a", "permanent")], True, logging.ERROR,
            "s has lost a (node died: n); s ends with that, and stops its other children",
        ),
        (
            [(str(i), "permanent") for i in range(12)], False, logging.WARNING,
            "s has lost 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... (node died: n); they are started again",
        ),
    ],
)  # fmt: skip
def test_the_death_of_a_node_is_one_line_with_what_follows_for_its_children(
    lost: list[tuple[str, RestartType]], ends_supervisor: bool, level: int, follows: str
) -> None:
    reason = ExitReason("node died", "n")
    assert lost_line("s", lost, reason, ends_supervisor=ends_supervisor) == (level, follows)


async def test_an_orderly_cluster_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "understudy")
    async with (
        open_node("here", secret=SECRET) as here,
        open_node("there", join=here.address, secret=SECRET) as there,
    ):
        inner = ChildSpec.of(
            "inner", Supervisor, [ChildSpec.of("worker", Worker), ChildSpec.of("second", Worker)]
        )
        await here.options(name="top").singleton(Supervisor, [inner])
        await there.options(name="other").spawn(Worker)
        await here.stop(await here.lookup("top/inner/worker", Worker))
        await here.lookup("top/inner/worker", Worker)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
    said = [
        record.getMessage() for record in caplog.records if "(incarnation" in record.getMessage()
    ]
    assert [" ".join(line.split()[:2] + line.split()[4:]) for line in said] == [
        "node there has left"
    ]


async def test_a_death_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "understudy")
    async with open_node("here", secret=SECRET) as here:
        await here.options(name="top").spawn(Supervisor, [ChildSpec.of("worker", Worker)])
        worker = await here.lookup("top/worker", Worker)
        await worker.die()
        with trio.fail_after(60):
            await here.wait_ended(worker)
            await here.lookup("top/worker", Worker)
        alone = await here.options(name="alone").spawn(Worker)
        await alone.die()
        with trio.fail_after(60):
            await here.wait_ended(alone)
    one, other = [record.getMessage() for record in caplog.records]
    assert one.startswith("top/worker has ended on here (raised: RuntimeError: poison, at ")
    assert one.endswith(" in choke); it is started again")
    # Nobody restarts it, so its line has the traceback with it.
    assert other.splitlines()[0] == "alone ended: raised: RuntimeError: poison"
    assert "in choke" in other


class Refusing(Worker):
    """Starts only if its node may have it."""

    def __init__(self, refuses: Path) -> None:
        if refuses.exists():
            raise RuntimeError("refused")


@pytest.mark.parametrize("kind", [DynamicSupervisor, Supervisor])
async def test_a_start_that_a_call_has_asked_for_is_not_said_to_be_tried_again(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, kind: type[DynamicSupervisor | Supervisor]
) -> None:
    caplog.set_level(logging.WARNING, "understudy")
    refuses = tmp_path / "refuses"
    refuses.touch()
    async with open_node("here", secret=SECRET) as here:
        top = await here.options(name="top").spawn(kind)
        with pytest.raises(ActorStartError):
            await top.start_child(ChildSpec.of("worker", Refusing, refuses))
        if kind is Supervisor:
            refuses.unlink()
            await top.start_child(ChildSpec.of("worker", Refusing, refuses))
            await top.stop_child("worker")
            refuses.touch()
            with pytest.raises(ActorStartError):
                await top.restart_child("worker")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (2 if kind is Supervisor else 1)
    for line in lines:
        assert line.startswith("top/worker did not start on here: RuntimeError: refused (")
        assert line.endswith(
            "; it is not started again: the call that has asked for it gets this error"
        )


class Busy(Supervisor):
    """Has work of its own beside its children."""

    @method
    async def fail(self) -> None:
        self.nursery.start_soon(self.choke)

    async def choke(self) -> None:
        raise RuntimeError("own work")


@pytest.mark.parametrize("name", ["top", None])
async def test_after_a_supervisor_has_crashed_no_call_waits_for_a_restart_of_its_children(
    name: str | None,
) -> None:
    async with open_node("here", secret=SECRET) as here:
        worker = ChildSpec.of("worker", Worker).changed(name="worker")
        top = await here.options(name=name).spawn(Busy, [worker])
        child = await here.lookup("worker", Worker)
        # Started again once, so that the intent is one that was relied upon.
        await child.die()
        with trio.fail_after(60):
            await here.wait_ended(child)
            child = await here.lookup("worker", Worker)
            await top.fail()
            await here.wait_ended(child)
            with pytest.raises(ActorNotFoundError, match="own work"):
                await here.lookup("worker", Worker)
            with pytest.raises(ActorNotFoundError, match="own work"):
                await child.die()


async def test_the_children_of_a_supervisor_that_is_restarted_after_a_crash_are_adopted() -> None:
    async with open_node("here", secret=SECRET) as here:
        worker = ChildSpec.of("worker", Worker).changed(name="worker")
        await here.options(name="root").spawn(Supervisor, [ChildSpec.of("top", Busy, [worker])])
        child, top = await here.lookup("worker", Worker), await here.lookup("root/top", Busy)
        with trio.fail_after(60):
            (before,) = await top.children()
            await top.fail()
            await here.wait_ended(top)
            again = await here.lookup("root/top", Busy)
            (adopted,) = await again.children()
            assert (adopted.epoch, adopted.restarts) == (before.epoch, 0)
            await child.die()
            await here.wait_ended(child)
            await here.lookup("worker", Worker)
            (restarted,) = await again.children()
            assert restarted.epoch != adopted.epoch


class Unwilling(Actor):
    """Never starts."""

    async def on_start(self) -> None:
        raise RuntimeError("not today")


async def test_repeated_failures_of_a_start_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "understudy")
    async with open_node("here", secret=SECRET) as here:
        worker = ChildSpec.of("worker", Worker)
        await here.options(name="top").spawn(Supervisor, [worker], intensity=3)
        first = await here.lookup("top/worker", Worker)
        Worker.on_start = Unwilling.on_start  # type: ignore[assignment, method-assign]
        try:
            await first.die()
            with trio.fail_after(60):
                await here.wait_ended(await here.lookup("top"))
        finally:
            del Worker.on_start
    death, start, end, *others = [record.getMessage() for record in caplog.records]
    assert "has ended on here (raised: RuntimeError: poison" in death
    assert start.startswith("top/worker did not start on here: ")
    assert start.endswith("; it is started again")
    assert end.endswith("; its supervisor ends with it, and stops its other children")
    assert len(others) == 1
    assert others[0].startswith("top ended: shutdown")
