"""What another user of the machine may have put where this user's files and sockets are."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import trio

from actors.errors import ListenError
from runtime.announcements import Announcement, announced, open_clusters
from runtime.command_line.files import written_whole
from runtime.environment import SystemEnvironment
from runtime.isolation.stack_thread import ask_for_stacks
from runtime.membership.cluster_secret import find_secret, shared_secret_path


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("UNDERSTUDY_SECRET", raising=False)


def shared() -> bytes:
    return find_secret(None, SystemEnvironment().token, needs_own=False).secrets()[0]


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `path` belong to another user than the one that runs this."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)


def test_the_shared_secret_is_for_its_owner_alone() -> None:
    secret = shared()
    assert len(secret) >= 32
    assert shared_secret_path().stat().st_mode & 0o777 == 0o600
    assert shared_secret_path().parent.stat().st_mode & 0o777 == 0o700
    assert shared() == secret


@pytest.mark.parametrize(("mode", "folder"), [(0o644, False), (0o602, False), (0o777, True)])
def test_a_shared_secret_that_all_users_can_use_is_refused(mode: int, folder: bool) -> None:
    shared()
    path = shared_secret_path().parent if folder else shared_secret_path()
    path.chmod(mode)
    with pytest.raises(ListenError, match=f"chmod go= {path}\n"):
        shared()
    path.chmod(0o700 if folder else 0o600)
    shared()


@pytest.mark.parametrize("of_another", [False, True])
def test_no_shared_secret_is_written_into_a_folder_of_others(
    of_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_secret_path().parent
    folder.mkdir(parents=True)
    if of_another:
        give_away(folder, monkeypatch)
    else:
        folder.chmod(0o777)
    # They could have put a link in the place of the file, which leads to one of this user's.
    with pytest.raises(ListenError, match=r"another user|chmod go="):
        shared()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("folder", [False, True])
def test_a_shared_secret_of_another_user_is_refused(
    folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared()
    path = shared_secret_path().parent if folder else shared_secret_path()
    give_away(path, monkeypatch)
    with pytest.raises(ListenError, match="belongs to another user"):
        shared()


def test_a_cluster_that_another_user_has_announced_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = SystemEnvironment()
    found = Announcement("127.0.0.1:1", "understudy", b"secret", environment.process())
    with announced(found, environment):
        assert open_clusters(environment) == [found]
        (path,) = (shared_secret_path().parent / "open").glob("*.json")
        assert path.stat().st_mode & 0o777 == 0o600
        give_away(path, monkeypatch)
        assert open_clusters(environment) == []


async def test_a_socket_name_that_another_user_has_taken_gets_no_secret_and_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = f"process-{os.getpid()}-of-a-test"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"\0understudy-stacks-{taken}")
        listening.listen()
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
        with trio.fail_after(60), pytest.raises(PermissionError, match="another user"):
            await ask_for_stacks(taken)
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(100) == b""


def test_a_link_in_a_folder_of_all_users_leads_no_written_file_elsewhere(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / f".out.json.{os.getpid()}").symlink_to(mine)
    with written_whole(tmp_path / "out.json") as file:
        file.write("new")
    assert mine.read_text() == "mine"
    assert (tmp_path / "out.json").read_text() == "new"
