"""The check of linearizability: searches for an order of one key's operations, each between its
call and its return, that explains all their results.

The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the
memory of Lowe ("Testing for linearizability", 2017): a configuration, which is a set of operations
done and the state after them, is tried once. Four rules keep the search small. None of them hides a
violation or reports a false one:

- If a read that may come next returns the present state, it comes next, and no other choice is
  tried: an order in which it comes later stays valid if it is moved here. The same holds for every
  operation that never changes the state, such as a swap that was refused. It does not hold for a
  write of the present value, which may be needed later. A read of unknown result is left out.
- Operations of unknown outcome come only directly before a known one whose result depends on them.
  They never return. So in any order that explains the results, those on which the next known
  operation does not depend can be moved later, or left out.
- If a configuration failed, the same configuration with more unknown operations used up fails as
  well: it leaves fewer choices. Of equal unknown operations, the one that was called first is used
  first.
- Short rows of unknown operations are tried before long ones, until a longer row reaches no new
  state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import attrs

from runtime.simulation.report import Operation

LIMIT = 1_000_000
"""Configurations that are tried before the search gives up."""

READ = "read"
"""Operations of this name never change the state, in any model."""

SHOWN = 5
"""How many of the last explained operations a violation shows."""

State = TypeVar("State", bound=Hashable)


class UndecidedError(Exception):
    """The search was given up: the operations may or may not be linearizable."""


class Model(Protocol[State]):
    """The behaviour of a key, one operation at a time.

    States are hashable and not None. Equal arguments and equal states behave alike. An operation
    named "read" never changes the state. `RegisterModel` is one model; users' tests may have their
    own.
    """

    @property
    def initial(self) -> State:
        """The state before any operation."""
        ...

    def step(
        self, state: State, what: str, argument: object, result: object | None, known: bool
    ) -> State | None:
        """Return the state after the operation, or None if it cannot give `result` in `state`. Not
        `known`: any result is possible.
        """
        ...


@runtime_checkable
class ObservingModel(Protocol):
    """Optional knowledge of a model, which makes the search smaller. `RegisterModel` has it; models
    of tests need not.
    """

    def observes(self, what: str, argument: object, result: object | None) -> bool:
        """Return True if an operation with this result certainly left every possible state
        unchanged.
        """
        ...


class RegisterModel:
    """A register with one hashable value.

    "read" returns the value, "write" replaces it, "compare_and_set" with (expected, new) returns
    whether it replaced it, and "add" returns the sum, where None counts as 0. The state is the
    value in a tuple, because None is a value too.
    """

    def __init__(self, initial: Hashable = None) -> None:
        self.initial: tuple[object] = (initial,)

    def step(
        self, state: tuple[object], what: str, argument: object, result: object | None, known: bool
    ) -> tuple[object] | None:
        """Return the state after an operation, or None if it cannot give `result` in `state`."""
        (value,) = state
        if what == READ:
            return state if not known or result == value else None
        if what == "write":
            return (argument,)
        if what == "compare_and_set":
            if not isinstance(argument, tuple) or len(argument) != 2:
                raise ValueError(
                    f"the argument of compare_and_set is (expected, new), not {argument!r}"
                )
            expected, new = argument
            if known and result != (value == expected):
                return None
            return (new,) if value == expected else state
        if what == "add":
            before = 0 if value is None else value
            if not isinstance(before, int | float) or not isinstance(argument, int | float):
                return None
            return (before + argument,) if not known or result == before + argument else None
        raise ValueError(f"a register knows read, write, compare_and_set and add, not {what!r}")

    def observes(self, what: str, argument: object, result: object | None) -> bool:
        """True for an operation that changes nothing: a read, or a comparison that failed."""
        return what == READ or (what == "compare_and_set" and not result)


@attrs.frozen
class Violation:
    """Why the operations of a key are not linearizable."""

    key: str
    longest: tuple[Operation, ...]
    """An order of as many completed operations as could be explained, with the operations of
    unknown outcome that it needs.
    """
    stuck: tuple[Operation, ...]
    """The operations of which one had to come next, and none could."""

    def __str__(self) -> str:
        lines = [
            f"key {self.key!r} is not linearizable: no order of its operations explains all their "
            "results"
        ]
        if self.longest:
            left_out = len(self.longest) - SHOWN
            lines.append(
                "the longest order that explains some has "
                f"{len(self.longest)}{', and ends with' if left_out > 0 else ''}:"
            )
            lines.extend(f"  {operation}" for operation in self.longest[-SHOWN:])
        lines.append(
            "then one of these had to come next, and none could, whatever of unknown outcome came "
            "before it:"
        )
        lines.extend(f"  {operation}" for operation in self.stuck)
        return "\n".join(lines)


def check(
    operations: Sequence[Operation], model: Model[State], limit: int = LIMIT
) -> Violation | None:
    """Return what is wrong with the operations of one key, or None if they are linearizable.

    Failed operations are left out. Unknown and pending ones take effect at any time after their
    call, or never. Raises `UndecidedError` if the search takes more than `limit` configurations.
    """
    if len(keys := {operation.key for operation in operations}) > 1:
        raise ValueError(
            f"one key at a time, not {', '.join(sorted(keys))}: see CallHistory.by_key"
        )
    search = _Search(operations, model, limit)
    while not search.explain():
        if not search.lengthen():
            return Violation(keys.pop(), *search.longest())
    return None


@attrs.define(eq=False)
class _Configuration(Generic[State]):
    """A configuration: which operations were put in order, the state that they lead to, and the way
    there.
    """

    first: int
    """All known operations before this one, by order of return, are done; this one is not."""
    ahead: int
    """A bit for each known operation after `first` that is done as well."""
    used: int
    """A bit for each unknown operation that is done."""
    state: State
    before: _Configuration[State] | None = None
    last: tuple[Operation, ...] = ()
    """The operations since `before`: unknown ones, and one known one at the end."""

    @property
    def size(self) -> int:
        """Known operations that are done."""
        return self.first + self.ahead.bit_count()


@attrs.define(eq=False)
class _HistoryRow(Generic[State]):
    """A row of unknown operations, and the state after it."""

    state: State
    used: int
    operations: tuple[Operation, ...]


class _Smallest(Generic[State]):
    """Minimal sets of unknown operations that were used to reach a goal: no set contains another
    one.
    """

    def __init__(self) -> None:
        self._sets: dict[State, list[int]] = {}

    def add(self, goal: State, used: int) -> bool:
        """Add a set. Returns True if no subset of it was used to reach the same goal. Add smaller
        sets first.
        """
        sets = self._sets.setdefault(goal, [])
        if any(other & used == other for other in sets):
            return False
        sets.append(used)
        return True


class _HistoryRows(Generic[State]):
    """The rows of unknown operations from a state, shortest first, without those that a part of
    them can replace.
    """

    def __init__(self, search: _Search[State], state: State, open: int) -> None:
        self._search = search
        self._open = open
        self._smallest: _Smallest[State] = _Smallest()
        self._smallest.add(state, 0)
        self._longest = [_HistoryRow(state, 0, ())]
        self._length = 0
        self.found: list[_HistoryRow[State]] = []

    def up_to(self, length: int) -> list[_HistoryRow[State]]:
        """Return the rows of up to this many operations."""
        while self._length < length and self.lengthen():
            pass
        return self.found

    def lengthen(self) -> bool:
        """Find the rows that are one operation longer than those found. Returns True if there are
        any.
        """
        self._length += 1
        longer: list[_HistoryRow[State]] = []
        for row in self._longest:
            for bit, operation in self._search.usable(self._open & ~row.used):
                state = self._search.step(row.state, operation)
                if state is not None and self._smallest.add(state, row.used | bit):
                    self._search.count()
                    longer.append(_HistoryRow(state, row.used | bit, (*row.operations, operation)))
        self._longest = longer
        self.found.extend(longer)
        return bool(longer)


class _Search(Generic[State]):
    """A depth-first search through the configurations of one history."""

    def __init__(self, operations: Sequence[Operation], model: Model[State], limit: int) -> None:
        self._model = model
        self._limit = limit
        self._tried = 0
        self._known, returns = _by_return(operations)
        self._observes = [_observes(model, operation) for operation in self._known]
        self._windows = _windows(self._known, returns)
        unknown = (
            operation
            for operation in operations
            if operation.outcome in ("unknown", "pending") and operation.what != READ
        )
        self._unknown = sorted(unknown, key=lambda operation: operation.called)
        self._alike = _alike(self._unknown)
        calls = [operation.called for operation in self._unknown]
        self._called = [(1 << bisect_left(calls, position)) - 1 for position in returns]
        """For each known operation, the unknown ones called before its return."""
        self._length = 1
        """The number of consecutive unknown operations that are tried in this round."""
        self._rows: dict[tuple[State, int], _HistoryRows[State]] = {}
        self._helping: dict[tuple[int, State, int], list[_HistoryRow[State]]] = {}
        """What `_help` found in this round."""
        self._best: _Configuration[State] = _Configuration(0, 0, 0, model.initial)

    def explain(self) -> bool:
        """Return True if an order explains everything, with rows of at most the present length."""
        if not self._known:
            return True
        tried: _Smallest[tuple[int, int, State]] = _Smallest()
        self._helping.clear()
        stack = [self._after(_Configuration(0, 0, 0, self._model.initial))]
        while stack:
            configuration = next(stack[-1], None)
            if configuration is None:
                stack.pop()
            elif tried.add(
                (configuration.first, configuration.ahead, configuration.state), configuration.used
            ):
                self.count()
                if configuration.size > self._best.size:
                    self._best = configuration
                if configuration.first == len(self._known):
                    self._check_order()
                    return True
                stack.append(self._after(configuration))
        return False

    def _check_order(self) -> None:
        """Assert that the order found is one, without the rules that keep the search small: a
        mistake in one of them would hide violations for ever.
        """
        order = self._order()
        state: State | None = self._model.initial
        latest_call = -1
        for operation in order:
            assert state is not None
            state = self.step(state, operation)
            assert state is not None, f"{operation} cannot come where it was put"
            latest_call = max(latest_call, operation.called)
            assert operation.outcome != "ok" or latest_call <= (operation.returned or 0), (
                f"{operation} had returned before one that was put before it was called"
            )
        known = [operation for operation in order if operation.outcome == "ok"]
        assert len(known) == len(set(map(id, known))) == len(self._known), "each of them once"
        assert len(order) == len(set(map(id, order)))

    def lengthen(self) -> bool:
        """Allow rows of one more unknown operation. Returns False if there are none, because the
        search would find the same again.
        """
        self._length += 1
        return any(len(rows.found) < len(rows.up_to(self._length)) for rows in self._rows.values())

    def longest(self) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """Return the configuration with the most known operations in order, and the known ones that
        had to follow.
        """
        return self._order(), tuple(self._known[index] for index in self._candidates(self._best))

    def _order(self) -> tuple[Operation, ...]:
        parts: list[tuple[Operation, ...]] = []
        configuration: _Configuration[State] | None = self._best
        while configuration is not None:
            parts.append(configuration.last)
            configuration = configuration.before
        return tuple(operation for part in reversed(parts) for operation in part)

    def step(self, state: State, operation: Operation) -> State | None:
        """Apply the model."""
        return self._model.step(
            state, operation.what, operation.argument, operation.result, operation.outcome == "ok"
        )

    def usable(self, open: int) -> Iterator[tuple[int, Operation]]:
        """Return the first of each kind of the unknown operations that are open."""
        for kind in self._alike:
            if bits := kind & open:
                bit = bits & -bits
                yield bit, self._unknown[bit.bit_length() - 1]

    def count(self) -> None:
        """Count a configuration; raises `UndecidedError` at the limit."""
        self._tried += 1
        if self._tried > self._limit:
            raise UndecidedError(
                f"not decided after {self._limit} configurations: {len(self._known)} completed "
                f"operations, {self._best.size} of which "
                f"could be explained so far, and {len(self._unknown)} of unknown outcome; check a "
                "shorter history, or raise the limit"
            )

    def _candidates(self, configuration: _Configuration[State]) -> list[int]:
        """Return the known operations that may come next, by order of return: those called before
        the earliest return that is not done.
        """
        first, ahead = configuration.first, configuration.ahead
        return [index for index in self._windows[first] if not ahead >> (index - first) & 1]

    def _after(self, configuration: _Configuration[State]) -> Iterator[_Configuration[State]]:
        """Return the configurations with one more known operation, first those without unknown ones
        before it.
        """
        state = configuration.state
        possible: list[tuple[int, State]] = []
        candidates = self._candidates(configuration)
        for index in candidates:
            after = self.step(state, self._known[index])
            if after is not None and self._observes[index]:
                yield self._with(configuration, index, state)
                return
            if after is not None:
                possible.append((index, after))
        for index, after in possible:
            yield self._with(configuration, index, after)
        if open := self._called[configuration.first] & ~configuration.used:
            for index in candidates:
                for row in self._help(index, state, open):
                    yield self._with(configuration, index, row.state, row)

    def _help(self, index: int, state: State, open: int) -> list[_HistoryRow[State]]:
        """Return the rows of unknown operations without which a known one could not have its
        result, with the state after each.
        """
        case = (index, state, open)
        if case in self._helping:
            return self._helping[case]
        operation = self._known[index]
        smallest: _Smallest[State] = _Smallest()
        alone = self.step(state, operation)
        if alone is not None:
            smallest.add(alone, 0)
        if (state, open) not in self._rows:
            self._rows[state, open] = _HistoryRows(self, state, open)
        helping = self._helping[case] = []
        for row in self._rows[state, open].up_to(self._length):
            after = self.step(row.state, operation)
            if after is not None and smallest.add(after, row.used):
                helping.append(_HistoryRow(after, row.used, row.operations))
        return helping

    def _with(
        self,
        configuration: _Configuration[State],
        index: int,
        state: State,
        row: _HistoryRow[State] | None = None,
    ) -> _Configuration[State]:
        """Return the configuration after a row and a known operation."""
        ahead = configuration.ahead | 1 << (index - configuration.first)
        done = (~ahead & (ahead + 1)).bit_length() - 1
        used, unknown = (row.used, row.operations) if row else (0, ())
        last = (*unknown, self._known[index])
        return _Configuration(
            configuration.first + done,
            ahead >> done,
            configuration.used | used,
            state,
            configuration,
            last,
        )


def _observes(model: object, operation: Operation) -> bool:
    """Return True if a known operation certainly left the state unchanged."""
    if isinstance(model, ObservingModel):
        return model.observes(operation.what, operation.argument, operation.result)
    return operation.what == READ


def _by_return(operations: Sequence[Operation]) -> tuple[list[Operation], list[int]]:
    """Return the operations whose result is known, in the order of their returns, and the
    positions of these returns.
    """
    known: list[tuple[int, Operation]] = []
    for operation in operations:
        if operation.outcome == "ok":
            if operation.returned is None:
                raise ValueError(
                    f"an operation with a result has returned, and this one has not: {operation}"
                )
            known.append((operation.returned, operation))
    known.sort(key=lambda pair: pair[0])
    return [operation for _, operation in known], [returned for returned, _ in known]


def _windows(known: list[Operation], returns: list[int]) -> list[list[int]]:
    """Return for each operation those, by order of return, that are concurrent with it."""
    by_call = sorted(range(len(known)), key=lambda index: known[index].called)
    active: set[int] = set()
    windows: list[list[int]] = []
    called = 0
    for index, returned in enumerate(returns):
        while called < len(by_call) and known[by_call[called]].called < returned:
            active.add(by_call[called])
            called += 1
        windows.append(sorted(active))
        active.discard(index)
    return windows


def _alike(unknown: list[Operation]) -> list[int]:
    """Return a set of bits for each kind of operation: same name, equal arguments. Compared by
    equality, because an argument need not be hashable.
    """
    kinds: list[tuple[Operation, int]] = []
    for index, operation in enumerate(unknown):
        for place, (other, bits) in enumerate(kinds):
            if other.what == operation.what and other.argument == operation.argument:
                kinds[place] = (other, bits | 1 << index)
                break
        else:
            kinds.append((operation, 1 << index))
    return [bits for _, bits in kinds]
