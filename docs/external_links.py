"""`make links`: ask each external address that the pages name, and say what was not asked, and why.

Sphinx reports an address whose host has no name here as broken. Where no host of all is found, this
machine has no network: then the addresses are listed as skipped, and nothing is said of them. Ends
with 1 if an address is broken, and with 3 if all were skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NO_NETWORK = ("Failed to resolve", "Temporary failure in name resolution", "Network is unreachable")
"""What requests say where there is no network, or no such host."""

NOTHING_ASKED = 3


def main(docs: Path, output: Path) -> int:
    """Run Sphinx's check, print its findings by kind, and return the exit code."""
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "linkcheck", docs, output],
        stderr=subprocess.DEVNULL,
        check=False,
    )
    lines = (output / "output.json").read_text().splitlines()
    found = [link for link in map(json.loads, lines) if link["uri"].startswith("http")]
    text, code = summary(found)
    sys.stdout.write(f"{text}\n")
    return code


def summary(found: list[dict[str, str]]) -> tuple[str, int]:
    """What to print of the addresses that Sphinx has looked at, and the exit code."""
    broken = [link for link in found if link["status"] in ("broken", "timeout")]
    unresolved = [link for link in broken if any(text in link["info"] for text in NO_NETWORK)]
    ignored = [link for link in found if link["status"] in ("ignored", "unchecked")]
    answered = len(found) - len(broken) - len(ignored)
    skipped = [] if answered else unresolved
    lines = [f"broken: {_where(link)}: {link['info']}" for link in broken if link not in skipped]
    lines += [f"skipped: {_where(link)}: no network on this machine" for link in skipped]
    lines += [f"skipped: {_where(link)}: left out by the configuration" for link in ignored]
    lines.append(
        f"{answered} addresses answer, {len(broken) - len(skipped)} are broken, "
        f"{len(skipped) + len(ignored)} were skipped"
    )
    if len(broken) > len(skipped):
        return "\n".join(lines), 1
    return "\n".join(lines), NOTHING_ASKED if skipped else 0


def _where(link: dict[str, str]) -> str:
    return f"{link['uri']} ({link['filename']}:{link['lineno']})"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
