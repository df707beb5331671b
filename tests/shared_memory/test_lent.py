"""Reading the memory of other processes: what is shared, what is refused, and what is left when
a process is killed.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from runtime.environment import SystemEnvironment
from runtime.shared_memory.mappings import MappedArenas, NotLendableError
from runtime.shared_memory.pool import (
    HEADER_SIZE,
    KEY_SIZE,
    Arena,
    MemoryPool,
    SharedMemoryLocation,
)
from tests.shared_memory.owners import Owner, open_owner, read_elsewhere

MEBIBYTE = 1024 * 1024


class Hold:
    """A guard."""


@pytest.fixture
def owner() -> Iterator[Owner]:
    with open_owner() as owner:
        yield owner


def mapped() -> int:
    """Arenas of anybody that this process has mapped, for garbage too little."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:understudy")


@pytest.mark.parametrize("size", [0, 1, 5000, 20 * MEBIBYTE])
def test_the_bytes_of_another_process_are_read_where_they_lie(owner: Owner, size: int) -> None:
    view = MappedArenas().lend(owner.keep(size, 7), None)
    assert view == b"\7" * size
    owner.say("fill", 0, 8)
    assert view == b"\x08" * size


def test_a_guard_lives_as_long_as_a_view_or_anything_made_from_it(owner: Owner) -> None:
    others = MappedArenas()
    hold = Hold()
    gone = weakref.ref(hold)
    view: memoryview | None = others.lend(owner.keep(5000, 1), hold)
    del hold
    assert view is not None
    part: object = memoryview(view[10:2000].cast("H"))
    view = None
    gc.collect()
    assert gone() is not None
    ring = [part]
    ring.append(ring)
    part = None
    del ring
    gc.collect()
    assert gone() is None


def test_an_array_keeps_the_guard_and_cannot_be_made_writable(owner: Owner) -> None:
    numpy = pytest.importorskip("numpy")
    hold = Hold()
    gone = weakref.ref(hold)
    array = numpy.frombuffer(MappedArenas().lend(owner.keep(8000, 0), hold), dtype="float64")[
        5:
    ].reshape(5, -1)
    del hold
    gc.collect()
    assert gone() is not None
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0
    assert array.sum() == 0.0
    del array
    assert gone() is None


def test_who_writes_all_the_same_is_ended_and_changes_nothing(owner: Owner) -> None:
    place = owner.keep(5000, 7)
    done = read_elsewhere(
        place, f"print(found[1], flush=True)\nfound.obj[{place.offset}] = 9\nprint('written')"
    )
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "7\n")
    assert MappedArenas().lend(place, None) == b"\7" * 5000


def test_a_reader_still_reads_what_it_has_mapped_after_the_owner_was_killed(owner: Owner) -> None:
    others = MappedArenas()
    place, other_place = owner.keep(20 * MEBIBYTE, 7), owner.keep(5000, 8)
    view = others.lend(place, None)
    owner.kill()
    assert view == b"\7" * (20 * MEBIBYTE)
    with pytest.raises(NotLendableError, match="cannot be read"):
        others.lend(other_place, None)


def test_nothing_is_left_of_an_owner_that_was_killed_but_what_others_have_views_of(
    owner: Owner,
) -> None:
    before = mapped()
    others = MappedArenas()
    view: memoryview | None = others.lend(owner.keep(5000, 7), None)
    assert mapped() == before + 1
    opened = [os.readlink(entry) for entry in Path(f"/proc/{owner.pid}/fd").iterdir()]
    assert any("memfd" in name for name in opened)
    assert not any(name.startswith("/dev/shm") for name in opened), "a file would outlive its owner"
    owner.kill()
    others.forget(owner.pid)
    assert view == b"\7" * 5000
    assert mapped() == before + 1
    view = None
    assert mapped() == before


def test_a_reader_that_is_killed_disturbs_nobody(owner: Owner) -> None:
    place = owner.keep(5000, 7)
    done = read_elsewhere(place, "import os; os.kill(os.getpid(), 9)")
    assert done.returncode == -signal.SIGKILL
    owner.say("fill", 0, 9)
    assert MappedArenas().lend(place, None) == b"\x09" * 5000


def test_memory_that_is_used_again_is_read_through_the_same_mapping(owner: Owner) -> None:
    others = MappedArenas()
    place = owner.keep(MEBIBYTE, 1)
    assert others.lend(place, None)[-1] == 1
    count = mapped()
    for byte in range(2, 10):
        owner.say("drop", 0)
        again = owner.keep(MEBIBYTE, byte)
        assert again == place
        assert others.lend(again, None) == bytes([byte]) * MEBIBYTE
    assert mapped() == count


def test_what_an_owner_gives_back_to_the_kernel_is_free_although_others_have_it_mapped() -> None:
    with open_owner(0) as owner:
        others = MappedArenas()
        place = owner.keep(4 * MEBIBYTE, 7)
        owner.keep(4 * MEBIBYTE, 8)
        view = others.lend(place, None)
        before = owner.say("resident", place.descriptor)
        owner.say("drop", 0)
        assert owner.say("resident", place.descriptor) == before - 4 * MEBIBYTE
        # Whoever has no hold reads whatever is there, but reads.
        assert view == bytes(4 * MEBIBYTE)


def test_what_was_lent_stays_readable_when_the_owner_closes_its_pool(owner: Owner) -> None:
    others = MappedArenas()
    place = owner.keep(5000, 7)
    view = others.lend(place, None)
    owner.say("close")
    assert view == b"\7" * 5000
    with pytest.raises(NotLendableError):
        MappedArenas().lend(place, None)


def test_so_many_arenas_stay_mapped_and_those_with_views(owner: Owner) -> None:
    others = MappedArenas(mappings=2)
    before = mapped()
    places = [owner.keep(5000 * 2**number, number) for number in range(6)]
    views = [others.lend(place, None) for place in places]
    assert mapped() == before + 6
    assert others.lend(places[0], None) == bytes(5000)
    assert mapped() == before + 6
    assert [view[0] for view in views] == [0, 1, 2, 3, 4, 5]
    views.clear()
    assert mapped() == before + 2
    others.close()
    assert mapped() == before
    assert others.lend(places[3], None)[0] == 3


def test_another_key_is_refused(owner: Owner) -> None:
    place = owner.keep(5000, 7)
    for key in (bytes(KEY_SIZE), b"", place.key[:-1], place.key + b"\0"):
        with pytest.raises(NotLendableError, match="reused"):
            MappedArenas().lend(attrs.evolve(place, key=key), None)


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, 16),
        (HEADER_SIZE - 1, 1),
        (-4096, 10),
        (HEADER_SIZE, -1),
        (HEADER_SIZE, 2**40),
        (2**60, 1),
    ],
)
def test_what_is_not_in_the_arena_is_refused(owner: Owner, offset: int, size: int) -> None:
    others = MappedArenas()
    place = owner.keep(5000, 7)
    with pytest.raises(NotLendableError, match="not within"):
        others.lend(attrs.evolve(place, offset=offset, size=size), None)
    assert others.lend(place, None)[0] == 7


def test_a_descriptor_that_is_something_else_by_now_is_refused(tmp_path: Path) -> None:
    others = MappedArenas()
    pipe = os.pipe()
    connected = socket.socketpair()
    directory = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "short").write_bytes(b"x")
    short = os.open(tmp_path / "short", os.O_RDONLY)
    terminal = os.open("/dev/null", os.O_RDONLY)
    key = b"k" * KEY_SIZE
    try:
        for descriptor in (
            *pipe,
            *(end.fileno() for end in connected),
            directory,
            short,
            terminal,
            99_999,
            -1,
            2**70,
        ):
            with pytest.raises(NotLendableError):
                others.lend(
                    SharedMemoryLocation(os.getpid(), descriptor, key, HEADER_SIZE, 1), None
                )
        for process in (0, -1, 2**22 + 1, 2**70):
            with pytest.raises(NotLendableError):
                others.lend(SharedMemoryLocation(process, pipe[0], key, HEADER_SIZE, 1), None)
    finally:
        for descriptor in (*pipe, directory, short, terminal):
            os.close(descriptor)
        for end in connected:
            end.close()


@pytest.mark.parametrize("kind", ["memory", "a file"])
def test_what_could_become_shorter_is_not_mapped(kind: str, tmp_path: Path) -> None:
    key = b"k" * KEY_SIZE
    descriptor = (
        os.memfd_create("not-sealed")
        if kind == "memory"
        else os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    )
    try:
        os.pwrite(descriptor, key + bytes(8192), 0)
        with pytest.raises(NotLendableError, match="shorter"):
            MappedArenas().lend(
                SharedMemoryLocation(os.getpid(), descriptor, key, HEADER_SIZE, 1), None
            )
    finally:
        os.close(descriptor)


def test_nobody_can_make_an_arena_shorter() -> None:
    arena = Arena(b"k" * KEY_SIZE, 4096, 2)
    for length in (0, 4096, 2**20):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, length)


def test_no_descriptor_of_a_reader_is_left_open(owner: Owner) -> None:
    others = MappedArenas()
    place = owner.keep(5000, 7)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    view = others.lend(place, None)
    for _ in range(20):
        with pytest.raises(NotLendableError):
            others.lend(attrs.evolve(place, key=bytes(KEY_SIZE)), None)
    others.close()
    del view
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_kernel_that_maps_no_more_is_an_error_and_not_the_end(owner: Owner) -> None:
    place = owner.keep(5000, 7)
    done = read_elsewhere(
        place,
        "import resource, runtime.shared_memory.mappings\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20))\n"
        f"try: MappedArenas().lend({place!r}, None)\n"
        "except NotLendableError as error: print('refused', error)",
    )
    assert done.stdout.startswith("refused"), done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(owner: Owner) -> None:
    place = owner.keep(5000, 7)
    done = read_elsewhere(
        place,
        "import os; os.setuid(65534)\n"
        f"try: MappedArenas().lend({place!r}, None)\n"
        "except NotLendableError as error: print('refused', error)",
    )
    assert done.stdout.startswith("refused"), done
    assert "Permission denied" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace of processes")
def test_who_cannot_see_the_process_is_refused(owner: Owner) -> None:
    done = read_elsewhere(
        owner.keep(5000, 7),
        "print(type(found).__name__)",
        before=["unshare", "--pid", "--fork", "--mount-proc"],
    )
    if done.returncode:
        pytest.skip(f"no namespaces here: {done.stderr}")
    assert done.stdout == "NotLendableError\n"


def test_a_process_reads_its_own_memory_as_that_of_any_other() -> None:
    pool = MemoryPool(SystemEnvironment(), MEBIBYTE)
    block = pool.take(100)
    assert block is not None
    block.memory[:] = b"x" * 100
    view = MappedArenas().lend(block.place, block)
    del block
    assert pool.taken == 4096
    assert view == b"x" * 100
    del view
    assert pool.taken == 0
