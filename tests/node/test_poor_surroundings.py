"""A process that lacks what a node needs of its machine: one error that says what, and how to get
it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from actors.errors import ListenError
from runtime import open_node
from runtime.announcements import open_clusters
from runtime.environment import LEAST_DESCRIPTORS, SystemEnvironment
from runtime.membership.cluster_secret import shared_secret_path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys, trio
from runtime import open_local_cluster

async def main():
    async with open_local_cluster(2) as cluster:
        print(len(cluster.node.members()))

if __name__ == "__main__":
    try:
        trio.run(main)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
"""


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (place / "program.py").write_text(PROGRAM)
    return subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(place)},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.cluster
def test_too_few_file_descriptors_are_said_before_they_are_missing(tmp_path: Path) -> None:
    def limited(count: int, command: str) -> subprocess.CompletedProcess[str]:
        return run(tmp_path, "/bin/sh", "-c", f"ulimit -n {count}; exec {sys.executable} {command}")

    least = LEAST_DESCRIPTORS
    done = limited(least, "program.py")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    done = limited(least - 1, "program.py")
    assert done.stderr.startswith(f"OSError: open_local_cluster needs {least} file descriptors")
    for count in (least - 1, 10):
        done = limited(count, "-m runtime.command_line node --listen 127.0.0.1:0")
        assert done.returncode == 1
        assert done.stderr == (
            f"error: open_node needs {least} file descriptors, and this process may have {count}: "
            "raise the limit (`ulimit -n 1024`, or LimitNOFILE= of systemd)\n"
        )


@pytest.mark.cluster
def test_a_machine_without_a_loopback_interface_is_told_from_one_without_nodes(
    tmp_path: Path,
) -> None:
    if shutil.which("unshare") is None or run(tmp_path, "unshare", "-n", "true").returncode != 0:
        pytest.skip("this user may not make network namespaces")
    done = run(tmp_path, "unshare", "-n", sys.executable, "program.py")
    assert "no loopback interface that is up: `ip link set lo up`" in done.stderr
    # One error for all of its nodes.
    assert done.stderr.splitlines()[-1].startswith("JoinError: node worker-"), done.stderr


def test_a_relative_state_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    usual = Path("/home/user/.local/state/understudy/secret")
    for value in ("", "state", "./state", "~/state"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert shared_secret_path() == usual
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert shared_secret_path() == Path("/var/state/understudy/secret")


async def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for variable in ("XDG_STATE_HOME", "UNDERSTUDY_SECRET"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ListenError, match="has no home directory: set HOME or XDG_STATE_HOME"):
        async with open_node():
            pytest.fail("opened")
    assert open_clusters(SystemEnvironment()) == []
    # What needs none works.
    async with open_node(secret="given"):
        pass
