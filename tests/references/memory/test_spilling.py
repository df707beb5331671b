"""Values on disk: what comes back, what a full or broken disk does, and that nothing is left."""

from __future__ import annotations

import errno
import gc
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.environment import SystemEnvironment
from runtime.references.memory.spill import ALIGNMENT, Spill, Spilled
from tests.shared_memory.owners import ROOT

T = TypeVar("T")


async def written(spill: Spill, buffers: list[bytes]) -> Spilled:
    """Write to a disk that takes it."""
    found = await spill.write(buffers)
    assert isinstance(found, Spilled)
    return found


ENDLESS = """
import sys, trio
from pathlib import Path
from runtime.environment import SystemEnvironment
from runtime.references.memory.spill import Spill

async def main():
    spill, kept = Spill(SystemEnvironment(), Path(sys.argv[1])), []
    print("writing", flush=True)
    while True:
        kept[9:] = []
        kept.insert(0, await spill.write([b"x" * 1_000_000]))

trio.run(main)
"""


def open_files(directory: Path) -> int:
    """How many files of a directory this process has open, whether they have names or not."""
    gc.collect()
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(f"{directory}/") for link in links if link.is_symlink())


def names(directory: Path) -> list[str]:
    return os.listdir(directory)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.binary(max_size=300) | st.integers(0, 200_000).map(lambda size: b"ab" * (size // 2)),
        max_size=8,
    )
)
def test_a_value_comes_back_as_it_was(buffers: list[bytes]) -> None:
    async def there_and_back() -> None:
        spill = Spill(SystemEnvironment())
        spilled = await written(spill, buffers)
        assert spilled.size == spill.on_disk == sum(map(len, buffers))
        for _ in range(2):
            assert list(await spilled.read()) == buffers

    trio.run(there_and_back)


async def test_many_buffers_of_any_kind_come_back_aligned_and_read_only(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    spill = Spill(SystemEnvironment(), tmp_path)
    array = numpy.arange(1000.0)
    buffers: list[Any] = [
        b"odd",
        bytearray(b"x" * 7),
        array,
        memoryview(b"12345678").cast("d"),
        *(b"%d" % number for number in range(3000)),
    ]
    found = await (await written(spill, buffers)).read()
    assert [bytes(buffer) for buffer in buffers] == list(found)
    assert all(view.readonly for view in found)
    again = numpy.frombuffer(found[2], dtype="float64")
    assert (again == array).all()
    assert again.ctypes.data % ALIGNMENT == 0
    del found
    assert (again == array).all()


async def test_nothing_has_a_name_and_nothing_is_open_when_it_is_closed_or_garbage(
    tmp_path: Path,
) -> None:
    spill = Spill(SystemEnvironment(), tmp_path)
    first, second = await written(spill, [b"x" * 100]), await written(spill, [b"y" * 1000])
    assert (open_files(tmp_path), spill.on_disk) == (2, 1100)
    assert names(tmp_path) == []
    first.close()
    first.close()
    assert (open_files(tmp_path), spill.on_disk) == (1, 1000)
    with pytest.raises(trio.ClosedResourceError):
        await first.read()
    del second
    assert (open_files(tmp_path), spill.on_disk) == (0, 0)


async def test_a_read_that_has_begun_ends_although_the_value_is_closed(tmp_path: Path) -> None:
    class SlowThreads(SystemEnvironment):
        gate: trio.Event | None = None

        async def in_thread(
            self,
            function: Callable[[], T],
            limiter: trio.CapacityLimiter | None = None,
            *,
            abandon: bool = False,
        ) -> T:
            if self.gate is not None:
                await self.gate.wait()
            return await super().in_thread(function, limiter, abandon=abandon)

    environment = SlowThreads()
    spill = Spill(environment, tmp_path)
    spilled = await written(spill, [b"x" * 5000])
    environment.gate = trio.Event()
    found: list[tuple[memoryview, ...]] = []

    async def read() -> None:
        found.append(await spilled.read())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        spilled.close()
        # Whoever opens files now must not get the number of the one that is still to be read.
        others = [os.open("/dev/zero", os.O_RDONLY) for _ in range(20)]
        assert spill.on_disk == 5000
        environment.gate.set()
    for other in others:
        os.close(other)
    assert found == [(b"x" * 5000,)]
    assert spill.on_disk == 0


async def test_a_file_system_without_nameless_files_gets_one_whose_name_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.open

    def refuse(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return usual(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    spilled = await written(Spill(SystemEnvironment(), tmp_path), [b"abc", b"def"])
    assert await spilled.read() == (b"abc", b"def")
    assert names(tmp_path) == []


@pytest.mark.parametrize("most", [1, 63, 64, 65, 100])
async def test_a_disk_that_takes_and_gives_little_at_a_time_loses_nothing(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, read = os.pwritev, os.preadv
    monkeypatch.setattr(
        os, "pwritev", lambda file, buffers, position: write(file, [buffers[0][:most]], position)
    )
    monkeypatch.setattr(
        os, "preadv", lambda file, buffers, position: read(file, [buffers[0][:most]], position)
    )
    buffers = [bytes(range(200)), b"", b"x" * 64, b"y"]
    spilled = await written(Spill(SystemEnvironment(), tmp_path), buffers)
    assert list(await spilled.read()) == buffers


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
async def test_a_disk_that_is_full_is_an_error_and_keeps_nothing(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, calls = os.pwritev, list[int]()

    def fail(file: int, buffers: list[memoryview], position: int) -> int:
        calls.append(position)
        if len(calls) > 1:
            raise OSError(code, os.strerror(code))
        return usual(file, [buffers[0][:100]], position)

    spill = Spill(SystemEnvironment(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail)
        refused = await spill.write([b"x" * 1000])
    assert isinstance(refused, OSError)
    assert refused.errno == code
    # Its frames would have the value.
    assert refused.__traceback__ is None
    assert (open_files(tmp_path), spill.on_disk) == (0, 0)
    assert await (await written(spill, [b"x"])).read() == (b"x",)


async def test_the_kernel_itself_refuses_a_file_that_is_too_long(tmp_path: Path) -> None:
    script = (
        "import resource, sys, trio\nfrom pathlib import Path\nfrom runtime.environment import "
        "SystemEnvironment\n"
        "from runtime.references.memory.spill import "
        "Spill\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "spill = Spill(SystemEnvironment(), Path(sys.argv[1]))\n"
        "print(trio.run(spill.write, [b'x' * 200_000]).strerror, spill.on_disk)"
    )
    done = await trio.run_process(
        [sys.executable, "-c", script, str(tmp_path)], capture_stdout=True, cwd=ROOT
    )
    assert done.stdout == b"File too large 0\n"


@pytest.mark.parametrize("broken", ["error", "short"])
async def test_a_disk_that_cannot_be_read_is_an_error(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        if broken == "short":
            return 0
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    spilled = await written(Spill(SystemEnvironment(), tmp_path), [b"x" * 1000])
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(OSError, match=r"rror|ends after 0") as caught:
            await spilled.read()
    assert caught.value.errno == errno.EIO
    assert await spilled.read() == (b"x" * 1000,)


async def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert isinstance(
        await Spill(SystemEnvironment(), tmp_path / "none").write([b"x"]), FileNotFoundError
    )


def test_the_directory_is_the_one_for_what_is_temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert Spill(SystemEnvironment()).directory == tmp_path
    monkeypatch.delenv("TMPDIR")
    assert Spill(SystemEnvironment()).directory == Path("/var/tmp")


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.03])
def test_nothing_is_left_on_disk_by_a_process_that_was_killed(
    moment: float, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        # Not to wait for anything: the moment is arbitrary, this is how long it is put off.
        select.select([], [], [], moment)
        process.kill()
    assert names(tmp_path) == []
