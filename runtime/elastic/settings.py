"""The settings of a job, parsed from the texts of torchrun's options; no I/O."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import attrs

from runtime.elastic.machine import Rules

OUT, ERR = 1, 2
"""The bits of a mask: standard output, standard error; 3 is both."""

Mode = Literal["script", "module", "command"]


@attrs.frozen
class ElasticSettings:
    """The settings of a job on this machine. Times are in seconds.

    `redirects` and `tee`: masks by local rank. `local_ranks`: workers whose output may go to the
    console, None for all. `filters`: by stream, texts; lines that contain one are also written to a
    common file. `signals`: those that end the agent. `membership_signal`: sent to workers at a
    change of the membership, 0 for none. `restart_window`: infinity for the whole job.
    `fence_seconds`: if the agent does not run for this long, its workers are killed, because others
    may soon take their places.
    """

    run_id: str
    command: tuple[str, ...]
    rules: Rules
    mode: Mode = "script"
    role: str = "default"
    max_restarts: int = 0
    restart_window: float = math.inf
    redirects: Mapping[int, int] = attrs.field(factory=dict)
    tee: Mapping[int, int] = attrs.field(factory=dict)
    local_ranks: frozenset[int] | None = None
    prefix_template: str = ""
    filters: Mapping[int, tuple[str, ...]] = attrs.field(factory=dict)
    log_dir: Path | None = None
    signals: tuple[int, ...] = ()
    shutdown_timeout: float = 30.0
    membership_signal: int = 0
    master_addr: str = ""
    master_port: int = 0
    health_port: int | None = None
    event_log: Path | None = None
    join_timeout: float = 600.0
    fence_seconds: float = math.inf

    @property
    def local_world_size(self) -> int:
        """How many workers this agent has."""
        return self.rules.local_world_size


def parse_nodes(text: str) -> tuple[int, int]:
    """Parse `--nnodes`: "2" or "1:3". Raises ValueError."""
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise ValueError(
            f"--nnodes takes a number of agents, such as 2, or MIN:MAX, such as 1:3; not {text!r}"
        )
    least, most = numbers[0], numbers[-1]
    if least < 1:
        raise ValueError(f"--nnodes {text}: a job needs at least 1 agent, not {least}")
    if least > most:
        raise ValueError(
            f"--nnodes {text}: MIN is {least}, above MAX, which is {most}; write {most}:{least}"
        )
    return least, most


def parse_processes(text: str, processors: int) -> int:
    """Parse `--nproc-per-node`: a number, or `auto` or `cpu` for the number of processors. Raises
    ValueError.
    """
    if text in ("auto", "cpu"):
        return processors
    try:
        number = int(text)
    except ValueError:
        raise ValueError(
            f"--nproc-per-node takes a number of workers, auto or cpu; not {text!r}"
        ) from None
    if number < 1:
        raise ValueError(f"--nproc-per-node takes at least 1 worker, not {number}")
    return number


def parse_masks(option: str, text: str, local_world_size: int) -> dict[int, int]:
    """Parse `--redirects` and `--tee`: "3" for all workers, or "0:1,1:2" by local rank. Raises
    ValueError.
    """

    def mask(part: str) -> int:
        if part not in ("0", "1", "2", "3"):
            raise ValueError(
                f"{option} takes 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or RANK:MASK,...; "
                f"not {text!r}"
            )
        return int(part)

    if ":" not in text:
        return dict.fromkeys(range(local_world_size), mask(text))
    masks: dict[int, int] = {}
    for part in text.split(","):
        rank, _, value = part.partition(":")
        if not rank.strip().isdecimal() or int(rank) >= local_world_size:
            raise ValueError(
                f"{option} {text}: {rank!r} is not a local rank; they go from 0 to "
                f"{local_world_size - 1}"
            )
        if int(rank) in masks:
            raise ValueError(f"{option} {text}: local rank {int(rank)} is given twice")
        masks[int(rank)] = mask(value.strip())
    return masks


def parse_ranks(option: str, text: str, local_world_size: int) -> frozenset[int] | None:
    """Parse `--local-ranks-filter`: "0,2"; None for an empty text. Raises ValueError."""
    if not text:
        return None
    ranks = [part.strip() for part in text.split(",")]
    for rank in ranks:
        if not rank.isdecimal() or int(rank) >= local_world_size:
            raise ValueError(
                f"{option} {text}: {rank!r} is not a local rank; they go from 0 to "
                f"{local_world_size - 1}"
            )
    return frozenset(int(rank) for rank in ranks)


def parse_filters(text: str) -> tuple[str, ...]:
    """Parse `--duplicate-stdout-filters`: texts separated by commas; a doubled comma is part of a
    text.
    """
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def parse_pairs(option: str, text: str) -> dict[str, str]:
    """Parse `--rdzv-conf`: "key=value,key=value". Raises ValueError."""
    pairs: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"{option} takes KEY=VALUE,KEY=VALUE,...; not {part!r}")
        if key in pairs:
            raise ValueError(f"{option}: {key} is given twice")
        pairs[key] = value
    return pairs


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error's text: the known name that was probably meant, or all known
    names.
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(sorted(names))}"
