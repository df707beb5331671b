"""The checker of histories against all permutations, on small examples that people can judge, and
on histories as large as it will get.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from runtime.simulation import linearizability
from runtime.simulation.linearizability import RegisterModel, UndecidedError, Violation, check
from runtime.simulation.report import CallHistory, Operation

EXAMPLES = max(100, settings().max_examples)
"""A profile with more examples than these raises them: `--hypothesis-profile=...`."""

Ends = Literal["ok", "failed", "unknown", "pending"]

NOW = 1.5


def apply(value: object, what: str, argument: object) -> tuple[object, object]:
    """A register by another hand than the model's: the value after, and the result."""
    match what, argument:
        case "read", _:
            return value, value
        case "write", _:
            return argument, None
        case "add", int():
            assert isinstance(value, int)
            return value + argument, value + argument
        case "compare_and_set", (expected, new):
            return (new, True) if value == expected else (value, False)
    raise AssertionError(what)


def explains(order: Sequence[Operation]) -> bool:
    """Whether this order keeps to the real time of calls and returns, and a register gives these
    results.
    """
    value: object = 0
    for index, operation in enumerate(order):
        for later in order[index + 1 :]:
            if (
                later.outcome == "ok"
                and later.returned is not None
                and later.returned < operation.called
            ):
                return False
        value, result = apply(value, operation.what, operation.argument)
        if operation.outcome == "ok" and operation.what != "write" and result != operation.result:
            return False
    return True


def linearizable(operations: Sequence[Operation]) -> bool:
    """The reference: any order of any choice of unknown operations with all the known ones."""
    known = [operation for operation in operations if operation.outcome == "ok"]
    unknown = [operation for operation in operations if operation.outcome in ("unknown", "pending")]
    return any(
        explains(order)
        for some in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, some)
        for order in itertools.permutations([*known, *chosen])
    )


def assert_honest(violation: Violation, operations: Sequence[Operation]) -> None:
    """What a violation shows is so: its order explains itself, and nothing that had to come next
    fits behind it.
    """
    assert explains(violation.longest)
    left = [
        it
        for it in operations
        if it.outcome == "ok" and not any(it is done for done in violation.longest)
    ]
    earliest = min(it.returned for it in left if it.returned is not None)
    assert {it.called for it in violation.stuck} == {
        it.called for it in left if it.called < earliest
    }
    assert not any(explains([*violation.longest, operation]) for operation in violation.stuck)
    text = str(violation)
    assert repr(violation.key) in text
    assert all(str(operation) in text for operation in (*violation.stuck, *violation.longest[-3:]))


values = st.integers(0, 2)
requests = st.one_of(
    st.tuples(st.just("read"), st.none()),
    st.tuples(st.just("write"), values),
    st.tuples(st.just("add"), st.integers(1, 2)),
    st.tuples(st.just("compare_and_set"), st.tuples(values, values)),
)
results = {
    "read": st.integers(0, 4),
    "write": st.none(),
    "add": st.integers(1, 4),
    "compare_and_set": st.booleans(),
}
endings: st.SearchStrategy[Ends] = st.sampled_from(
    ["ok", "ok", "ok", "unknown", "unknown", "pending", "failed"]
)


@st.composite
def histories(draw: st.DrawFn, truthful: bool) -> list[Operation]:
    """Up to six operations, called and completed in any order. Truthful ones have the results that
    a register gave in between.
    """
    size = draw(st.integers(1, 6))
    history = CallHistory()
    value: object = 0
    seen: dict[int, object] = {}
    made: dict[int, Operation] = {}
    # Each number stands for a call, then the effect, then the completion; an unknown operation's
    # effect may also come after that.
    for turn in draw(st.permutations([number for number in range(size) for _ in range(3)])):
        if turn not in made:
            what, argument = draw(requests)
            made[turn] = history.invoke(f"client {turn}", "key", what, argument, NOW)
        elif turn not in seen:
            operation = made[turn]
            ending = draw(endings)
            if ending == "unknown" and draw(st.booleans()):
                history.unknown(operation, "gave up", NOW)
            if ending != "failed" and (ending == "ok" or draw(st.booleans())):
                value, seen[turn] = apply(value, operation.what, operation.argument)
            else:
                seen[turn] = None
            if ending == "failed":
                history.failed(operation, "refused", NOW)
            elif ending == "unknown" and operation.outcome == "pending":
                history.unknown(operation, "gave up", NOW)
            elif ending == "pending":
                operation.error = "never ends"
        elif made[turn].outcome == "pending" and not made[turn].error:
            history.ok(made[turn], seen[turn] if truthful else draw(results[made[turn].what]), NOW)
    return history.operations


@settings(max_examples=EXAMPLES)
@given(histories(truthful=False))
def test_any_history_is_judged_as_all_permutations_judge_it(operations: list[Operation]) -> None:
    violation = check(operations, RegisterModel(0))
    event("a violation" if violation else "linearizable")
    assert (violation is None) == linearizable(operations)
    if violation:
        assert_honest(violation, operations)


@settings(max_examples=EXAMPLES)
@given(histories(truthful=True))
def test_what_a_register_did_is_linearizable(operations: list[Operation]) -> None:
    assert check(operations, RegisterModel(0)) is None


@settings(max_examples=EXAMPLES)
@given(histories(truthful=True), st.data())
def test_one_result_changed_is_judged_as_all_permutations_judge_it(
    operations: list[Operation], data: st.DataObject
) -> None:
    known = [operation for operation in operations if operation.outcome == "ok"]
    if known:
        changed = data.draw(st.sampled_from(known))
        changed.result = data.draw(results[changed.what])
    violation = check(operations, RegisterModel(0))
    event("a violation" if violation else "linearizable")
    assert (violation is None) == linearizable(operations)
    if violation:
        assert_honest(violation, operations)


class Script:
    """A history written by hand, one event a line."""

    def __init__(self) -> None:
        self.history = CallHistory()
        self.now = 0.0

    def call(self, client: str, what: str, argument: object = None) -> Operation:
        self.now += 1
        return self.history.invoke(client, "key", what, argument, self.now)

    def ok(self, operation: Operation, result: object = None) -> None:
        self.now += 1
        self.history.ok(operation, result, self.now)

    def unknown(self, operation: Operation) -> None:
        self.now += 1
        self.history.unknown(operation, "timed out", self.now)

    def do(
        self, client: str, what: str, argument: object = None, result: object = None
    ) -> Operation:
        operation = self.call(client, what, argument)
        self.ok(operation, result)
        return operation

    def check(self, initial: int | None = 0) -> Violation | None:
        return check(self.history.operations, RegisterModel(initial))


@pytest.fixture
def script() -> Script:
    return Script()


def test_nothing_is_linearizable(script: Script) -> None:
    assert script.check() is None


def test_a_stale_read_after_a_write_has_returned_is_a_violation(script: Script) -> None:
    written = script.do("a", "write", 1)
    stale = script.do("b", "read", None, 0)
    assert script.check() == Violation("key", (written,), (stale,))


def test_a_search_that_ignores_who_had_returned_is_caught_by_its_own_check(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.do("a", "write", 1)
    script.do("b", "read", None, 0)
    monkeypatch.setattr(
        linearizability,
        "_windows",
        lambda known, _: [list(range(index, len(known))) for index in range(len(known))],
    )
    with pytest.raises(AssertionError, match="had returned before"):
        script.check()


def test_a_read_during_a_write_may_see_either_value_but_not_go_back(script: Script) -> None:
    write = script.call("a", "write", 1)
    script.do("b", "read", None, 0)
    script.do("b", "read", None, 1)
    assert script.check() is None
    script.do("c", "read", None, 0)
    script.ok(write)
    assert script.check() is not None


def test_a_lost_update_is_a_violation(script: Script) -> None:
    first, second = script.call("a", "add", 1), script.call("b", "add", 1)
    script.ok(first, 1)
    script.ok(second, 1)
    violation = script.check()
    assert violation is not None
    assert_honest(violation, script.history.operations)


def test_two_that_swap_the_same_value_are_a_violation(script: Script) -> None:
    first, second = (
        script.call("a", "compare_and_set", (0, 1)),
        script.call("b", "compare_and_set", (0, 2)),
    )
    script.ok(first, True)
    script.ok(second, True)
    assert script.check() is not None


def test_of_two_that_would_swap_the_same_value_one_may_get_no(script: Script) -> None:
    first, second = (
        script.call("a", "compare_and_set", (0, 1)),
        script.call("b", "compare_and_set", (0, 2)),
    )
    script.ok(first, False)
    script.ok(second, True)
    script.do("c", "read", None, 2)
    assert script.check() is None


def test_a_write_that_was_acknowledged_and_is_never_seen_is_a_violation(script: Script) -> None:
    script.do("a", "write", 1)
    script.do("a", "write", 2)
    for _ in range(3):
        script.do("b", "read", None, 1)
    assert script.check() is not None


def test_an_add_that_counts_twice_is_a_violation(script: Script) -> None:
    script.do("a", "add", 1, 1)
    script.do("b", "read", None, 2)
    assert script.check() is not None


def test_an_add_counts_once_whether_its_client_knows_or_not(script: Script) -> None:
    script.unknown(script.call("a", "add", 1))
    script.do("b", "add", 1, 2)
    assert script.check() is None
    script.do("b", "read", None, 3)
    assert script.check() is not None


def test_several_unknown_adds_may_be_seen_at_once(script: Script) -> None:
    for amount in (1, 2, 4, 8, 16, 32):
        script.unknown(script.call("a", "add", amount))
    script.do("b", "read", None, 0)
    script.do("b", "read", None, 63)
    assert script.check() is None
    script.do("b", "read", None, 62)
    assert script.check() is not None


def test_an_unknown_write_may_be_seen_late(script: Script) -> None:
    script.unknown(script.call("a", "write", 1))
    script.do("b", "read", None, 0)
    script.do("b", "write", 2)
    script.do("b", "read", None, 2)
    script.do("b", "read", None, 1)
    assert script.check() is None


def test_an_unknown_write_is_not_seen_before_its_call(script: Script) -> None:
    script.do("b", "read", None, 1)
    script.unknown(script.call("a", "write", 1))
    assert script.check() is not None


def test_an_unknown_write_that_is_seen_and_then_unseen_is_a_violation(script: Script) -> None:
    unknown = script.call("a", "write", 1)
    script.unknown(unknown)
    seen = script.do("b", "read", None, 1)
    unseen = script.do("b", "read", None, 0)
    assert script.check() == Violation("key", (unknown, seen), (unseen,))


def test_an_unknown_write_takes_effect_once(script: Script) -> None:
    script.unknown(script.call("a", "write", 1))
    script.do("b", "read", None, 1)
    script.do("b", "write", 2)
    assert script.check() is None
    script.do("b", "read", None, 1)
    assert script.check() is not None


def test_a_chain_of_unknown_swaps_may_be_needed_for_one_read(script: Script) -> None:
    for value in reversed(range(6)):
        script.call("a", "compare_and_set", (value, value + 1))
    script.do("b", "read", None, 6)
    assert script.check() is None
    script.do("b", "read", None, 5)
    assert script.check() is not None


def test_a_failed_write_is_never_seen(script: Script) -> None:
    script.history.failed(script.call("a", "write", 1), "refused", 9.0)
    script.do("b", "read", None, 0)
    assert script.check() is None
    script.do("b", "read", None, 1)
    assert script.check() is not None


def test_an_empty_register_holds_none_and_counts_from_zero(script: Script) -> None:
    script.do("a", "read", None, None)
    script.do("a", "add", 2, 2)
    assert script.check(None) is None


def test_what_the_register_does_not_know_is_an_error(script: Script) -> None:
    script.do("a", "remove")
    with pytest.raises(ValueError, match="'remove'"):
        script.check()


def test_the_keys_of_a_history_are_checked_one_at_a_time() -> None:
    history = CallHistory()
    for key in ("a", "b", "a"):
        history.ok(history.invoke("client", key, "add", 1, 0.0), None, 0.0)
    assert {key: len(operations) for key, operations in history.by_key().items()} == {
        "a": 2,
        "b": 1,
    }
    with pytest.raises(ValueError, match="one key at a time, not a, b"):
        check(history.operations, RegisterModel())


def test_a_history_numbers_calls_and_completions_in_one_order() -> None:
    history = CallHistory()
    first, second, third = (
        history.invoke(name, "key", "add", 1, now)
        for name, now in (("a", 0.0), ("b", 0.5), ("c", 1.0))
    )
    history.unknown(second, "timed out", 2.0)
    history.ok(first, 1, 3.0)
    history.failed(third, "refused", 4.0)
    assert [
        (it.called, it.returned, it.returned_at, it.outcome, it.error, it.result)
        for it in history.operations
    ] == [
        (first.called, 5, 3.0, "ok", "", 1),
        (second.called, 4, 2.0, "unknown", "timed out", None),
        (third.called, 6, 4.0, "failed", "refused", None),
    ]
    assert [it.called for it in history.operations] == [1, 2, 3]


@pytest.mark.parametrize("ending", ["ok", "failed", "unknown"])
def test_an_operation_completes_once(ending: str) -> None:
    history = CallHistory()
    operation = history.invoke("a", "key", "read", None, 0.0)
    getattr(history, ending)(operation, "first", 1.0)
    for again in (history.ok, history.failed, history.unknown):
        with pytest.raises(ValueError, match="completes once"):
            again(operation, "second", 2.0)
    assert (operation.outcome, operation.returned, operation.returned_at) == (ending, 2, 1.0)


def test_a_violation_explains_itself_in_a_few_lines(script: Script) -> None:
    for value in range(20):
        script.do("a", "write", value)
    script.do("b", "read", None, 7)
    lines = str(script.check()).splitlines()
    assert len(lines) == 9
    assert (
        lines[0]
        == "key 'key' is not linearizable: no order of its operations explains all their results"
    )
    assert lines[-1] == "  b: read(None) -> 7, #41 (41 s) to #42 (42 s)"


def test_a_search_that_grows_too_large_says_that_it_decided_nothing(script: Script) -> None:
    for amount in range(40):
        script.unknown(script.call("a", "add", 2**amount))
    script.do("b", "read", None, -1)
    with pytest.raises(UndecidedError, match="not decided after 1000 configurations: 1 completed"):
        check(script.history.operations, RegisterModel(0), limit=1000)


class Log:
    """A model of another kind, with nothing but what `Model` asks for: a list that grows, whose
    whole is read.
    """

    initial: tuple[object, ...] = ()

    def step(
        self,
        state: tuple[object, ...],
        what: str,
        argument: object,
        result: object | None,
        known: bool,
    ) -> tuple[object, ...] | None:
        if what == "append":
            return (*state, argument)
        return state if not known or result == state else None


@pytest.mark.parametrize(
    ("second", "fits"), [((2,), True), ((2, 1), True), ((1, 2), False), ((1,), False)]
)
def test_a_model_needs_only_its_state_and_its_step(
    script: Script, second: tuple[int, ...], fits: bool
) -> None:
    script.unknown(script.call("a", "append", 1))
    script.do("b", "append", 2)
    script.do("b", "read", None, second)
    script.do("b", "append", 3)
    script.do("b", "read", None, (2, 1, 3))
    assert (check(script.history.operations, Log()) is None) == fits


class Busy:
    """Clients that are never idle, on a register that answers at a moment of its own between call
    and return, or after.
    """

    def __init__(
        self, seed: int, size: int, unknown: int, kinds: Sequence[str], clients: int = 8
    ) -> None:
        self.random = random.Random(seed)
        self.history = CallHistory()
        self.kinds = kinds
        self.value: object = 0
        self.numbers = itertools.count(1)
        self.lost = set(self.random.sample(range(size), unknown))
        self.late: list[Operation] = []
        running = [self.life(f"client {number}", size) for number in range(clients)]
        while running:
            client = self.random.choice(running)
            if next(client, "gone") == "gone":
                running.remove(client)
            if self.late and self.random.random() < 0.01:
                self.effect(self.late.pop(self.random.randrange(len(self.late))))

    def life(self, client: str, size: int) -> Iterator[None]:
        while (number := len(self.history.operations)) < size:
            what = (
                "write"
                if number in self.lost and "write" in self.kinds
                else self.random.choice(self.kinds)
            )
            operation = self.history.invoke(client, "key", what, self.argument(what), float(number))
            yield
            if number in self.lost:
                # Half of them take effect, at some time or other.
                if self.random.random() < 0.5:
                    self.late.append(operation)
                self.history.unknown(operation, "timed out", float(number))
            else:
                result = self.effect(operation)
                yield
                self.history.ok(operation, result, float(number))
            yield

    def argument(self, what: str) -> object:
        number = next(self.numbers)
        return {
            "read": None,
            "write": number,
            "add": number % 3 + 1,
            "compare_and_set": (self.value, number),
        }[what]

    def effect(self, operation: Operation) -> object:
        self.value, result = apply(self.value, operation.what, operation.argument)
        return result

    def spoil(self) -> Operation:
        """Make a late read see what the first write wrote, long after it was overwritten."""
        operations = self.history.operations
        old = next(it for it in operations if it.what == "write" and it.outcome == "ok")
        read = [it for it in operations if it.what == "read" and it.outcome == "ok"][-5]
        assert read.result != old.argument
        read.result = old.argument
        return read


MIXES = {
    "reads and writes": ("read", "write"),
    "writes": ("write", "write", "write", "read"),
    "all": ("read", "write", "compare_and_set", "add"),
    "adds": ("read", "add"),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mix", MIXES)
def test_a_long_history_of_many_clients_is_checked_at_once(mix: str, seed: int) -> None:
    busy = Busy(seed, 1_000, 50, MIXES[mix])
    # A few times what it takes, which is some 0.1 seconds, and far less than a search that goes
    # astray.
    assert check(busy.history.operations, RegisterModel(0), limit=50_000) is None


@pytest.mark.parametrize(
    "mix",
    ["reads and writes", *(pytest.param(mix, marks=pytest.mark.long) for mix in ("writes", "all"))],
)
def test_one_stale_read_in_a_long_history_is_found(mix: str) -> None:
    busy = Busy(0, 1_000, 50, MIXES[mix])
    stale = busy.spoil()
    violation = check(busy.history.operations, RegisterModel(0))
    assert violation is not None
    assert any(operation is stale for operation in violation.stuck)
    assert_honest(violation, busy.history.operations)
