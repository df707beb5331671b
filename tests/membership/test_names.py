"""Names: one owner each, found from anywhere, free again the moment their actor has ended or failed
to start.
"""

from __future__ import annotations

import enum
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import trio
import trio.testing

from actors import Actor, Handle, RetryPolicy, SpawnOptions, method
from actors.errors import (
    ActorClassError,
    ActorNotFoundError,
    ActorStartError,
    ClassMismatchError,
    EncodeError,
    MethodNotFoundError,
    NameTakenError,
    NodeNotFoundError,
    NoPlacementError,
    NotExecutedError,
    NoWorkerError,
    RemoteError,
    SpawnError,
)
from actors.messages import import_path
from runtime.calls.client import CallClient
from runtime.membership import names as name_records
from runtime.node import Node, internals_of
from tests.live_pair import LONG_LEASE, Pair


class Register(Actor):
    """Says who it is."""

    def __init__(self, label: str = "") -> None:
        self.label = label

    @method
    async def who(self) -> tuple[str, str, int]:
        return self.label, self.node.name, self.epoch

    @method
    async def wait(self) -> None:
        await trio.sleep_forever()

    @method
    async def spawn_another(self, name: str, on: str) -> object:
        return await self.node.options(name=name, on=on).spawn(Register, "from within")

    @method
    async def stop_other(self, other: Register) -> None:
        await self.node.stop(other)


class Fragile(Actor):
    """Fails to start in the way it is told."""

    def __init__(self, how: str) -> None:
        self.how = how
        if how == "constructor":
            raise LookupError("the constructor's reason")

    async def on_start(self) -> None:
        if self.how == "on_start":
            raise LookupError("the reason of on_start")
        if self.how == "task":
            started = trio.Event()

            async def explode() -> None:
                started.set()
                raise LookupError("the reason of a task")

            self.nursery.start_soon(explode)
            await started.wait()
            await trio.testing.wait_all_tasks_blocked()

    @method
    async def fine(self) -> bool:
        return True


class Stubborn(Actor):
    """Raises when it is stopped."""

    async def on_stop(self, reason: object) -> None:
        raise RuntimeError("will not go quietly")


class NoActor:
    """Not derived from Actor."""


@pytest.fixture
def vanishing() -> Iterator[type[Actor]]:
    """An actor class that the caller has and the rest of the cluster cannot import."""
    module = ModuleType("a_module_of_this_process_only")

    class Vanishing(Actor):
        pass

    Vanishing.__module__ = module.__name__
    Vanishing.__qualname__ = "Vanishing"
    sys.modules[module.__name__] = module
    module.Vanishing = Vanishing  # type: ignore[attr-defined]
    yield Vanishing
    sys.modules.pop(module.__name__, None)


async def spawn(node: Node, name: str, where: str, label: str = "") -> Register:
    return await node.options(name=name, on=where).spawn(Register, label)


async def test_an_actor_is_found_by_its_name_from_every_node(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        register = await spawn(pair.here, "register", where, "only")
        for node in (pair.here, pair.there):
            found = await node.lookup("register", Register)
            assert found == register
            assert (await found.who())[:2] == ("only", where)
            anonymous = await node.lookup("register")
            assert anonymous == register


@pytest.mark.parametrize("second", ["here", "there"])
async def test_a_name_in_use_is_refused_wherever_it_is_tried(
    pair: Pair, where: str, second: str
) -> None:
    with trio.fail_after(60):
        register = await spawn(pair.here, "register", where, "first")
        with pytest.raises(
            NameTakenError, match=rf"'register' is taken .* on node {where}"
        ) as caught:
            await spawn(pair.there, "register", second, "second")
        assert caught.value.actor == "register"
        assert (await register.who())[0] == "first"


async def test_of_many_who_race_for_a_name_exactly_one_gets_it(pair: Pair) -> None:
    outcomes: list[str] = []

    async def try_it(number: int) -> None:
        try:
            await spawn(
                (pair.here, pair.there)[number % 2],
                "prize",
                ("here", "there")[number // 2 % 2],
                str(number),
            )
        except NameTakenError:
            outcomes.append("taken")
        else:
            outcomes.append("won")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(try_it, number)
    assert sorted(outcomes) == ["taken"] * 19 + ["won"]


async def test_all_who_race_to_get_or_spawn_get_the_same_actor(pair: Pair) -> None:
    answers: list[tuple[str, str, int]] = []

    async def get(number: int) -> None:
        node = (pair.here, pair.there)[number % 2]
        register = await node.options(name="shared").get_or_spawn(Register, str(number))
        answers.append(await register.who())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(get, number)
    assert len(answers) == 20
    assert len(set(answers)) == 1


async def test_get_or_spawn_needs_a_name(pair: Pair) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        await pair.here.get_or_spawn(Register)


async def test_generated_names_never_collide(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        handles = [await pair.here.options(on=where).spawn(Register) for _ in range(20)]
        handles += [await pair.there.options(on=where).spawn(Register) for _ in range(20)]
    assert len(set(handles)) == 40


async def test_a_name_that_nobody_has_is_said_to_be_unknown(pair: Pair) -> None:
    for node in (pair.here, pair.there):
        with trio.fail_after(60), pytest.raises(ActorNotFoundError, match="'nobody'") as caught:
            await node.lookup("nobody", Register)
        assert caught.value.outcome == "not executed"


async def test_of_many_names_those_that_begin_alike_are_compared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_records, "MOST_COMPARED", 5)
    given = [f"{letter}-{number}" for letter in "abz" for number in range(4)]
    await pair.here.spawn_many(Register, [()] * len(given), names=given)
    found = await internals_of(pair.there).names.to_compare("zz-2")
    assert found == ["z-0", "z-1", "z-2", "z-3", "a-0"]
    monkeypatch.setattr(name_records, "MOST_COMPARED", 50)
    assert await internals_of(pair.there).names.to_compare("zz-2") == given


async def test_a_node_that_nobody_has_is_named_with_those_there_are(pair: Pair) -> None:
    with trio.fail_after(60):
        with pytest.raises(NodeNotFoundError, match=r"'nowhere'.*here, there") as caught:
            await spawn(pair.here, "register", "nowhere")
        assert caught.value.node == "nowhere"
        await spawn(pair.here, "register", "here")


async def test_labels_that_no_node_carries_are_named_and_the_name_stays_free(pair: Pair) -> None:
    with trio.fail_after(60):
        with pytest.raises(NoPlacementError, match="gpu"):
            await pair.here.options(name="register", labels={"gpu": "yes"}).spawn(Register)
        await spawn(pair.here, "register", "here")


async def test_a_method_that_the_class_there_does_not_have_is_named(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        register: Any = await spawn(pair.here, "register", where)
        # As a node has it that cannot import the class.
        class_unknown: Any = Handle(internals_of(pair.here).caller, register.address, None)
        with pytest.raises(MethodNotFoundError, match=r"no @method 'fine'; it offers: .*who"):
            await class_unknown.fine()


async def test_a_class_that_cannot_be_imported_where_it_should_run_is_named(
    pair: Pair, vanishing: type[Actor]
) -> None:
    del sys.modules[vanishing.__module__]
    with trio.fail_after(60):
        with pytest.raises(
            ActorClassError, match="a_module_of_this_process_only:Vanishing"
        ) as caught:
            await pair.here.options(name="register", on="there").spawn(vanishing)
        assert caught.value.node == "there"
        assert "; install the package of a_module_of_this_process_only there" in str(caught.value)
        await spawn(pair.here, "register", "there")


async def test_a_class_inside_a_function_is_refused_for_another_node(pair: Pair) -> None:
    class Local(Actor):
        pass

    with trio.fail_after(60), pytest.raises(ActorClassError, match="top of its module"):
        await pair.here.options(on="there").spawn(Local)


async def test_what_is_no_actor_class_is_refused(pair: Pair, where: str) -> None:
    instance = "takes the class, not an instance of it: give Register and then its arguments"
    no_class = r"subclass of actors\.Actor"
    for wrong, text in ((NoActor, no_class), (Register(), instance), (print, no_class)):
        with trio.fail_after(60), pytest.raises(TypeError, match=text):
            await pair.here.options(on=where).spawn(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "reason"),
    [("constructor", "the constructor's reason"), ("on_start", "the reason of on_start")],
)
async def test_a_failed_start_is_reported_with_its_traceback_and_frees_its_name(
    pair: Pair, where: str, how: str, reason: str
) -> None:
    options = pair.here.options(name="fragile", on=where)
    with trio.fail_after(60):
        with pytest.raises(ActorStartError, match=reason) as caught:
            await options.spawn(Fragile, how)
        assert not isinstance(caught.value, RemoteError)
        assert (caught.value.actor, caught.value.node) == ("fragile", where)
        assert "LookupError" in caught.value.remote_traceback
        assert "test_names.py" in caught.value.remote_traceback
        fragile = await options.spawn(Fragile, "not at all")
        assert await fragile.fine()


async def test_an_actor_whose_own_task_crashes_while_it_starts_did_not_start(
    pair: Pair, where: str
) -> None:
    options = pair.here.options(name="fragile", on=where)
    with trio.fail_after(60):
        with pytest.raises(ActorStartError, match="the reason of a task"):
            await options.spawn(Fragile, "task")
        fragile = await options.spawn(Fragile, "not at all")
        assert await fragile.fine()
        node = pair.here if where == "here" else pair.there
        assert [actor["name"] for actor in node.status()["actors"]] == ["fragile"]  # type: ignore[attr-defined]


async def test_a_constructor_argument_that_cannot_be_sent_is_refused_at_the_caller(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        with pytest.raises(EncodeError, match="argument label is a"):
            await pair.here.options(name="register", on=where).spawn(Register, object())  # type: ignore[arg-type]
        await spawn(pair.here, "register", where)


async def test_the_name_is_free_on_the_line_after_stop(pair: Pair, where: str) -> None:
    epochs = []
    with trio.fail_after(60):
        for number in range(10):
            register = await spawn(pair.here, "register", where, str(number))
            label, _, epoch = await register.who()
            assert label == str(number)
            epochs.append(epoch)
            await (pair.here, pair.there)[number % 2].stop(register)
    assert epochs == sorted(set(epochs))


async def test_an_old_handle_reaches_the_actor_that_has_the_name_now_wherever_it_is(
    pair: Pair,
) -> None:
    with trio.fail_after(60):
        old = await spawn(pair.here, "register", "here", "old")
        await old.who()
        await pair.here.stop(old)
        await spawn(pair.here, "register", "there", "new")
        assert (await old.who())[:2] == ("new", "there")


async def test_a_stopped_actor_is_gone_for_its_handles(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        for register in (
            await spawn(pair.here, "register", where),
            await pair.here.options(on=where).spawn(Register),
        ):
            await register.who()
            await pair.here.stop(register)
            with pytest.raises(ActorNotFoundError):
                await register.who()


async def test_stopping_what_has_stopped_or_never_was_is_no_error(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        register = await spawn(pair.here, "register", where)
        await pair.here.stop(register)
        await pair.here.stop(register)
        await pair.there.stop(register)
        unnamed = await pair.here.options(on=where).spawn(Register)
        await pair.there.stop(unnamed)
        await pair.here.stop(unnamed)
        with pytest.raises(TypeError, match="handle"):
            await pair.here.stop("register")


async def test_many_who_stop_the_same_actor_all_return(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        register = await spawn(pair.here, "register", where)
        async with trio.open_nursery() as nursery:
            for node in (pair.here, pair.there) * 3:
                nursery.start_soon(node.stop, register)
        with pytest.raises(ActorNotFoundError):
            await pair.here.lookup("register")


async def test_an_actor_whose_on_stop_raises_is_stopped_all_the_same(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        stubborn = await pair.here.options(name="stubborn", on=where).spawn(Stubborn)
        await pair.here.stop(stubborn)
        await pair.here.options(name="stubborn", on=where).spawn(Stubborn)


async def test_an_actor_spawns_and_stops_others_through_its_own_node(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        register = await spawn(pair.here, "register", "there")
        another = await register.spawn_another("another", where)
        found = await pair.here.lookup("another", Register)
        assert another == found
        assert (await found.who())[:2] == ("from within", where)
        await register.stop_other(found)
        with pytest.raises(ActorNotFoundError):
            await found.who()


async def test_names_are_checked_before_anything_is_sent(pair: Pair) -> None:
    for wrong in ("", " x", "x\n", "@node", "x" * 256):
        with pytest.raises(ValueError, match="not a usable name"):
            pair.here.options(name=wrong)
    with trio.fail_after(60):
        for name in ("ünïcødé", "a/b", "x" * 255, "with space"):
            await spawn(pair.here, name, "there")
            assert (await (await pair.there.lookup(name, Register)).who())[1] == "there"


async def test_a_failed_start_is_caught_as_one_kind_of_error(pair: Pair, where: str) -> None:
    with trio.fail_after(60), pytest.raises(SpawnError):
        await pair.here.options(on=where).spawn(Fragile, "constructor")


class Timer(Actor):
    """Has a method that `Register` has as well."""

    @method
    async def who(self) -> str:
        return "a timer"

    @method
    async def read(self) -> str:
        return "late"


class LabelledRegister(Register):
    """One of the class that was asked for, and more."""


async def test_a_handle_does_not_reach_an_actor_of_another_class_under_its_name(
    pair: Pair, where: str
) -> None:
    register = await pair.here.options(name="desk", on=where).spawn(Register, "mine")
    untyped = await pair.here.lookup("desk")
    await pair.here.stop(register)
    timer = await pair.there.options(name="desk", on=where).spawn(Timer)
    for _ in range(2):
        with pytest.raises(ClassMismatchError, match=r"desk is of class .*:Timer now") as caught:
            await register.who()
    assert isinstance(caught.value, NotExecutedError)
    assert (caught.value.actor, caught.value.method) == ("desk", "who")
    with pytest.raises(ClassMismatchError):
        await register.who.options(retry=RetryPolicy(max_retries=5))()
    with pytest.raises(ClassMismatchError):
        await register.who.send()
    with pytest.raises(ClassMismatchError):
        await register.who.remote()
    with pytest.raises(ClassMismatchError):
        await untyped.who()  # type: ignore[attr-defined]
    # Nor is it stopped, or waited for, through a handle of its predecessor.
    await pair.here.stop(register)
    assert (await pair.here.wait_ended(register)).reason.kind == "no such actor"
    assert await timer.who() == "a timer"


async def test_a_lookup_for_the_wrong_class_is_refused(pair: Pair, where: str) -> None:
    await pair.here.options(name="desk", on=where).spawn(LabelledRegister, "mine")
    for node in (pair.here, pair.there):
        with pytest.raises(
            ClassMismatchError,
            match=r"desk on node \w+ is of class .*:LabelledRegister, which is not a subclass of "
            r".*:Timer",
        ):
            await node.lookup("desk", Timer)
        with pytest.raises(ClassMismatchError):
            await node.options(name="desk").get_or_spawn(Timer)
        assert (await (await node.lookup("desk", LabelledRegister)).who())[0] == "mine"
        assert (await (await node.options(name="desk").get_or_spawn(Register)).who())[0] == "mine"


async def test_a_handle_for_a_base_class_reaches_whatever_is_derived_from_it(
    pair: Pair, where: str
) -> None:
    first = await pair.here.options(name="desk", on=where).spawn(LabelledRegister, "first")
    desk = await pair.there.lookup("desk", Register)
    assert (await desk.who())[0] == "first"
    await pair.here.stop(first)
    await pair.here.options(name="desk", on=where).spawn(Register, "second")
    assert (await desk.who())[0] == "second"
    with pytest.raises(ClassMismatchError):
        await first.who()


class NeverStarts(Actor):
    """Takes its time, and fails."""

    async def on_start(self) -> None:
        await trio.sleep(0.05)
        raise LookupError("on_start's reason")


class StartsSlowly(Actor):
    """Takes its time."""

    async def on_start(self) -> None:
        await trio.sleep(0.05)

    @method
    async def place(self) -> tuple[str, int]:
        return self.node.name, self.epoch


@LONG_LEASE
async def test_all_who_get_or_spawn_an_actor_that_does_not_start_get_the_error_of_its_start(
    pair: Pair, where: str
) -> None:
    outcomes: list[object] = []

    async def ask(node: Node) -> None:
        try:
            outcomes.append(await node.options(name="never", on=where).get_or_spawn(NeverStarts))
        except Exception as error:
            outcomes.append(error)

    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            for _ in range(150):
                nursery.start_soon(ask, pair.here)
                nursery.start_soon(ask, pair.there)
    assert len(outcomes) == 300
    assert [
        outcome
        for outcome in outcomes
        if not isinstance(outcome, ActorStartError) or "on_start's reason" not in str(outcome)
    ] == []
    assert {outcome.node for outcome in outcomes if isinstance(outcome, ActorStartError)} == {where}
    with pytest.raises(ActorNotFoundError):
        await pair.here.lookup("never")


@LONG_LEASE
async def test_all_who_get_or_spawn_an_actor_that_starts_slowly_get_the_one_that_has_started(
    pair: Pair, where: str
) -> None:
    places: list[tuple[str, int]] = []

    async def ask(node: Node) -> None:
        places.append(
            await (await node.options(name="slow", on=where).get_or_spawn(StartsSlowly)).place()
        )

    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask, pair.here)
                nursery.start_soon(ask, pair.there)
    assert len(places) == 100
    assert len(set(places)) == 1


class Partner(Actor):
    """Wants another one, which wants it, before it has started."""

    def __init__(self, other: str) -> None:
        self.other = other

    async def on_start(self) -> None:
        self.partner = await self.node.options(name=self.other).get_or_spawn(Partner, self.name)

    @method(concurrent=True)
    async def ask(self) -> str:
        return await self.partner.called()

    @method(concurrent=True)
    async def called(self) -> str:
        return self.name


async def test_two_actors_that_get_or_spawn_each_other_as_they_start_do_not_wait_for_each_other(
    pair: Pair, where: str
) -> None:
    with trio.fail_after(60):
        partner = await pair.here.options(name="left", on=where).spawn(Partner, "right")
        assert await partner.ask() == "right"


@pytest.mark.parametrize("name", ["\ud800", "a\udcff"])
async def test_a_name_with_a_lone_surrogate_is_refused_by_its_option_and_found_nowhere(
    pair: Pair, where: str, name: str
) -> None:
    node = getattr(pair, where)
    with pytest.raises(ValueError, match=r"^name='.*' is not a usable name: .* no lone surrogates"):
        node.options(name=name)
    with pytest.raises(ActorNotFoundError, match="lone surrogate"):
        await node.lookup(name)
    for options in ({"labels": {name: "x"}}, {"labels": {"x": name}}, {"resources": {name: 1.0}}):
        with pytest.raises(ValueError, match="no lone surrogates") as refused:
            node.options(**options)
        # So that it can be printed.
        assert str(refused.value).encode()


class Given(enum.StrEnum):
    """Names as users keep them."""

    DESK = "desk"


async def test_a_member_of_an_enumeration_is_a_name_like_its_text(pair: Pair, where: str) -> None:
    with trio.fail_after(60):
        register = await pair.here.options(name=Given.DESK, on=where).spawn(Register)
        assert await pair.there.lookup(Given.DESK, Register) == register
        assert type((await register.who())[1]) is str
        await pair.here.stop(register)
        (many,) = await pair.here.options(on=where).spawn_many(Register, [()], names=[Given.DESK])
        assert await pair.here.lookup("desk") == many
        await pair.here.stop(many)
        with pytest.raises(ActorNotFoundError):
            await pair.here.lookup("desk")


@pytest.mark.parametrize(
    "options", [{"on": "nowhere"}, {"labels": {"gpu": "yes"}}, {"resources": {"gpu": 1.0}}]
)
async def test_a_placement_that_fails_is_one_error_without_those_of_its_tries(
    pair: Pair, options: dict[str, Any]
) -> None:
    node = pair.here.options(**options)
    tries: list[Callable[[], Awaitable[object]]] = [
        lambda: node.spawn(Register),
        lambda: node.options(name="register").get_or_spawn(Register),
        lambda: node.spawn_many(Register, [()]),
        lambda: node.run(int, "5"),
    ]
    for trial in tries:
        with (
            trio.fail_after(60),
            pytest.raises((NoPlacementError, NodeNotFoundError, NoWorkerError)) as caught,
        ):
            await trial()
        shown = "".join(traceback.format_exception(caught.value))
        assert shown.count("Traceback (most recent call last)") == 1, shown


class _CancelAfter(trio.abc.Instrument):
    """Cancels `scope` after so many task steps of the loop."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope = scope
        self._left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        self._left -= 1
        if not self._left:
            self._scope.cancel()


async def cancelled_after(steps: int, act: Callable[[], Awaitable[object]]) -> None:
    with trio.CancelScope() as scope:
        instrument = _CancelAfter(scope, steps)
        trio.lowlevel.add_instrument(instrument)
        try:
            await act()
        finally:
            trio.lowlevel.remove_instrument(instrument)


async def test_get_or_spawn_finds_no_actor_of_a_joint_start_that_is_taken_back(
    pair: Pair, where: str
) -> None:
    for steps in range(1, 40):
        others = [pair.here.options(name=f"other-{steps}-{n}", on=where) for n in range(4)]
        named = pair.here.options(name=f"joint-{steps}", on=where)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for other in others:
                    nursery.start_soon(other.spawn, Register)
                await cancelled_after(steps, lambda: named.spawn(Register))  # noqa: B023
                register = await named.get_or_spawn(Register)
                assert (await register.who())[1] == where, steps
            assert (await register.who())[1] == where, steps


async def test_get_or_spawn_finds_no_actor_that_it_knew_and_that_is_being_stopped(
    pair: Pair, where: str
) -> None:
    for together in (False, True):
        for steps in range(1, 40):
            named = pair.here.options(name=f"known-{steps}-{together}", on=where)
            await named.get_or_spawn(Register)
            register = await named.get_or_spawn(Register)
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    if together:
                        # Two stops at the same time travel in one message.
                        for n in range(2):
                            other = await pair.here.options(on=where).spawn(Register, str(n))
                            nursery.start_soon(pair.here.stop, other)
                    await cancelled_after(steps, lambda: pair.here.stop(register))  # noqa: B023
                    again = await named.get_or_spawn(Register)
                    assert (await again.who())[1] == where, steps
                assert (await again.who())[1] == where, steps


@pytest.mark.parametrize("first", ["spawn", "get_or_spawn", "stop", "stop of a found one"])
async def test_get_or_spawn_finds_no_actor_that_is_being_stopped_or_taken_back(
    pair: Pair, where: str, first: str
) -> None:
    for steps in range(1, 40):
        named = pair.here.options(name=f"again-{steps}", on=where)
        register = await named.spawn(Register) if first.startswith("stop") else None
        if first == "stop of a found one":
            register = await named.get_or_spawn(Register)
        with trio.CancelScope() as scope:
            instrument = _CancelAfter(scope, steps)
            trio.lowlevel.add_instrument(instrument)
            try:
                if register is not None:
                    await pair.here.stop(register)
                else:
                    await getattr(named, first)(Register)
            finally:
                trio.lowlevel.remove_instrument(instrument)
        with trio.fail_after(30):
            assert (await (await named.get_or_spawn(Register)).who())[1] == where


class Unready(Actor):
    """Never starts."""

    async def on_start(self) -> None:
        await trio.sleep_forever()


async def test_a_start_that_is_cancelled_as_its_node_ends_is_cancelled(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send_in_vain(*call: object) -> None:
        raise ActorNotFoundError("@node ended with node there")

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.here.options(on="there").spawn, Unready)
            await trio.testing.wait_all_tasks_blocked(0.05)
            monkeypatch.setattr(CallClient, "send", send_in_vain)
            scope.cancel()
    monkeypatch.undo()
    assert scope.cancelled_caught


@pytest.mark.parametrize("found", [True, False])
async def test_a_start_that_was_cancelled_takes_back_only_an_actor_that_nobody_has_found(
    pair: Pair, found: bool
) -> None:
    there = pair.there
    service = internals_of(pair.here).endpoint.node_service(there.name, there.incarnation)
    named = pair.here.options(name="shared", on="there")
    # As the spawner does it, whose task is cancelled while the answer is on its way.
    await service.spawn(import_path(Register), (), {}, SpawnOptions(name="shared"), "", "ticket")
    register = await named.get_or_spawn(Register) if found else None
    await service.take_back("ticket")
    with trio.fail_after(30):
        if register is not None:
            assert (await register.who())[1] == "there"
        else:
            with pytest.raises(ActorNotFoundError):
                await pair.here.lookup("shared")
