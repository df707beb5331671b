"""Directories that jobs of long ago have left beside that of a job: who comes removes them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from runtime.rendezvous.file_format import MAGIC

DAY = 86400.0


def remove_leftovers(own: Path, retention: float, token: str) -> list[str]:
    """Remove the directories beside `own` in which nobody has written for a day, or for `retention` seconds if that is longer; their names.

    Agents of a job that goes on write every few seconds. Ages are by the clock of the file system alone. What is no directory of ours
    stays, and so does what cannot be removed: it is somebody else's. Blocks.
    """
    probe = own / f"new.{token}"
    removed: list[str] = []
    try:
        probe.write_bytes(b"")
        oldest = probe.stat().st_mtime - max(retention, DAY)
        for directory in own.parent.iterdir():
            if directory != own and _is_left(directory, oldest):
                # In one step, so that whoever begins there now begins anew.
                aside = own.parent / f".removed-{token}-{len(removed)}"
                directory.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
                removed.append(directory.name)
    except OSError:
        # Not ours to tidy up.
        pass
    finally:
        probe.unlink(missing_ok=True)
    return removed


def _is_left(directory: Path, oldest: float) -> bool:
    """Whether it is a store of ours, all of it, and all of it is that old."""
    try:
        if not directory.is_dir() or directory.stat().st_mtime > oldest:
            return False
        with os.scandir(directory) as found:
            entries = list(found)
        states = [entry for entry in entries if entry.name.startswith("state.")]
        if not states or any(not entry.name.startswith(("state.", "lease.", "new.")) or entry.is_dir() for entry in entries):
            return False
        if any(entry.stat().st_mtime > oldest for entry in entries):
            return False
        return all(_begins_with_magic(Path(entry.path)) for entry in states)
    except OSError:
        return False


def _begins_with_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
