"""`understudy run`: start a script on this machine as the workers of an elastic job. torchrun's
options, where they have a meaning here.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import click
import trio
from click.core import ParameterSource

from runtime.announcements import local_cluster_at
from runtime.command_line.log_options import log_format_option
from runtime.command_line.units import Number, PathName, Text
from runtime.elastic.agent import JobOutcome, run_agent
from runtime.elastic.budget import report
from runtime.elastic.machine import POLICIES, Policy, Rules
from runtime.elastic.reaper import fence_seconds
from runtime.elastic.settings import (
    ERR,
    OUT,
    ElasticSettings,
    Mode,
    nearest,
    parse_filters,
    parse_masks,
    parse_nodes,
    parse_pairs,
    parse_processes,
    parse_ranks,
)
from runtime.environment import SystemEnvironment
from runtime.links.interfaces import own_address
from runtime.rendezvous.interface import RendezvousHandler
from runtime.rendezvous.parameters import RendezvousParameters, back_end_of
from runtime.rendezvous.registry import create_handler
from runtime.timings import Timings

F = TypeVar("F", bound=Callable[..., Any])

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

_NEEDED = {
    "--rdzv-endpoint": "where the agents find each other (HOST:PORT of a node, etcd://HOST:PORT, "
    "or a directory that all share)",
    "--rdzv-id": "a name for the job, the same for all its agents and for no other job",
}
"""What each of them says."""


def _option(name: str, help: str, **settings: Any) -> Callable[[F], F]:
    """An option that can be set by PET_NAME as well, as with torchrun."""
    words = name.split("/")
    variable = "PET_" + words[-1].lstrip("-").replace("-", "_").upper()
    return click.option(*words, help=help, envvar=variable, **settings)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _option(
        "--nnodes",
        "Agents of the job: N, or MIN:MAX.",
        default="1",
        show_default=True,
        metavar="N|MIN:MAX",
    ),
    _option(
        "--nproc-per-node",
        "Workers on this machine.",
        default="1",
        show_default=True,
        metavar="N|auto|cpu",
    ),
    _option(
        "--rdzv-backend",
        "How agents find each other: understudy, etcd, static, file, or a plug-in. Default: the "
        "back-end that the endpoint belongs to.",
    ),
    _option(
        "--rdzv-endpoint",
        "Endpoint of the rendezvous: HOST:PORT of a node, etcd://..., or a directory. Not needed "
        "with one agent.",
        default="",
        metavar="HOST:PORT",
    ),
    _option("--rdzv-id", "The job's id, the same for all its agents.", type=Text()),
    _option("--rdzv-conf", "Options of the rendezvous.", default="", metavar="KEY=VALUE,..."),
    _option(
        "--standalone",
        "One agent alone; ignores the options --rdzv-...",
        is_flag=True,
    ),
    _option(
        "--max-restarts",
        "Most restarts of the whole job, by all agents together.",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
    ),
    _option(
        "--restart-window",
        "Count only restarts within this many seconds.",
        type=Number(min=0, min_open=True),
        metavar="SECONDS",
    ),
    _option(
        "--restart-policy",
        "What is restarted when a worker fails.",
        type=click.Choice(POLICIES),
        default="group",
        show_default=True,
    ),
    _option(
        "--on-membership-change",
        "Restart the workers when agents come or go, or notify them by a file.",
        type=click.Choice(["restart", "notify"]),
        default="restart",
        show_default=True,
    ),
    _option(
        "--membership-signal",
        "With notify: a signal that workers get in addition, such as SIGUSR1.",
    ),
    _option(
        "--monitor-interval",
        "Accepted for compatibility with torchrun, and ignored: the agent does not poll.",
        type=Number(),
        metavar="SECONDS",
    ),
    _option(
        "--role", "A name for the workers of this agent.", default="default", show_default=True
    ),
    _option("-m/--module", "SCRIPT is a module, as with `python -m`.", is_flag=True),
    _option("--no-python", "SCRIPT is a command of any kind.", is_flag=True),
    _option(
        "--log-dir",
        "Directory for logs and error files.",
        type=PathName(path_type=Path, file_okay=False),
    ),
    _option(
        "-r/--redirects",
        "Output into files: 0, 1 (stdout), 2 (stderr), 3 (both), or 0:1,1:2 by local rank.",
        default="0",
    ),
    _option(
        "-t/--tee", "Output into files and to the console; values as for --redirects.", default="0"
    ),
    _option(
        "--log-line-prefix-template",
        "Prefix of teed lines; may use ${role_name}, ${rank}, ${local_rank}, ${hostname}.",
        default="",
    ),
    _option(
        "--local-ranks-filter",
        "Show only these workers on the console.",
        default="",
        metavar="0,1,...",
    ),
    _option(
        "--duplicate-stdout-filters",
        "Also write lines of stdout that contain one of these texts, of all workers, to "
        "filtered_stdout.log.",
        default="",
        metavar="TEXT,...",
    ),
    _option(
        "--duplicate-stderr-filters",
        "The same for lines of stderr.",
        default="",
        metavar="TEXT,...",
    ),
    _option(
        "--signals-to-handle",
        "Signals that end the job on this machine.",
        default=SIGNALS,
        show_default=True,
    ),
    _option(
        "--shutdown-timeout",
        "Seconds from SIGTERM to SIGKILL. Stopped workers (SIGSTOP) go on with SIGTERM.",
        type=Number(min=0),
        default=30.0,
        show_default=True,
    ),
    _option(
        "--node-rank",
        "With the static rendezvous: the rank of this agent.",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
    ),
    _option("--master-addr", "The address of rank 0, if it cannot be determined.", default=""),
    _option(
        "--master-port",
        "The port of rank 0. Default: any free port.",
        type=click.IntRange(min=0, max=65535),
        default=0,
    ),
    _option("--local-addr", "The address of this machine.", default=""),
    _option(
        "--health-port",
        "Answer GET /healthz and /metrics here; 0 for any port.",
        type=click.IntRange(min=0, max=65535),
    ),
    _option(
        "--event-log",
        "Append events to this file, as JSON lines.",
        type=PathName(path_type=Path, dir_okay=False),
    ),
)


def _all_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(
    # torchrun takes --nproc_per_node as well.
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
    epilog="Example:  understudy run --standalone --nproc-per-node 2 train.py --epochs 3",
)
@_all_options
@log_format_option
@click.option("--json", "as_json", is_flag=True, help="Print the outcome of the job as JSON.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    /,
    script: str,
    arguments: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Run SCRIPT as the workers of an elastic job, with the environment that torchrun gives (RANK,
    WORLD_SIZE, MASTER_ADDR, ...).

    Exit status 0 if all workers of this agent ended well, 1 if the job failed, 128 and the signal's
    number if one ended it.
    """
    try:
        if context.get_parameter_source("monitor_interval") not in (ParameterSource.DEFAULT, None):
            click.echo(
                "note: --monitor-interval has no meaning here: the agent does not poll, it "
                "learns of the end of a worker at once",
                err=True,
            )
        settings, open_handler, address = _prepare(script, arguments, options)
    except ValueError as error:
        raise click.UsageError(str(error), context) from None
    outcome = trio.run(run_agent, settings, open_handler, SystemEnvironment(), address)
    _show(settings, outcome, as_json=as_json)
    raise SystemExit(outcome.code)


def _show(settings: ElasticSettings, outcome: JobOutcome, *, as_json: bool) -> None:
    if outcome.code == 1:
        click.echo(report(settings.run_id, outcome.failures, outcome.text), err=True)
    elif outcome.text:
        click.echo(outcome.text, err=True)
    if as_json:
        facts = {
            "run_id": settings.run_id,
            "code": outcome.code,
            "text": outcome.text,
            # A temporary one is gone, unless a worker has failed.
            "log_dir": str(outcome.log_dir) if outcome.log_dir.exists() else None,
            "failures": [
                {**attrs.asdict(failure), "status": failure.status} for failure in outcome.failures
            ],
            "killed": [attrs.asdict(worker) for worker in outcome.killed],
        }
        click.echo(json.dumps(facts, indent=2))


def _prepare(
    script: str, arguments: tuple[str, ...], options: dict[str, Any]
) -> tuple[ElasticSettings, Callable[[], RendezvousHandler], str]:
    """Everything that can be wrong with the options is said here, before anything has begun. Raises
    ValueError.
    """
    least, most = parse_nodes(options["nnodes"])
    workers = parse_processes(options["nproc_per_node"], len(os.sched_getaffinity(0)))
    endpoint, run_id = options["rdzv_endpoint"], options["rdzv_id"]
    backend = options["rdzv_backend"] or (back_end_of(endpoint) if endpoint else "")
    conf = parse_pairs("--rdzv-conf", options["rdzv_conf"])
    alone = options["standalone"] or (most == 1 and not backend and not endpoint)
    if options["standalone"] and most > 1:
        raise ValueError(
            f"--standalone is for one agent, and --nnodes {options['nnodes']} for more; leave one "
            "of them out"
        )
    if alone:
        run_id = (
            run_id if run_id and not options["standalone"] else SystemEnvironment().token(6).hex()
        )
        endpoint = ""
    else:
        for option, given in (("--rdzv-endpoint", endpoint), ("--rdzv-id", run_id)):
            if not given:
                raise ValueError(
                    f"{option} is missing: {_NEEDED[option]}; a job of one agent needs no "
                    "such option, or --standalone"
                )
    settings = ElasticSettings(
        run_id=run_id,
        command=(script, *arguments),
        rules=_rules(options, workers, conf, elastic=most > least),
        mode=_mode(script, options),
        role=options["role"],
        max_restarts=options["max_restarts"],
        restart_window=options["restart_window"] or math.inf,
        redirects=parse_masks("--redirects", options["redirects"], workers),
        tee=parse_masks("--tee", options["tee"], workers),
        local_ranks=parse_ranks("--local-ranks-filter", options["local_ranks_filter"], workers),
        prefix_template=options["log_line_prefix_template"],
        filters={
            OUT: parse_filters(options["duplicate_stdout_filters"]),
            ERR: parse_filters(options["duplicate_stderr_filters"]),
        },
        log_dir=options["log_dir"],
        signals=tuple(
            _signal("--signals-to-handle", name) for name in options["signals_to_handle"].split(",")
        ),
        shutdown_timeout=options["shutdown_timeout"],
        membership_signal=_membership_signal(options),
        master_addr=options["master_addr"],
        master_port=options["master_port"],
        health_port=options["health_port"],
        event_log=options["event_log"],
        fence_seconds=math.inf if alone else fence_seconds(*_renewals(conf)),
        join_timeout=_seconds(conf, "join_timeout", _seconds(conf, "timeout", 600.0)),
    )
    given_address = options["master_addr"] or options["local_addr"]
    if alone:
        return settings, partial(_standalone, run_id), given_address or "127.0.0.1"
    if backend == "static":
        conf = {"rank": str(options["node_rank"]), **conf}
    handlers = _handlers(
        backend, endpoint, run_id, (least, most), options["local_addr"] or None, conf
    )
    # After the endpoint was checked: it is looked up here.
    return settings, handlers, given_address or own_address(endpoint)


def _rules(options: dict[str, Any], workers: int, conf: dict[str, str], *, elastic: bool) -> Rules:
    lease, _ = _renewals(conf)
    return Rules(
        workers,
        cast("Policy", options["restart_policy"]),
        options["on_membership_change"] == "notify",
        # A job that cannot do with fewer agents has nothing to gain from knowing whether one was
        # lost.
        loss_seconds=lease + Timings().loss_margin if elastic else 0.0,
    )


def _renewals(conf: dict[str, str]) -> tuple[float, float]:
    """Seconds of an agent's lease, and between its renewals."""
    interval = _seconds(conf, "keep_alive_interval", 5.0)
    return interval * _seconds(conf, "keep_alive_max_attempt", 3.0), interval


def _mode(script: str, options: dict[str, Any]) -> Mode:
    if options["module"] and options["no_python"]:
        raise ValueError(
            "--module is for Python's modules and --no-python for other commands; leave one of "
            "them out"
        )
    if options["module"]:
        return "module"
    if "$" in script:
        return "command" if options["no_python"] else "script"
    if options["no_python"]:
        if shutil.which(script) is None:
            raise ValueError(f"there is no command {script!r} on the path")
        return "command"
    if not os.path.exists(script):
        raise ValueError(
            f"there is no script {script!r} in {os.getcwd()}; a module is run with -m, a command "
            "with --no-python"
        )
    return "script"


def _signal(option: str, name: str) -> int:
    known = {
        each.name: each.value
        for each in signal.Signals
        if each not in (signal.SIGKILL, signal.SIGSTOP)
    }
    if name.strip() not in known:
        raise ValueError(
            f"{option}: {name.strip()!r} is not a signal that a process can handle; "
            f"{nearest(name.strip(), known)}"
        )
    return known[name.strip()]


def _membership_signal(options: dict[str, Any]) -> int:
    if not options["membership_signal"]:
        return 0
    if options["on_membership_change"] != "notify":
        raise ValueError(
            "--membership-signal goes with --on-membership-change notify: otherwise workers are "
            "restarted instead of signalled"
        )
    return _signal("--membership-signal", options["membership_signal"])


def _seconds(conf: dict[str, str], key: str, default: float) -> float:
    try:
        value = float(conf.get(key, default))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"--rdzv-conf: {key} takes a positive number, not {conf[key]!r}")
    return value


def _standalone(run_id: str) -> RendezvousHandler:
    # Brings the handler and the store, which need not be there before the options are checked.
    from runtime.rendezvous.back_ends import standalone

    return standalone(run_id, SystemEnvironment())


def _local_cluster(backend: str, endpoint: str, conf: dict[str, str]) -> dict[str, Any]:
    """The name and the secret of the local cluster of this user that is open at the endpoint, as
    other commands find them; nothing if there is none, or if the options say them.
    """
    if backend not in ("understudy", "static") or "/" in endpoint or "secret_file" in conf:
        return {}
    found = partial(local_cluster_at, SystemEnvironment())
    local = next(filter(None, map(found, endpoint.split(","))), None)
    if local is None or conf.get("cluster", local.cluster) != local.cluster:
        return {}
    return {"cluster": local.cluster, "secret": local.secret}


def _handlers(
    backend: str,
    endpoint: str,
    run_id: str,
    nodes: tuple[int, int],
    local_addr: str | None,
    conf: dict[str, str],
) -> Callable[[], RendezvousHandler]:
    """Makes handlers out of the registry. One is made here and thrown away, so that what is wrong
    is said at once.
    """
    given: dict[str, Any] = {**_local_cluster(backend, endpoint, conf), **conf}

    def make() -> RendezvousHandler:
        return create_handler(
            RendezvousParameters(backend, endpoint, run_id, *nodes, local_addr=local_addr, **given)
        )

    make()
    return make
