"""The small decisions of an agent: ranks, budgets, deadlines, options and reports."""

from __future__ import annotations

import ipaddress
import itertools
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import attrs
import pytest

from runtime.elastic.budget import (
    MAX_KEPT,
    RestartHistory,
    WorkerFailure,
    ask,
    decode_failure,
    decode_history,
    encode_failure,
    encode_history,
    read_error_file,
    recent,
    report,
)
from runtime.elastic.ranks import (
    RankedAgent,
    assign,
    decode_member,
    decode_places,
    encode_member,
    encode_places,
)
from runtime.elastic.runner import ERROR_FILE, record, write_error
from runtime.elastic.settings import (
    parse_filters,
    parse_masks,
    parse_nodes,
    parse_pairs,
    parse_processes,
    parse_ranks,
)
from runtime.elastic.watchdog import (
    DeadlineRequest,
    Expired,
    WatchdogDeadlines,
    decode_request,
    encode_request,
)
from runtime.elastic.workers import MAX_ERROR_BYTES, error_of
from runtime.links.interfaces import own_address
from runtime.rendezvous.parameters import RendezvousStateError
from tests.loaders import SourceLoader, generated, without_entry


def members(*wishes: int | None) -> list[RankedAgent]:
    return [
        RankedAgent(f"agent-{number}", "default", 2, wish) for number, wish in enumerate(wishes)
    ]


def test_ranks_are_dense_and_unique_whatever_agents_had_before() -> None:
    chance = random.Random(8)
    for _ in range(500):
        agents = [
            RankedAgent(
                f"a{number}",
                chance.choice("xy"),
                chance.randrange(1, 4),
                chance.choice([None, *range(6)]),
            )
            for number in range(chance.randrange(1, 6))
        ]
        places = assign(agents)
        assert [place.group_rank for place in places] == list(range(len(agents)))
        assert sorted(place.name for place in places) == sorted(agent.name for agent in agents)
        ranks = [
            place.base_rank + local for place in places for local in range(place.local_world_size)
        ]
        assert ranks == list(range(len(ranks)))
        for role in "xy":
            of_role = [
                place
                for place in places
                if next(agent for agent in agents if agent.name == place.name).role == role
            ]
            role_ranks = [
                place.role_base_rank + local
                for place in of_role
                for local in range(place.local_world_size)
            ]
            assert role_ranks == list(range(len(role_ranks)))
            assert all(place.role_world_size == len(role_ranks) for place in of_role)


def test_a_newcomer_gets_the_rank_of_the_agent_that_is_gone_and_the_others_keep_theirs() -> None:
    places = assign(members(None, 2, 0))
    assert [place.name for place in places] == ["agent-2", "agent-0", "agent-1"]


def test_a_rank_that_is_not_there_any_more_is_given_up() -> None:
    assert [place.name for place in assign(members(3, 1))] == ["agent-0", "agent-1"]
    assert [place.name for place in assign(members(1, 1, -1))] == [
        "agent-1",
        "agent-0",
        "agent-2",
    ], "the first claim wins"


def test_places_survive_the_store_and_garbage_there_is_refused() -> None:
    places = assign(members(None, None))
    found = decode_places(encode_places(places, 3), 7, "agent-1")
    assert (found.round, found.restarts, found.own, found.world_size) == (7, 3, places[1], 4)
    assert decode_member(encode_member(members(None)[0])) == members(None)[0]
    for garbage in (
        b"",
        b"null",
        b"[]",
        b'{"places": [[1]], "restarts": 0}',
        b'{"places": 7, "restarts": 0}',
        b"\xff",
        b"[" * 100_000,
        b'{"places": [["agent-1", Infinity]], "restarts": 0}',
    ):
        with pytest.raises(RendezvousStateError):
            decode_places(garbage, 7, "agent-1")
        with pytest.raises(RendezvousStateError):
            decode_member(garbage)
    with pytest.raises(RendezvousStateError, match="no ranks for agent-9"):
        decode_places(encode_places(places, 0), 7, "agent-9")


def test_all_agents_together_get_no_more_restarts_than_the_limit() -> None:
    history = RestartHistory()
    verdicts = []
    for number in range(5):
        verdict = ask(history, f"round-{number}", f"agent-{number % 2}", 1.0, 3, math.inf)
        history = verdict.history
        verdicts.append(verdict.granted)
    assert verdicts == [True, True, True, False, False]
    assert history.granted == 3


def test_an_incident_is_counted_once_and_all_that_ask_get_one_answer() -> None:
    first = ask(RestartHistory(), "round-0", "a", 0.0, 1, math.inf)
    again = ask(first.history, "round-0", "b", 5.0, 1, math.inf)
    assert (first.granted, again.granted) == (True, True)
    assert again.history == first.history
    refused = ask(first.history, "round-1", "a", 1.0, 1, math.inf)
    assert not refused.granted
    assert not ask(refused.history, "round-1", "b", 9.0, 5, math.inf).granted, (
        "refused once is refused for all"
    )


def test_only_restarts_within_the_window_count() -> None:
    history = RestartHistory()
    for number, gap in enumerate([0.0, 10.0, 10.0]):
        history = ask(history, f"{number}", "a", gap, 2, 15.0).history
    assert [entry.granted for entry in history.counted] == [True, True, True]
    assert recent(history, 0.0, 15.0) == 2
    assert recent(history, 14.0, 15.0) == 1
    assert recent(history, 16.0, 15.0) == 0
    assert not ask(history, "soon", "a", 4.0, 2, 15.0).granted
    assert ask(history, "later", "a", 6.0, 2, 15.0).granted


def test_the_list_of_restarts_is_bounded_and_forgets_no_number() -> None:
    history = RestartHistory()
    for number in range(MAX_KEPT + 50):
        history = ask(history, f"{number}", "a", 1.0, 10_000, math.inf).history
    assert len(history.counted) == MAX_KEPT
    assert history.granted == MAX_KEPT + 50
    assert decode_history(encode_history(history)) == history
    assert decode_history(None) == RestartHistory()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"7",
        b'{"dropped": 0}',
        b'{"dropped": 0, "counted": [[1, 2]]}',
        b'{"dropped":0,"counted":[["a","b",NaN,true]]}',
        b'{"dropped":Infinity,"counted":[]}',
        b"[" * 100_000,
    ],
)
def test_a_list_of_restarts_that_is_none_is_refused(garbage: bytes) -> None:
    with pytest.raises(RendezvousStateError):
        decode_history(garbage)


def test_a_scope_that_is_left_in_time_kills_nobody() -> None:
    deadlines = WatchdogDeadlines()
    deadlines.apply(DeadlineRequest("enter", "step", 5.0), 100.0)
    assert deadlines.next == 105.0
    assert deadlines.expired(104.9) is None
    deadlines.apply(DeadlineRequest("leave", "step"), 104.9)
    assert deadlines.next == math.inf
    assert deadlines.expired(1000.0) is None


def test_the_scope_that_was_over_first_is_named() -> None:
    deadlines = WatchdogDeadlines()
    deadlines.apply(DeadlineRequest("enter", "epoch", 60.0), 0.0)
    deadlines.apply(DeadlineRequest("enter", "step", 5.0), 50.0)
    assert deadlines.expired(100.0) == Expired("step", 5.0)
    deadlines.apply(DeadlineRequest("enter", "step", 5.0), 56.0)
    assert deadlines.expired(60.5) == Expired("epoch", 60.0), "entered again, it is watched anew"


def test_a_scope_is_the_process_s_that_entered_it() -> None:
    deadlines = WatchdogDeadlines()
    deadlines.apply(DeadlineRequest("enter", "step", 5.0, 10), 0.0)
    deadlines.apply(DeadlineRequest("enter", "step", 1.0, 11), 0.0)
    assert deadlines.expired(2.0) == Expired("step", 1.0, 11)
    deadlines.apply(DeadlineRequest("leave", "step", 0.0, 11), 2.0)
    assert deadlines.next == 5.0, "the other's scope of this name stands"
    deadlines.apply(DeadlineRequest("enter", "load", 1.0, 11), 2.0)
    deadlines.forget(11)
    assert deadlines.expired(4.0) is None
    assert deadlines.expired(5.0) == Expired("step", 5.0, 10)


def test_what_a_worker_writes_into_its_pipe_besides_requests_counts_for_nothing() -> None:
    assert decode_request(
        encode_request(DeadlineRequest("enter", "s", 1.5)).decode()
    ) == DeadlineRequest("enter", "s", 1.5)
    for garbage in (
        "",
        "7",
        "null",
        "[]",
        '["enter", 1, 2, 1]',
        '["enter", "s", "x", 1]',
        '["enter", "s", NaN, 1]',
        '["enter", "s", true, 1]',
        '["enter", "s", 1]',
        '["enter", "s", 1, -1]',
        '["enter", "s", 1, true]',
        '["enter", "s", 1, "7"]',
        "[1,2,3,4]",
        "[" * 100_000,
        f'["enter", "s", {"9" * 400}, 1]',
        '["enter", "s", 1e999, 1]',
    ):
        assert decode_request(garbage) is None
    with pytest.raises(ValueError, match="characters long"):
        encode_request(DeadlineRequest("enter", "x" * 5000, 1.0))


@pytest.mark.parametrize(
    ("text", "nodes"), [("1", (1, 1)), ("4", (4, 4)), ("1:3", (1, 3)), ("2:2", (2, 2))]
)
def test_numbers_of_nodes_are_understood(text: str, nodes: tuple[int, int]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "MIN:MAX"),
        ("a", "MIN:MAX"),
        ("1:2:3", "MIN:MAX"),
        ("1:", "MIN:MAX"),
        ("0", "at least 1"),
        ("3:1", "above MAX"),
        ("-1:2", "at least 1"),
    ],
)
def test_malformed_numbers_of_nodes_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_nodes(text)


def test_masks_are_understood_and_refused() -> None:
    assert parse_masks("--tee", "3", 2) == {0: 3, 1: 3}
    assert parse_masks("--tee", "0:1,1:2", 2) == {0: 1, 1: 2}
    assert parse_masks("--tee", "1:3", 2) == {1: 3}
    for bad in ("4", "", "x", "0:9", "2:1", "0:1,0:2", "0:1,"):
        with pytest.raises(ValueError, match="--tee"):
            parse_masks("--tee", bad, 2)


def test_other_options_are_understood_and_refused() -> None:
    assert parse_processes("auto", 6) == parse_processes("cpu", 6) == parse_processes("6", 1) == 6
    assert parse_ranks("--local-ranks-filter", "", 2) is None
    assert parse_ranks("--local-ranks-filter", "0, 1", 2) == frozenset({0, 1})
    assert parse_filters("a,b c,,d,, e,") == ("a", "b c,d, e")
    assert parse_filters("") == ()
    assert parse_pairs("--rdzv-conf", "a=1, b=x=y") == {"a": "1", "b": "x=y"}
    for bad in ("a", "a=", "=1", "a=1,a=2"):
        with pytest.raises(ValueError, match="--rdzv-conf"):
            parse_pairs("--rdzv-conf", bad)
    for bad in ("gpus", "0", "-1", "1.5"):
        with pytest.raises(ValueError, match="--nproc-per-node"):
            parse_processes(bad, 2)
    with pytest.raises(ValueError, match="is not a local rank"):
        parse_ranks("--local-ranks-filter", "2", 2)


def failure(number: int, rank: int, **more: object) -> WorkerFailure:
    fields: dict[str, object] = {"code": 1, **more}
    return WorkerFailure(
        number,
        0,
        rank,
        rank,
        "default",
        f"agent-{rank}",
        f"host-{rank}",
        1000 + rank,
        **fields,  # type: ignore[arg-type]
    )


def test_the_report_begins_with_what_was_seen_first_whatever_its_rank() -> None:
    failures = [
        failure(3, 0, code=None, signal=6),
        failure(2, 5, traceback="Traceback\nValueError: the cause"),
        failure(4, 1),
    ]
    for order in itertools.permutations(failures):
        text = report("job", order, "no restart is left")
        cause, second = (
            text.index("root cause: rank 5"),
            text.index("failure 2 (seen later): rank 0"),
        )
        assert cause < text.index("ValueError: the cause") < second < text.index("rank 1")
    assert "host-5, pid 1005: exit code 1" in text
    assert "killed by SIGABRT" in text


def test_an_error_file_is_written_where_the_source_or_the_text_of_the_error_cannot_be_had(
    tmp_path: Path,
) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise KeyError

    file = tmp_path / "error.json"
    with pytest.raises(ZeroDivisionError) as caught:
        generated(SourceLoader(without_entry))["divide"](0)
    said = "ZeroDivisionError: division by zero"
    for error, text in [(caught.value, said), (SilentError(), "SilentError")]:
        write_error(error, str(file))
        assert read_error_file(file.read_text())[0] == text


class EndingError(Exception):
    """Raises an exception of this class wherever it is described."""

    raises: type[BaseException] = SystemExit

    def __str__(self) -> str:
        raise self.raises(0)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__traceback__", "with_traceback"):
            raise type(self).raises(0)
        return super().__getattribute__(name)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exception_that_ends_the_process_where_it_is_described_is_written_and_raised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv(ERROR_FILE, str(file))
    monkeypatch.setattr(EndingError, "raises", raised)
    error = EndingError("x")

    @record
    def fail() -> None:
        raise error

    with pytest.raises(EndingError) as caught:
        fail()
    assert caught.value is error
    message, traceback = read_error_file(file.read_text())
    assert message == "EndingError"
    assert "in fail" in traceback


def test_the_end_of_a_long_text_is_written(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    write_error(ValueError("\N{GRINNING FACE}" * 1_000_000 + "the end"), str(file))
    assert file.stat().st_size < 1024 * 1024
    message, traceback = read_error_file(file.read_text())
    assert message.startswith("[... ")
    assert message.endswith("the end")
    assert traceback.rstrip().endswith("the end")


def test_error_files_are_read_as_torch_writes_them_and_as_anybody_else_does() -> None:
    torch = {
        "message": {"message": "E: x", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}}
    }
    assert read_error_file(json.dumps(torch)) == ("E: x", "Traceback")
    assert read_error_file('{"message": "just this"}') == ("just this", "")
    assert read_error_file("not JSON at all") == ("not JSON at all", "")
    assert read_error_file('{"message": {"extraInfo": 7}}') == ("", "")
    assert read_error_file("[1]") == ("[1]", "")
    assert read_error_file("[" * 10_000)[0].endswith("[[[")
    assert decode_failure(b"[" * 100_000) is None
    long, _ = read_error_file("x" * 100_000 + "the end")
    assert long.endswith("the end")
    assert len(long) < 40_000


def test_what_is_no_readable_error_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    assert error_of(file) == ("", "", "")
    os.mkfifo(file)
    assert error_of(file) == ("its error file was not read: it is no regular file", "", "")
    file.unlink()
    file.mkdir()
    assert error_of(file) == ("its error file was not read: it is no regular file", "", "")
    file.rmdir()
    file.symlink_to("/dev/zero")
    assert error_of(file) == ("its error file was not read: it is a symbolic link", "", "")
    file.unlink()
    file.write_text("x" * (MAX_ERROR_BYTES - 1) + "y")
    message, traceback, path = error_of(file)
    assert (message[-2:], traceback, path) == ("xy", "", str(file))
    file.write_text("x" * (MAX_ERROR_BYTES + 1))
    text = "its error file was not read: it has 1,048,577 bytes"
    assert error_of(file) == (text, "", str(file))


def test_a_report_has_no_characters_that_control_a_terminal() -> None:
    escaped = WorkerFailure(
        1,
        0,
        0,
        0,
        "a\x1b",
        "b",
        "c\x9b",
        7,
        code=1,
        traceback="T\n\tline\x1b[2J\x07\n",
        error_file="d\r",
    )
    said = report(
        "job", [escaped, attrs.evolve(escaped, number=2, traceback="", message="\x1b]0;x")], "e\x1b"
    )
    assert all(line.isprintable() for line in said.split("\n"))
    assert "T\n        line\\x1b[2J\\x07\n" in said


def test_a_failure_survives_the_store_and_garbage_there_is_left_out() -> None:
    one = failure(1, 2, signal=None, why="stuck")
    assert decode_failure(encode_failure(one)) == one
    assert [decode_failure(garbage) for garbage in (b"", b"7", b"{}", b"[]")] == [None] * 4


def test_the_address_of_rank_0_is_one_that_other_machines_reach() -> None:
    outward = own_address("/a/directory")
    for endpoint in (
        "127.0.0.1:7400",
        "localhost:7400",
        "[::1]:7400",
        "etcd://user:word@127.0.0.1:2379/prefix",
        "nonsense",
        "",
    ):
        assert own_address(endpoint) == outward
    assert own_address(f"{outward}:7400") == outward
    if outward == "127.0.0.1":
        pytest.skip("this machine has no other address than its loopback's")
    assert not ipaddress.ip_address(outward).is_loopback
