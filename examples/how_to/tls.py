"""Make certificates, and let only nodes join that have one of them."""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import trio

from actors.errors import EncryptionError
from runtime import Tls, open_node


def tls(*words: str) -> None:
    """Run `understudy tls ...`."""
    command = [sys.executable, "-m", "understudy", "tls", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def certificate(pki: Path, name: str) -> Tls:
    if not (pki / "ca.pem").exists():
        tls("ca", "--dir", str(pki))
    tls("cert", "--dir", str(pki), "--name", name)
    return Tls(ca=pki / "ca.pem", certificate=pki / f"{name}.pem", key=pki / f"{name}-key.pem")


async def main(first: Tls, second: Tls, stranger: Tls) -> None:
    async with open_node("first", tls=first) as founder:
        async with open_node("second", join=founder.address, tls=second) as node:
            print([member.name for member in node.members()])
        try:
            async with open_node("second", join=founder.address, tls=stranger):
                print("joined")
        except EncryptionError as error:
            print("refused:", type(error).__name__)


if __name__ == "__main__":
    # The node that refuses the stranger says why in its log.
    logging.getLogger("understudy").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as place:
        ours, other = Path(place, "ours"), Path(place, "other")
        given = certificate(ours, "first"), certificate(ours, "second")
        trio.run(main, *given, certificate(other, "second"))
