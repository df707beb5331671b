"""The back-end as torch's own code meets it: its registry, its stores, its process groups, its
errors.
"""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: `make torch` runs these tests where it is"
)

from torch import distributed  # noqa: E402
from torch.distributed.elastic import rendezvous as torchs  # noqa: E402
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler  # noqa: E402
from torch.distributed.elastic.utils import store as store_util  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.cluster]

QUICK = {
    "timeout": 900,
    "last_call_timeout": "0.3",
    "keep_alive_interval": "0.5",
    "join_timeout": "20",
}
LIMIT = 30.0


class Handlers:
    """Handlers of one job over a directory."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: list[Any] = []

    def make(self, least: int = 1, most: int = 2, **options: str) -> Any:
        """As torchrun makes it."""
        parameters = torchs.RendezvousParameters(
            "understudy", str(self._place), "job", least, most, "127.0.0.1", **{**QUICK, **options}
        )
        self._made.append(get_rendezvous_handler(parameters))
        return self._made[-1]

    def drop(self, handler: Any) -> None:
        """Keep that one no longer."""
        self._made.remove(handler)

    def end(self) -> None:
        """All of them."""
        for handler in self._made:
            handler.shutdown()


@pytest.fixture
def handlers(tmp_path: Path) -> Iterator[Handlers]:
    opened = Handlers(tmp_path)
    yield opened
    opened.end()


@pytest.fixture
def store(handlers: Handlers) -> Any:
    return handlers.make(1, 1).next_rendezvous().store


@pytest.fixture(params=["ours", "torch's own"])
def any_store(request: pytest.FixtureRequest) -> Any:
    """Ours, and the one that it is measured by."""
    if request.param == "ours":
        return request.getfixturevalue("store")
    return distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def together(handlers: list[Any]) -> list[Any]:
    """The next round of each."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        return [
            joined.result(LIMIT)
            for joined in [pool.submit(handler.next_rendezvous) for handler in handlers]
        ]


def test_torch_finds_it_by_its_name(handlers: Handlers) -> None:
    handler = handlers.make()
    assert isinstance(handler, torchs.RendezvousHandler)
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == (
        "understudy",
        "job",
        True,
    )
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown(), "it was never used"


def test_two_agents_meet_and_their_workers_find_a_store_of_torchs(handlers: Handlers) -> None:
    infos = sorted(together([handlers.make(2), handlers.make(2)]), key=lambda info: info.rank)
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    where = {
        (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port)
        for info in infos
    }
    ((address, port),) = where
    worker = distributed.TCPStore(address, port, is_master=False)
    worker.set("key", "value")
    assert worker.get("key") == b"value"
    infos[0].store.set("of the agents", "value")
    assert infos[1].store.get("of the agents") == b"value"


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "set, get": lambda store: (store.set("k", "text"), store.get("k")),
    "set twice": lambda store: (store.set("k", "1"), store.set("k", "2"), store.get("k")),
    "add": lambda store: (store.add("n", 2), store.add("n", 3), store.add("n", 0), store.get("n")),
    "compare_set on nothing": lambda store: (store.compare_set("k", "", "new"), store.get("k")),
    "compare_set on nothing, expecting": lambda store: (
        store.compare_set("k", "old", "new"),
        store.check(["k"]),
    ),
    "compare_set that holds": lambda store: (
        store.set("k", "old"),
        store.compare_set("k", "old", "new"),
        store.get("k"),
    ),
    "compare_set that does not": lambda store: (
        store.set("k", "other"),
        store.compare_set("k", "old", "new"),
        store.get("k"),
    ),
    "compare_set on what is there, expecting nothing": lambda store: (
        store.set("k", "x"),
        store.compare_set("k", "", "new"),
        store.get("k"),
    ),
    "check": lambda store: (store.set("a", "1"), store.check(["a"]), store.check(["a", "b"])),
    "append": lambda store: (store.append("k", "one, "), store.append("k", "two"), store.get("k")),
    "multi": lambda store: (store.multi_set(["a", "b"], ["1", "2"]), store.multi_get(["b", "a"])),
    "wait for what is there": lambda store: (
        store.set("a", "1"),
        store.wait(["a"]),
        store.wait(["a"], timedelta(seconds=1)),
    ),
    "delete_key": lambda store: (
        store.set("a", "1"),
        store.delete_key("a"),
        store.delete_key("a"),
        store.check(["a"]),
    ),
    "queues": lambda store: (
        store.queue_push("q", "1"),
        store.queue_push("q", "2"),
        store.queue_len("q"),
        store.queue_pop("q"),
        store.queue_pop("q", False),
        store.queue_len("q"),
    ),
    "timeout": lambda store: (store.set_timeout(timedelta(seconds=7)), store.timeout),
    "barrier of one": lambda store: store.barrier("b", 1),
    "a prefix": lambda store: (
        distributed.PrefixStore("p", store).set("k", "v"),
        store.get("p/k"),
        store.check(["k"]),
    ),
    "counters behind a prefix": lambda store: (
        distributed.PrefixStore("p", store).add("n", 4),
        store.get("p/n"),
    ),
}

EXPECTED = {
    "set, get": "(None, b'text')",
    "compare_set on nothing": "(b'new', b'new')",
    "compare_set on nothing, expecting": "(b'old', False)",
    "queues": "(None, None, 2, b'1', b'2', 0)",
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_does_what_it_does_in_torchs_own_store(store: Any, name: str) -> None:
    own = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = repr(OPERATIONS[name](store))
    assert found == repr(OPERATIONS[name](own))
    assert found == EXPECTED.get(name, found)


def test_what_does_not_come_in_time_is_torchs_error(any_store: Any) -> None:
    with pytest.raises(distributed.DistStoreError):
        any_store.wait(["never"], timedelta(milliseconds=50))
    any_store.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(distributed.DistStoreError):
        any_store.get("never")


def test_an_empty_queue_is_torchs_error_unless_it_is_waited_for(any_store: Any) -> None:
    with pytest.raises(distributed.QueueEmptyError):
        any_store.queue_pop("q", False)


def test_process_groups_and_the_helpers_of_agents_work_over_it(handlers: Handlers) -> None:
    infos = together([handlers.make(2), handlers.make(2)])

    def part(info: Any) -> tuple[list[float], list[bytes]]:
        store = distributed.PrefixStore("group", info.store)
        group = distributed.ProcessGroupGloo(
            store, info.rank, info.world_size, timedelta(seconds=LIMIT)
        )
        values = torch.tensor([float(info.rank + 1)])
        group.allreduce([values]).wait()
        told = store_util.synchronize(
            info.store, b"%d" % info.rank, info.rank, info.world_size, "told/", LIMIT
        )
        store_util.barrier(info.store, info.world_size, "end", LIMIT)
        return values.tolist(), told

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(part, infos)) == [([3.0], [b"0", b"1"])] * 2


def test_an_agent_that_is_dropped_leaves_and_the_other_is_notified(
    handlers: Handlers, tmp_path: Path
) -> None:
    first = handlers.make()
    second = handlers.make()
    together([first, second])
    # As at the end of a process that is asked to end: nothing is shut down.
    handlers.drop(second)
    del second
    gc.collect()
    told = threading.Event()
    while not first.num_nodes_waiting():
        told.wait(0.01)
    assert first.next_rendezvous().world_size == 1
    assert not first.is_closed()


def test_nothing_is_left_after_a_shutdown(handlers: Handlers) -> None:
    before = threading.active_count()
    handler = handlers.make(1, 1)
    info = handler.next_rendezvous()
    assert handler.shutdown()
    assert not any(thread.name == "understudy rendezvous" for thread in threading.enumerate())
    # Trio's own threads wait ten seconds for more work.
    assert threading.active_count() <= before + 2
    with pytest.raises(distributed.DistNetworkError):
        info.store.get("key")
    with pytest.raises(torchs.RendezvousConnectionError):
        handler.next_rendezvous()
    assert handler.shutdown() in (True, False), "it may be asked again"


def test_errors_have_torchs_names(handlers: Handlers) -> None:
    closing, late = handlers.make(1, 2), handlers.make(1, 2)
    closing.next_rendezvous()
    closing.set_closed()
    assert closing.is_closed()
    with pytest.raises(torchs.RendezvousClosedError, match="closed by an agent of torch"):
        late.next_rendezvous()
    with pytest.raises(
        torchs.RendezvousStateError, match="another job has this id, with 1 to 2 nodes"
    ):
        handlers.make(2, 5).next_rendezvous()


def test_too_few_agents_are_torchs_timeout(handlers: Handlers) -> None:
    with pytest.raises(
        torchs.RendezvousTimeoutError, match=r"1 of at least 2 agents have come within 0\.5 s"
    ):
        handlers.make(2, 2, join_timeout="0.5").next_rendezvous()


def test_an_endpoint_that_speaks_another_protocol_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        endpoint = "{}:{}".format(*other.getsockname())
        handler = get_rendezvous_handler(
            torchs.RendezvousParameters("understudy", endpoint, "job", 1, 1, None, **QUICK)
        )
        with pytest.raises(torchs.RendezvousConnectionError, match=endpoint):
            handler.next_rendezvous()
        thread.join(LIMIT)
        handler.shutdown()


@pytest.mark.parametrize(
    ("endpoint", "options", "said"),
    [
        ("", {}, "--rdzv-endpoint is missing"),
        ("host", {}, "HOST:PORT"),
        ("/tmp", {"last_call_timout": "3"}, "did you mean 'last_call_timeout'"),
        ("/tmp", {"is_host": "1"}, "has no option 'is_host'"),
        ("/tmp", {"keep_alive_interval": "soon"}, "is a number of seconds"),
    ],
)
def test_impossible_settings_are_errors_before_anything_begins(
    endpoint: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        get_rendezvous_handler(
            torchs.RendezvousParameters(
                "understudy", endpoint, "job", 1, 1, None, timeout=900, **options
            )
        )
