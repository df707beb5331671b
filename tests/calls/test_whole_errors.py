"""Exceptions arrive whole: fields, groups, text, notes; and they can be pickled and copied. Each
clause of that, as a user meets it.
"""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
import pkgutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import trio

import actors
import runtime
from actors import ChildSpec, Supervisor
from actors.errors import (
    ActorStartError,
    ChildError,
    ChildNotFoundError,
    EncodeError,
    RemoteError,
)
from runtime import open_node
from runtime.calls.error_codec import PassedOnError
from runtime.elastic.machine import JoinFailed
from runtime.elastic.rounds import RoundJoinError
from runtime.gateway.calls import SilentNodesError
from runtime.gateway.problems import ProblemError
from runtime.hosting.cell import EndedElsewhereError
from runtime.hosting.workers import LeftOpenError
from runtime.processes.exit_status import ChildDiedError, ExitStatus
from runtime.simulation.runs import SimulationError
from runtime.wire.plain_writer import steps_for
from tests.calls.whole_errors import (
    KINDS,
    BadConstructor,
    BadStart,
    DataError,
    FrozenError,
    LateOrderError,
    OrderError,
    Passing,
    PrivateError,
    Raising,
    Report,
    ShopGroup,
)
from tests.live_pair import SECRET, Pair

FILE = str(Path(__file__).with_name("whole_errors.py"))
LINES = [
    number
    for number, line in enumerate(Path(FILE).read_text().splitlines(), 1)
    if line.endswith("# the line that fails")
]


@pytest.fixture(
    params=[{}, {"on": "there"}, {"isolation": "process"}], ids=["here", "there", "process"]
)
def spawner(pair: Pair, request: pytest.FixtureRequest) -> Any:
    """The ways in which an actor can be started."""
    return pair.here.options(**request.param)


async def raised(call: Callable[[], Any]) -> Any:
    """What the call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  looked at by who asks
        await call()
    return caught.value


def fields(error: BaseException) -> dict[str, object]:
    """What an exception of these has, wherever it keeps that."""
    names = [
        *vars(error),
        *(
            name
            for base in type(error).__mro__
            for name in getattr(base, "__slots__", ())
            if not name.startswith("__")
        ),
    ]
    builtin = (
        "errno",
        "strerror",
        "filename",
        "filename2",
        "start",
        "end",
        "object",
        "reason",
        "name",
        "path",
        "msg",
        "lineno",
        "text",
        "characters_written",
    )
    return {
        name: getattr(error, name)
        for name in (*names, *builtin)
        if name != "__notes__" and hasattr(error, name)
    }


@pytest.mark.parametrize("name", ["fail", "fail_in_thread", "fail_while_streaming"])
async def test_fields_arguments_and_text_arrive(spawner: Any, name: str) -> None:
    raising = await spawner.spawn(Raising)

    async def call(kind: str) -> None:
        if name == "fail_while_streaming":
            async for _ in raising.fail_while_streaming(kind):
                pass
        else:
            await getattr(raising, name)(kind)

    for kind, make in KINDS.items():
        original = make()
        error = await raised(lambda kind=kind: call(kind))  # type: ignore[misc]
        assert isinstance(error, type(original)), kind
        assert isinstance(error, RemoteError), kind
        assert error.args == original.args, kind
        assert {key: getattr(error, key) for key in fields(original)} == fields(original), kind
        assert str(error) == str(original), kind
        assert "Traceback" not in str(error), kind
        assert "Traceback" in "".join(error.__notes__), kind
        assert FILE in error.remote_traceback, kind


async def test_groups_arrive_as_groups_so_that_except_star_finds_what_is_in_them(
    spawner: Any,
) -> None:
    raising = await spawner.spawn(Raising)
    found: dict[str, Any] = {}
    try:
        await raising.fail_together()
    except* FrozenError as frozen:
        found["frozen"] = [
            error.need for error in frozen.exceptions if isinstance(error, FrozenError)
        ]
    except* LateOrderError as late:
        found["late"] = [
            (type(inner).__name__, inner.message)
            for inner in late.exceptions
            if isinstance(inner, ExceptionGroup)
        ]
    except* (OrderError, ValueError) as others:
        (inner,) = others.exceptions
        assert isinstance(inner, ExceptionGroup)
        found["others"] = [type(error).__name__ for error in inner.exceptions]
    except* RemoteError as rest:
        found["rest"] = [
            str(error) for error in rest.exceptions if not isinstance(error, ExceptionGroup)
        ]
        found["data"] = [
            error.code  # type: ignore[union-attr]
            for shop in rest.exceptions
            if isinstance(shop, ShopGroup)
            for error in shop.exceptions
        ]
    assert found == {
        "frozen": [1],
        "late": [("ShopGroup", "shop")],
        "others": ["OrderError", "ValueError"],
        "rest": ["PrivateError: private"],
        "data": [2],
    }
    caught: list[BaseException] = []
    try:
        await raising.fail_together()
    except* RemoteError as everything:
        caught.append(everything)
    (whole,) = caught
    assert str(whole) == "outer (4 sub-exceptions)"
    assert not isinstance(whole, PrivateError)


async def test_what_caused_it_stands_in_the_note(spawner: Any) -> None:
    raising = await spawner.spawn(Raising)
    error = await raised(raising.fail_for_a_cause)
    assert str(error) == "order 1: lost"
    assert "ValueError: the cause of it" in error.__notes__[-1]
    assert "ValueError: the cause of it" in "".join(traceback.format_exception(error))


def same(one: Any, other: Any) -> None:
    """Raises AssertionError unless the two errors are alike, members and all."""
    assert type(other).__mro__[1:] == type(one).__mro__[1:]
    assert str(other) == str(one)
    assert getattr(other, "__notes__", None) == getattr(one, "__notes__", None)
    if isinstance(one, ExceptionGroup):
        assert len(one.exceptions) == len(other.exceptions)
        for mine, its in zip(one.exceptions, other.exceptions, strict=True):
            same(mine, its)
    else:
        assert other.args == one.args
        assert {k: v for k, v in fields(other).items() if k != "_understudy_origin"} == {
            k: v for k, v in fields(one).items() if k != "_understudy_origin"
        }


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.cluster
async def test_errors_are_pickled_and_copied_also_to_another_process(spawner: Any) -> None:
    raising = await spawner.spawn(Raising)
    errors = [await raised(lambda kind=kind: raising.fail(kind)) for kind in KINDS]  # type: ignore[misc]
    errors += [
        await raised(raising.fail_together),
        await raised(lambda: spawner.spawn(BadConstructor, 1)),
    ]
    top: Any = await spawner.options(isolation="none").spawn(Supervisor)
    errors += [
        await raised(lambda: top.stop_child("nobody")),
        await raised(lambda: top.start_child(ChildSpec.of("bad", BadConstructor, 1))),
    ]
    for error in errors:
        for again in (
            pickle.loads(pickle.dumps(error)),
            copy.copy(error),
            copy.deepcopy(error),
            pickle.loads(pickle.dumps(error, 0)),
        ):
            same(error, again)

    def elsewhere() -> list[Exception]:
        came: list[Exception] = []
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            for error in errors:
                try:
                    pool.submit(_raise, error).result(60)
                except Exception as again:  # the error itself, raised there
                    came.append(again)
        return came

    came = await trio.to_thread.run_sync(elsewhere)
    for error, again in zip(errors, came, strict=True):
        same(error, again)


def same_value(original: Exception, arrived: Any) -> None:
    """Assert that what arrived as a value is what was raised, and not what was caught."""
    assert type(arrived) is type(original)
    assert arrived.args == original.args
    assert str(arrived) == str(original)
    assert fields(arrived) == fields(original)
    [note] = arrived.__notes__
    assert FILE in note, "where it was raised stays with it"


async def test_what_was_caught_from_a_call_is_sent_as_the_exception_that_was_raised(
    spawner: Any, pair: Pair
) -> None:
    raising, passing = await spawner.spawn(Raising), await spawner.spawn(Passing)
    for kind, make in KINDS.items():
        original = make()
        error = await raised(lambda kind=kind: raising.fail(kind))  # type: ignore[misc]
        cls = type(original)
        assert await passing.kind(error) == f"{cls.__module__}:{cls.__qualname__}", kind
        same_value(original, await passing.echo(error))
        [again] = await passing.caught(raising, kind)
        same_value(original, again)
        [again] = [item async for item in passing.stream(error)]
        same_value(original, again)
        report = await passing.echo({"last": [Report(error)]})
        same_value(original, report["last"][0].of)
        same_value(original, await (await pair.here.put(error)).fetch())
        same_value(original, await passing.echo(pickle.loads(pickle.dumps(error))))
        wrapped = await raised(lambda error=error: passing.wrap(error))  # type: ignore[misc]
        assert wrapped.args[0] == "wrapped"
        same_value(original, wrapped.args[1])


async def test_what_its_catcher_has_added_to_an_error_is_sent_with_it(spawner: Any) -> None:
    raising, passing = await spawner.spawn(Raising), await spawner.spawn(Passing)
    error = await raised(lambda: raising.fail("constructor"))
    error.add_note("seen twice")
    error.seen = 2
    arrived: Any = await passing.echo(error)
    assert type(arrived) is OrderError
    assert vars(arrived)["seen"] == 2
    assert arrived.__notes__[-1] == "seen twice"
    assert "raised by" in arrived.__notes__[0]


async def test_the_members_of_a_group_that_was_caught_are_sent_and_it_says_so_itself(
    pair: Pair,
) -> None:
    raising, passing = await pair.here.spawn(Raising), await pair.here.spawn(Passing)
    group = await raised(raising.fail_together)
    with pytest.raises(EncodeError, match="ExceptionGroup, which cannot be sent; send a list of"):
        await passing.echo(group)
    frozen, inner, private, shop = group.exceptions
    assert type(await passing.echo(frozen)) is FrozenError
    arrived = await passing.echo(list(inner.exceptions))
    assert [type(each) for each in arrived] == [OrderError, ValueError]
    again = await passing.echo(shop)
    assert type(again) is ShopGroup
    assert [type(each) for each in again.exceptions] == [DataError, LateOrderError]
    # Its class is not marked, so that it is none of its instances here.
    with pytest.raises(EncodeError, match="RemoteError, which cannot be sent; send its text"):
        await passing.echo(private)


async def test_a_table_of_writers_remembers_no_class_that_was_made_for_an_error(pair: Pair) -> None:
    raising = await pair.here.spawn(Raising)
    error = await raised(lambda: raising.fail("KeyError"))
    steps = steps_for([])
    assert callable(steps[type(error)])
    assert type(error) not in steps


def _all_error_classes() -> set[type[Exception]]:
    found: set[type[Exception]] = set()
    for package in (actors, runtime):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # What simulated actors raise does harm on purpose.
            if module.name.endswith((".__main__", ".plugin", ".pytest_plugin", ".outbursts")):
                continue
            members = vars(importlib.import_module(module.name)).values()
            found |= {
                one
                for one in members
                if isinstance(one, type)
                and issubclass(one, Exception)
                and one.__module__ == module.name
            }
    return found


INTERNAL = {PassedOnError, EndedElsewhereError, LeftOpenError, ProblemError, SilentNodesError}
"""Never leave the runtime, as they say of themselves."""

UNLIKE_OTHERS: dict[type[Exception], Callable[[], Exception]] = {
    ChildDiedError: lambda: ChildDiedError("pen", ExitStatus(code=3, signal=None), ("one", "two")),
    SimulationError: lambda: SimulationError("text", cast("Any", "a report")),
    RoundJoinError: lambda: RoundJoinError(JoinFailed("timeout", "nobody came")),
}


def test_every_error_of_this_project_can_be_pickled_and_copied() -> None:
    classes = _all_error_classes()
    assert len(classes) > 90
    assert set(UNLIKE_OTHERS) | INTERNAL < classes
    for cls in classes - INTERNAL:
        if cls.__name__.startswith("_"):
            continue
        error: Any = UNLIKE_OTHERS[cls]() if cls in UNLIKE_OTHERS else cls("text")
        for name in (
            "actor",
            "method",
            "node",
            "epoch",
            "attempts",
            "path",
            "remote_type",
            "remote_traceback",
        ):
            if name in vars(error) or hasattr(cls, name):
                setattr(error, name, f"its {name}")
        error.add_note("a note")
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(again) is cls
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error)), (
                cls
            )


@pytest.mark.parametrize("cls", [BadConstructor, BadStart])
async def test_the_error_of_a_start_shows_its_file_and_line(spawner: Any, cls: Any) -> None:
    args = (1,) if cls is BadConstructor else ()
    place = f"{FILE}:{LINES[0 if args else 1]}, in {'__init__' if args else 'on_start'}"
    error = await raised(lambda: spawner.spawn(cls, *args))
    assert type(error) is ActorStartError
    assert place in str(error)
    assert "Traceback" not in str(error)
    # What people see if nobody catches it: the traceback of the start, once, and nothing of how it
    # came.
    shown = "".join(traceback.format_exception(error))
    assert shown.count("# the line that fails") == 1
    assert "Elsewhere" not in shown


async def test_the_error_of_a_child_shows_its_file_and_line(pair: Pair, where: str) -> None:
    bad = ChildSpec.of("bad", BadConstructor, 1).changed(on=where)
    error = await raised(lambda: pair.here.options(name="top", on=where).spawn(Supervisor, [bad]))
    assert type(error) is ActorStartError
    assert (
        f"child 'bad' did not start: start failed: top/bad did not start on {where}: "
        "ZeroDivisionError" in str(error)
    )
    assert f"({FILE}:" in str(error)
    assert "supervisor.py" not in str(error)
    assert "# the line that fails" in "".join(traceback.format_exception(error))
    top: Any = await pair.here.options(name="top", on=where).spawn(Supervisor)
    error = await raised(lambda: top.start_child(bad))
    assert isinstance(error, ActorStartError)
    assert f"({FILE}:" in str(error)
    assert "Traceback" not in str(error)
    assert "# the line that fails" in "".join(traceback.format_exception(error))
    error = await raised(lambda: top.restart_child("nobody"))
    assert isinstance(error, ChildNotFoundError)
    assert isinstance(error, ChildError)
    assert isinstance(error, LookupError)
    assert "nobody" in str(error)
    assert "Traceback" not in str(error)


async def test_those_who_wait_for_the_same_start_see_where_it_failed(
    pair: Pair, where: str
) -> None:
    shown: list[str] = []

    async def start() -> None:
        error = await raised(
            lambda: pair.here.options(name="bad", on=where).get_or_spawn(BadConstructor, 1)
        )
        shown.append("".join(traceback.format_exception(error)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(start)
    assert [text.count("# the line that fails") for text in shown] == [1] * 10


SCRIPT = """
import sys
import trio
from actors import Actor
from runtime import open_local_cluster

class Bad(Actor):
    def __init__(self, amount):
        self.part = amount / 0  # the line that fails

async def main():
    async with open_local_cluster(nodes=1) as cluster:
        await cluster.node.options(**eval(sys.argv[1])).spawn(Bad, 1)

if __name__ == "__main__":
    trio.run(main)
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    "options",
    [
        pytest.param("{}", marks=pytest.mark.long),
        "{'on': 'worker-1'}",
        pytest.param("{'isolation': 'process'}", marks=pytest.mark.long),
    ],
)
def test_a_script_that_does_not_catch_it_shows_the_line_of_the_constructor(
    options: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, options], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert f"{script}:9, in __init__)" in done.stderr
    assert done.stderr.count(f'File "{script}", line 9, in __init__') == 1, done.stderr
    assert "ExceptionGroup" not in done.stderr


async def _fail_for_a_cause() -> None:
    async with open_node("alone", secret=SECRET):
        raise OrderError(1, "lost") from ValueError("the cause")


async def _fail_in_a_context() -> None:
    async with open_node("alone", secret=SECRET):
        try:
            raise ValueError("the context")
        except ValueError:
            raise OrderError(1, "lost")  # noqa: B904  that is what is tested


async def test_the_block_of_a_node_leaves_the_history_of_an_error_as_it_was() -> None:
    error = await raised(_fail_for_a_cause)
    assert str(error.__cause__) == "the cause"
    error = await raised(_fail_in_a_context)
    assert (error.__cause__, str(error.__context__), error.__suppress_context__) == (
        None,
        "the context",
        False,
    )
