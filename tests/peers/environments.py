"""Where each library is installed: an environment of its own, made at its first use."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS = 1_200
"""PyTorch and Ray are some hundred megabytes each."""
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Has PyTorch without CUDA, which is several gigabytes smaller."""


class NotInstalledError(Exception):
    """A library cannot be measured here. The text says why, and what would help."""


@attrs.frozen
class Peer:
    """A library: how its column is called, and what has to be installed for its script.

    `packages` are those of pip, with versions; without any, the script runs in this environment.
    """

    title: str
    script: str
    packages: Sequence[str] = ()
    index: str = ""
    variables: Mapping[str, str] = attrs.field(factory=dict)


PEERS = {
    "understudy": Peer("Understudy", "understudy_peer"),
    "erlang": Peer("Erlang/OTP", "erlang_peer"),
    "ray": Peer(
        "Ray", "ray_peer", ("ray==2.60.0", "numpy==2.4.6"), variables={"RAY_AUTH_MODE": "disabled"}
    ),
    "xoscar": Peer("xoscar", "xoscar_peer", ("xoscar==0.12.2", "numpy==2.4.6")),
    "dask": Peer("Dask", "dask_peer", ("distributed==2026.8.0", "numpy==2.4.6")),
    "torch": Peer("torch.rpc", "torch_peer", ("torch==2.13.0", "numpy==2.4.6"), TORCH_INDEX),
    "grpc": Peer("gRPC", "grpc_peer", ("grpcio==1.85.1",)),
    "multiprocessing": Peer("multiprocessing", "multiprocessing_peer"),
}

PROGRAMS = {name: PEERS[name] for name in ("dask", "ray")} | {
    "celery": Peer("Celery", "", ("celery==5.7.0",))
}
"""Those beside which the pairs of programs of the page "Coming from" run. PyTorch is several
gigabytes: its program runs where `make peers` has installed it.
"""


def main(folder: str) -> None:
    """Install what the pairs of programs need, and say what could not be."""
    for name, peer in PROGRAMS.items():
        try:
            _environment(name, peer, Path(folder))
        except NotInstalledError as error:
            print(f"{peer.title} is left out: {error}", flush=True)


def command(name: str, folder: Path) -> list[str]:
    """The command that runs a peer's script; installs what it needs below `folder` first.

    Raises `NotInstalledError` if that fails.
    """
    peer = PEERS[name]
    if name == "erlang":
        return _erlang(folder)
    if not peer.packages:
        return [sys.executable, "-m", f"tests.peers.{peer.script}"]
    return [str(_environment(name, peer, folder)), "-m", f"tests.peers.{peer.script}"]


def variables(name: str) -> dict[str, str]:
    """The environment variables of a peer's script."""
    return {**os.environ, **PEERS[name].variables, "PYTHONPATH": str(ROOT)}


def _environment(name: str, peer: Peer, folder: Path) -> Path:
    place = folder / name
    python = place / "bin" / "python"
    stamp = place / "installed"
    wanted = "\n".join(peer.packages)
    # The stamp is written last: an environment whose installation was cut off is made anew.
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(place, ignore_errors=True)
    print(f"installing {', '.join(peer.packages)} in {place}", flush=True)
    base = Path(sys.base_prefix) / "bin" / f"python{sysconfig.get_python_version()}"
    _run([str(base), "-m", "venv", str(place)], peer)
    index = ["--extra-index-url", peer.index] if peer.index else []
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *index, *peer.packages], peer)
    stamp.write_text(wanted)
    return python


def _erlang(folder: Path) -> list[str]:
    if shutil.which("erlc") is None or shutil.which("erl") is None:
        raise NotInstalledError("erl and erlc are not here; Debian's package is erlang-base")
    place = folder / "erlang"
    place.mkdir(parents=True, exist_ok=True)
    _run(["erlc", "-o", str(place), str(Path(__file__).with_name("erlang_peer.erl"))],
         PEERS["erlang"])  # fmt: skip
    # Two runs at once need names that differ, since they share the machine's port mapper.
    own = f"peers-{os.getpid()}"
    return ["erl", "-noshell", "-sname", own, "-pa", str(place), "-s", "erlang_peer", "main"]


def _run(words: Sequence[str], peer: Peer) -> None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"{words[0]} took longer than {INSTALL_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise NotInstalledError(f"{peer.title} could not be installed: {last}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="where the environments are made")
    main(parser.parse_args().folder)
