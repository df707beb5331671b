"""The architecture, held by the syntax trees of the product: who may import whom, where time and
chance come in, how large things grow.

Each rule collects all its violations and names them as file:line. A rule that stands in the way of
something better is changed here, in the open, by the same change that needs it.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import cast

import pytest

import actors
import runtime
import understudy
from tests.house import (
    PRODUCT,
    ROOT,
    Function,
    Source,
    circles,
    class_places,
    functions,
    import_graph,
    imports,
    nodes,
    private_reaches,
    small_modules,
    sources,
)

CORE = {"attr", "attrs", "cbor2", "click", "trio"}
"""Third-party modules of a plain install. `attr` is attrs by its older name."""

PLUGINS = {"runtime.pytest_plugin": "pytest", "runtime.torchrun.plugin": "torch"}
"""Modules that nothing but the program of this name imports, which finds them by their
entry point.
"""

EXTRAS = {
    "cryptography",
    "IPython",
    "h11",
    "greenback",
    "hypercorn",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "rich",
    "starlette",
}
"""Third-party modules of the extras in pyproject.toml: imported inside the function that needs
them, or not at all.
"""

SANS_IO = (
    "actors/adoption.py",
    "actors/dynamic_restarts.py",
    "actors/errors.py",
    "actors/identifiers.py",
    "actors/messages.py",
    "actors/options.py",
    "actors/restart_intensity.py",
    "actors/restarts.py",
    "actors/retry.py",
    "actors/supervision.py",
    "runtime/calls/dedup_table.py",
    "runtime/calls/flow_control.py",
    "runtime/calls/incoming_calls.py",
    "runtime/calls/pending_calls.py",
    "runtime/calls/protocol.py",
    "runtime/calls/replies.py",
    "runtime/console/completion.py",
    "runtime/console/statements.py",
    "runtime/dashboard/call_view.py",
    "runtime/dashboard/cluster_view.py",
    "runtime/dashboard/schedule.py",
    "runtime/dashboard/snapshots.py",
    "runtime/elastic/budget.py",
    "runtime/elastic/machine.py",
    "runtime/elastic/ranks.py",
    "runtime/elastic/settings.py",
    "runtime/elastic/watchdog.py",
    "runtime/functions/pool.py",
    "runtime/groups/memberships.py",
    "runtime/hosting/completion_records.py",
    "runtime/isolation/messages.py",
    "runtime/links/loans.py",
    "runtime/links/session.py",
    "runtime/links/settlement.py",
    "runtime/links/spin.py",
    "runtime/links/transfers.py",
    "runtime/logs/ring.py",
    "runtime/membership/lease.py",
    "runtime/gateway/media.py",
    "runtime/gateway/openapi.py",
    "runtime/gateway/problems.py",
    "runtime/observation/tree.py",
    "runtime/plain_calls/keyed_calls.py",
    "runtime/plain_calls/plain_values.py",
    "runtime/plain_calls/schemas.py",
    "runtime/pools/batch_sizes.py",
    "runtime/pools/held_items.py",
    "runtime/pools/journal.py",
    "runtime/pools/map_schedule.py",
    "runtime/pools/member_plan.py",
    "runtime/pools/waiting_items.py",
    "runtime/processes/protocol.py",
    "runtime/references/forks.py",
    "runtime/references/holder_set.py",
    "runtime/references/table.py",
    "runtime/rendezvous/interface.py",
    "runtime/rendezvous/machine.py",
    "runtime/rendezvous/parameters.py",
    "runtime/simulation/linearizability.py",
    "runtime/simulation/oracle.py",
    "runtime/simulation/report.py",
    "runtime/statistics/*.py",
    "runtime/store/etcd/translation.py",
    "runtime/store/memory.py",
    "runtime/supervision/placement.py",
    "runtime/timings.py",
    "runtime/watching/tables.py",
    "runtime/wire/*.py",
)
"""The state machines: driven by the caller with bytes, events and the time as a number. A new one
is named here.
"""

IO_MODULES = {
    "asyncio",
    "multiprocessing",
    "os",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "trio",
}

FACE = "__init__"
ROOMS = (
    "calls",
    "elastic",
    "functions",
    "groups",
    "hosting",
    "isolation",
    "logs",
    "membership",
    "metrics",
    "observation",
    "plain_calls",
    "pools",
    "processes",
    "references",
    "rendezvous",
    "store",
    "supervision",
    "torchrun",
    "watching",
)
FLOORS: tuple[tuple[str, ...], ...] = (
    (
        "annotation_checks",
        "async_blocks",
        "environment",
        "error_to_raise",
        "faults",
        "http_connections",
        "http_hosts",
        "gatherer",
        "host_port",
        "audit",
        "limited_log",
        "near_names",
        "printable",
        "private_files",
        "lifetime",
        "service_calls",
        "source_lines",
        "stderr_writer",
        "strict_http",
        "tcp_connector",
        "timings",
        "tracebacks",
        "tracing",
        "user_errors",
        "version",
    ),
    ("shared_memory", "statistics", "wire"),
    ("links",),
    (*ROOMS, "announcements"),
    ("node",),
    ("simulation",),
    ("process_end",),
    ("cluster_processes", "first_uses", "local_cluster"),
    ("doors", "gateway"),
    ("aio", "blocking", "dashboard"),
    ("console", "notebook"),
    ("testing",),
    ("pytest_plugin",),
    ("demonstration",),
    (FACE,),
    ("command_line",),
)
"""Lowest first: a module imports from its own floor and those below. `__init__` is the face of
`runtime`: it gathers what is public.
"""

RETIRED = {
    "alone",
    "charter",
    "coordination",
    "correspondence",
    "deaths",
    "desk",
    "enrolment",
    "hands",
    "happening",
    "holdings",
    "lent",
    "letter",
    "lodger",
    "lodging",
    "neighbour",
    "neighbourhood",
    "outflow",
    "parcel",
    "promises",
    "quarters",
    "resident",
    "shelf",
    "shelves",
    "sight",
    "sponsor",
    "station",
    "story",
    "tally",
    "telling",
    "verdict",
    "weather",
}
"""Private words of earlier versions, which the field's words have replaced;
docs/design/glossary.md lists both.
"""

RETIRED_IN_NAMES = RETIRED - {
    "alone",  # `raise_alone`, and an ordinary word
    "coordination",
    "deaths",  # a method of `Supervisor` that users call
    "hands",  # `shake_hands`
    "neighbour",
}
"""Those that no function, attribute, parameter or variable has either. What is left out is an
ordinary word as well, or still to be renamed.
"""

RETIRED_IN_ROOMS = {
    "job": {  # An `Invocation`; the jobs of other rooms are elastic jobs.
        "runtime/calls",
        "runtime/hosting",
        "runtime/isolation",
        "runtime/logs",
        "runtime/metrics",
        "runtime/observation",
        "runtime/plain_calls",
        "runtime/watching",
    },
}
"""Words that no name of these rooms has, since they are terms of others."""

PARKS_IN_OWN_TASKS = {
    "runtime/calls/stream_server.py": {"_send_all"},
    "runtime/hosting/workers.py": {"_serve"},
    "runtime/links/outbound.py": {"_write"},
    "runtime/simulation/network.py": {"wait"},
}
"""Functions that park only tasks of the node itself: an interrupt of one of these ends the node."""

MAX_FUNCTION_LINES = 70


def refuse(violations: list[str]) -> None:
    """Fail the test with one violation a line."""
    if violations:
        pytest.fail("\n" + "\n".join(violations), pytrace=False)


def check(rule: Callable[[Source], Iterator[str]], *patterns: str) -> None:
    """Apply a rule to the files that match a pattern, or to the whole product. A pattern without a
    file is a violation: the file moved.
    """
    violations = [
        f"{pattern}: no such file"
        for pattern in patterns
        if not any(fnmatch(source.path, pattern) for source in sources())
    ]
    for source in sources():
        if not patterns or any(fnmatch(source.path, pattern) for pattern in patterns):
            violations.extend(rule(source))
    refuse(violations)


def test_actors_never_imports_runtime() -> None:
    def rule(source: Source) -> Iterator[str]:
        return (
            source.at(found.line, f"imports {found.target}")
            for found in imports(source)
            if found.top == "runtime"
        )

    check(rule, "actors/*.py")


def test_what_handlers_of_logs_raise_ends_no_task_of_a_node() -> None:
    def rule(source: Source) -> Iterator[str]:
        for node in nodes(source):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).endswith("getLogger")
                and node.args
                and ast.unparse(node.args[0]).startswith("'understudy.")
            ):
                yield source.at(node, "gets a logger that raises: use actors.own_logger")

    check(rule)


def test_nothing_imports_the_facade() -> None:
    def rule(source: Source) -> Iterator[str]:
        return (
            source.at(found.line, f"imports {found.target}: import from actors or runtime")
            for found in imports(source)
            if found.top == "understudy" and not source.module.startswith("understudy")
        )

    check(rule)


def test_the_state_machines_do_no_input_or_output() -> None:
    def rule(source: Source) -> Iterator[str]:
        return (
            source.at(found.line, f"a sans-IO module imports {found.target}")
            for found in imports(source)
            if found.top in IO_MODULES and found.when != "for types"
        )

    check(rule, *SANS_IO)


def test_time_chance_and_ids_come_in_through_the_environment() -> None:
    sources_of_chance = {"random", "secrets", "time"}
    calls = {
        "os.urandom",
        "os.getrandom",
        "uuid.uuid1",
        "uuid.uuid3",
        "uuid.uuid4",
        "uuid.uuid5",
    } | {
        f"{prefix}{name}"
        for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")
        for prefix in ("", "datetime.")
    }

    last_words = {call.rpartition(".")[2] for call in calls}

    def rule(source: Source) -> Iterator[str]:
        if source.module == "runtime.environment":
            return
        for found in imports(source):
            if source.module.startswith("runtime.simulation.") and found.target == "random":
                # It makes environments, from generators with seeds; see the next test.
                continue
            if found.top in sources_of_chance:
                yield source.at(found.line, f"imports {found.target}; ask the Environment")
        for node in nodes(source):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in last_words
                and ast.unparse(node) in calls
            ):
                yield source.at(node, f"uses {ast.unparse(node)}; ask the Environment")
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in calls:
                        yield source.at(
                            node, f"imports {node.module}.{alias.name}; ask the Environment"
                        )

    check(rule)


def test_what_is_simulated_depends_on_nothing_but_seeds() -> None:
    outside = {
        "threading",
        "socket",
        "subprocess",
        "multiprocessing",
        "signal",
        "select",
        "asyncio",
        "concurrent",
    }

    def rule(source: Source) -> Iterator[str]:
        for found in imports(source):
            if found.top == "asyncio" and source.path == "runtime/simulation/outbursts.py":
                # For its CancelledError alone, which is one of the exceptions that simulated actors
                # raise.
                continue
            if found.top in outside:
                yield source.at(
                    found.line,
                    f"imports {found.target}: a simulation has nothing outside of itself",
                )
        for node in nodes(source):
            if not isinstance(node, ast.Attribute):
                continue
            text = ast.unparse(node)
            if text.startswith("random.") and not text.startswith("random.Random"):
                yield source.at(
                    node, f"uses {text}: the generator that all share; make one with a seed"
                )
            elif text.startswith(
                ("trio.to_thread", "trio.from_thread", "trio.SystemClock")
            ) or text in (
                "random.SystemRandom",
                "os.environ",
            ):
                yield source.at(node, f"uses {text}")
            elif isinstance(node.value, ast.Call) and ast.unparse(node.value) == "random.Random()":
                yield source.at(node, "uses a generator without a seed")

    check(rule, "runtime/simulation/*.py")


def room_of(module: str) -> str:
    """`wire` for `runtime.wire.frames`; the face for `runtime` itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else FACE


def test_imports_go_down_the_floors_of_the_house() -> None:
    floor_of = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

    def rule(source: Source) -> Iterator[str]:
        here = room_of(source.module)
        if here not in floor_of:
            yield source.at(1, f"room {here!r} has no floor in this test; give it one")
            return
        for found in imports(source):
            there = room_of(found.target)
            if found.top == "runtime" and there in floor_of and floor_of[there] > floor_of[here]:
                yield source.at(found.line, f"{here} imports {found.target}, which is above it")

    check(rule, "runtime/*.py")


def test_no_two_rooms_need_each_other() -> None:
    uses: dict[str, dict[str, str]] = {room: {} for room in ROOMS}
    for source in sources():
        here = room_of(source.module)
        for found in imports(source):
            there = room_of(found.target)
            if (
                source.module.startswith("runtime.")
                and found.top == "runtime"
                and here != there
                and {here, there} <= set(ROOMS)
            ):
                uses[here].setdefault(
                    there, source.at(found.line, f"{here} imports {found.target}")
                )
    ring: list[str] = []
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError as error:
        ring = error.args[1]
    refuse([uses[user][used] for used, user in itertools.pairwise(ring)])


def test_each_room_has_its_folder_of_tests() -> None:
    rooms = [path.parent for path in sorted((ROOT / "runtime").glob("*/__init__.py"))]
    rooms += [ROOT / "actors", ROOT / "understudy"]
    refuse(
        [
            f"tests/{room.name} has no test_*.py: what {room.relative_to(ROOT)} promises is tested"
            " there"
            for room in rooms
            if not any((ROOT / "tests" / room.name).glob("**/test_*.py"))
        ]
    )


def test_tests_use_no_private_name_of_another_room() -> None:
    refuse(
        [
            f"{path}:{line}: uses {name} of another room: ask runtime.node.internals_of, or give"
            " that room a public name"
            for path, line, name in private_reaches()
        ]
    )


def test_no_two_files_need_each_other() -> None:
    refuse([" and ".join(circle) + " import each other" for circle in circles(import_graph())])


def test_a_module_is_a_concept_and_no_piece_of_its_only_importer() -> None:
    refuse(
        [
            f"{source.path}: {importer} alone imports it, and it is short: make it a part of that"
            for source, importer in small_modules()
        ]
    )


NOUNS = {
    "blocking",  # of `runtime`, `actors` and `understudy`: programs import it
    "debugging",
    "keyring",
    "listing",
    "opening",
    "ring",
    "testing",  # of `runtime` and `understudy`: programs import it
    "tracing",
}
"""Names of modules that end like participles, and are nouns, or cannot be changed."""


def test_the_names_of_modules_are_nouns() -> None:
    refuse(
        [
            source.at(1, f"{last!r} says what is done: name the module by what is in it")
            for source in sources()
            if not source.is_face
            and (last := source.module.rpartition(".")[2].rpartition("_")[2]).endswith(
                ("ing", "ed")
            )
            and last not in NOUNS
        ]
    )


def misplaced_constants(source: Source) -> Iterator[str]:
    """The constants behind the first function or class of a file that need none of its own."""
    own: set[str] = set()
    for statement in source.tree.body:
        if isinstance(statement, Function | ast.ClassDef):
            own.add(statement.name)
        elif own and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            given = {node.id for node in names if isinstance(node.ctx, ast.Store)} - {"__all__"}
            needed = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
            if needed & own:
                own |= given
            elif given:
                yield source.at(statement, f"{', '.join(sorted(given))}: put it behind the imports")


def test_constants_come_before_functions_and_classes() -> None:
    check(misplaced_constants)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A = 1\nclass C: ...\nB = C()\nD = (B, A)\n__all__ = ['C']\nC.shown = True\n", []),
        ("def f(): ...\nA: Final = 1\nlogger = log()\n", ["A", "logger"]),
    ],
)
def test_a_constant_that_needs_nothing_of_its_file_is_misplaced(
    text: str, found: list[str]
) -> None:
    source = Source("a.py", "a", text, ast.parse(text))
    assert [one.split()[1].rstrip(":") for one in misplaced_constants(source)] == found


RIDDLES = re.compile(
    r"(?<![\"'])\b([Ww]hoever|[Ss]omebody|[Aa]nybody|[Nn]obody|[Ww]hat (came|became) of|"
    r"(is|are) told)\b"
)
"""Words that leave open which task, caller, node or user does something, or does not."""


def test_comments_and_docstrings_say_who_does_what() -> None:
    def rule(source: Source) -> Iterator[str]:
        for number, line in enumerate(source.text.splitlines(), 1):
            if found := RIDDLES.search(line):
                yield source.at(number, f"{found[0]!r}: say which task, caller, node or user it is")

    check(rule)


def test_a_class_name_is_defined_once() -> None:
    refuse([" and ".join(places) for places in class_places().values() if len(places) > 1])


@functools.cache
def words_of(name: str) -> list[str]:
    """`["store", "locator"]` of `StoreLocator` as of `store_locator`; `["values", "value"]` of
    `values`.
    """
    words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
    return [*words, *(word.removesuffix("s") for word in words if word.endswith("s"))]


def test_no_interrupt_comes_between_a_task_that_is_noted_and_its_parking() -> None:
    """What is to wake it would wake a task that is not parked, which ends trio's loop."""

    def rule(source: Source) -> Iterator[str]:
        own = PARKS_IN_OWN_TASKS.get(source.path, set())
        for node in nodes(source):
            if (
                isinstance(node, ast.AsyncFunctionDef)
                and node.name not in own
                and "await trio.lowlevel.wait_task_rescheduled(" in ast.unparse(node)
                and "trio.lowlevel.enable_ki_protection"
                not in map(ast.unparse, node.decorator_list)
            ):
                yield source.at(
                    node, f"{node.name} parks a task: protect it by enable_ki_protection"
                )

    check(rule)


def test_no_module_or_class_has_a_word_that_the_glossary_retired() -> None:
    def rule(source: Source) -> Iterator[str]:
        for word in words_of(source.module.rpartition(".")[2]):
            if word in RETIRED:
                yield source.at(
                    1, f"module {source.module}: {word!r} is retired, see docs/design/glossary.md"
                )
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                for word in RETIRED.intersection(words_of(node.name)):
                    yield source.at(
                        node, f"{node.name}: {word!r} is retired, see docs/design/glossary.md"
                    )

    check(rule)


OUTSIDE = {
    "Actor.link",
    "DOWN",
    "FLOORS",
    "KilledWorker",
    "SANS_IO",
    "ValueError",
    "assert",
    "checked",
    "def",
    "eval",
    "hypothesis",
    "logging",
    "pg",
    "uuid",
    "wait_task_rescheduled",
}
"""What the pages about the design name, and is Python's, trio's, the tests', or inherited."""


def names_given(node: ast.AST) -> list[str]:
    """The names that a node gives to something: a class, a function, its parameters, attributes
    and variables that are assigned.
    """
    if isinstance(node, Function):
        arguments = node.args
        return [
            node.name,
            *(
                argument.arg
                for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            ),
        ]
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return []


@functools.cache
def given_names(source: Source) -> tuple[tuple[str, ast.AST], ...]:
    """All names that a file gives, each with its node."""
    return tuple((name, node) for node in nodes(source) for name in names_given(node))


@functools.cache
def defined_names() -> tuple[set[str], set[str]]:
    """All names that the product defines; and those of members, as `Class.member`."""
    names: set[str] = set()
    members: set[str] = set()
    for source in sources():
        for name, node in given_names(source):
            names.add(name)
            if isinstance(node, ast.ClassDef):
                for each in ast.walk(node):
                    members.update(f"{name}.{member}" for member in names_given(each))
    return names, members


@pytest.mark.parametrize("page", ["architecture", "glossary"])
def test_what_the_pages_about_the_design_name_exists(page: str) -> None:
    names, members = defined_names()
    modules = {source.module for source in sources()}
    words = {word for module in modules for word in module.split(".")}
    text = (ROOT / "docs" / "design" / f"{page}.md").read_text(encoding="utf-8")

    def exists(token: str) -> bool:
        if token.endswith(".py"):
            return any((ROOT / base / token).is_file() for base in ("", "runtime")) or any(
                source.path.endswith(f"/{token}") for source in sources()
            )
        if re.fullmatch(r"(runtime|actors)(\.\w+)+", token):
            module, rest = token, ""
            while module not in modules:
                module, _, last = module.rpartition(".")
                rest = f"{last}.{rest}".rstrip(".")
            return not rest or rest in names | members
        if re.fullmatch(r"[A-Z]\w+\.\w+", token):
            return token in members
        return not re.fullmatch(r"_?[A-Za-z]\w+", token) or token in names | words

    # What is retired is explained there, not there any more.
    tokens = re.findall(r"`([^`\n]+)`", text.partition("\n## Retired words\n")[0])
    refuse(
        [
            f"docs/design/{page}.md: {one} is nowhere"
            for one in sorted({*tokens} - OUTSIDE)
            if not exists(one)
        ]
    )


STOPS = (
    re.compile(r"`(?P<file>[\w/]+\.py)`,\s+`(?P<name>[\w.]+)`"),
    re.compile(r"`(?P<name>[\w.]+)`,?\s+(?:in\s+|\()`(?P<file>[\w/]+\.py)`"),
)
"""How a walk of the architecture page names a stop: the file, and what to read in it."""


def test_each_stop_of_a_walk_is_in_the_file_that_the_page_names() -> None:
    text = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    stops = {
        (one["file"], one["name"].rpartition(".")[2])
        for pattern in STOPS
        for one in pattern.finditer(text)
    }
    assert len(stops) > 80
    places: dict[str, set[str]] = {}
    for source in sources():
        for name, _ in given_names(source):
            places.setdefault(name, set()).add(f"/{source.path}")
    refuse(
        [
            f"docs/design/architecture.md: {name} is not in {file}"
            for file, name in sorted(stops)
            if name != "py"
            and not file.startswith("tests/")
            and not any(path.endswith(f"/{file}") for path in places.get(name, ()))
        ]
    )


@functools.cache
def imported_rooms() -> dict[str, frozenset[str]]:
    """The rooms of `runtime` that each of them imports."""
    found: dict[str, set[str]] = {}
    for source in sources():
        if source.module.partition(".")[0] == "runtime":
            here = room_of(source.module)
            there = {room_of(each.target) for each in imports(source) if each.top == "runtime"}
            found.setdefault(here, set()).update(there - {here})
    return {room: frozenset(rooms) for room, rooms in found.items()}


def test_the_architecture_page_has_the_rooms_from_bottom_to_top() -> None:
    text = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| room | what it does |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    row_of = {
        room.rstrip("/").removesuffix(".py"): number
        for number, row in enumerate(rows)
        for room in re.findall(r"`([^`]+)`", row)
    }
    assert row_of.keys() == {"actors", *imported_rooms()}
    refuse(
        [
            f"docs/design/architecture.md: {room} imports {each}, which is in a later row"
            for room, rooms in imported_rooms().items()
            for each in rooms
            if row_of[each] > row_of[room]
        ]
    )


def test_the_arrows_of_the_architecture_page_are_the_imports() -> None:
    text = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    drawn = {
        room: set(rooms.split(", "))
        for room, rooms in re.findall(r"^(\w+) ──> (.+)$", text, re.MULTILINE)
    }
    left_out = {*FLOORS[0], "wire", "command_line", FACE}
    real = {
        room: rooms - left_out
        for room, rooms in imported_rooms().items()
        if room not in left_out and rooms - left_out
    }
    assert drawn == real


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    text = (ROOT / "docs" / "design" / "glossary.md").read_text(encoding="utf-8")
    terms: list[str] = []
    for section in text.split("\n## "):
        own = re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)
        assert own == sorted(own, key=lambda term: re.sub(r"[^a-z ]", "", term.casefold()))
        terms += own
    assert len(terms) == len(set(terms)), [term for term in terms if terms.count(term) > 1]


@pytest.mark.parametrize(
    "room",
    ["calls", "groups", "isolation", "membership", "references", "supervision", "watching"],
)
def test_the_classes_of_a_room_with_its_own_words_are_in_the_glossary(room: str) -> None:
    glossary = (ROOT / "docs" / "design" / "glossary.md").read_text(encoding="utf-8")
    defined = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", glossary))))
    refuse(
        [
            source.at(node, f"{node.name} is not in docs/design/glossary.md")
            for source in sources()
            if source.path.startswith(f"runtime/{room}/")
            for node in source.tree.body
            if isinstance(node, ast.ClassDef)
            and not node.name.startswith("_")
            and node.name not in defined
        ]
    )


def test_each_name_that_users_import_is_in_the_glossary() -> None:
    names = {*actors.__all__, *runtime.__all__, *understudy.__all__} - {"__version__"}
    glossary = (ROOT / "docs" / "design" / "glossary.md").read_text(encoding="utf-8")
    missing = names - set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", glossary))))
    assert not missing, f"not in docs/design/glossary.md: {sorted(missing)}"


def test_no_function_attribute_or_variable_has_a_word_that_the_glossary_retired() -> None:
    def rule(source: Source) -> Iterator[str]:
        room = source.path.rpartition("/")[0]
        retired_here = {word for word, rooms in RETIRED_IN_ROOMS.items() if room in rooms}
        retired = RETIRED_IN_NAMES | retired_here
        for name, node in given_names(source):
            for word in retired.intersection(words_of(name)):
                yield source.at(
                    cast("ast.stmt", node).lineno,
                    f"{name}: {word!r} is retired, see docs/design/glossary.md",
                )

    check(rule)


def test_a_plain_install_has_all_that_is_imported() -> None:
    known = set(sys.stdlib_module_names) | set(PRODUCT) | CORE

    def rule(source: Source) -> Iterator[str]:
        for found in imports(source):
            allowed = known if found.when == "at import" else known | EXTRAS
            if found.top == PLUGINS.get(source.module):
                continue
            if found.top not in allowed:
                hint = (
                    "an extra: import it inside the function that needs it"
                    if found.top in EXTRAS
                    else "not a dependency"
                )
                yield source.at(found.line, f"imports {found.target}, {hint}")
            if found.top == "click" and room_of(source.module) != "command_line":
                yield source.at(found.line, "imports click, which is for the command line alone")

    check(rule)


def test_nothing_on_the_wire_can_become_code() -> None:
    modules = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}

    def rule(source: Source) -> Iterator[str]:
        for found in imports(source):
            if found.top in modules:
                yield source.at(found.line, f"imports {found.target}")
        for node in nodes(source):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"eval", "exec"}
            ):
                yield source.at(node, f"calls {node.func.id}")

    check(rule)


def test_no_module_keeps_state_of_its_own() -> None:
    containers = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)
    makers = {
        "dict",
        "list",
        "set",
        "defaultdict",
        "deque",
        "OrderedDict",
        "Counter",
        "WeakKeyDictionary",
        "WeakValueDictionary",
        "count",
    }

    def is_mutable(value: ast.expr | None) -> bool:
        if isinstance(value, ast.Call):
            return ast.unparse(value.func).rpartition(".")[2] in makers
        return isinstance(value, containers)

    def rule(source: Source) -> Iterator[str]:
        for node in nodes(source):
            if isinstance(node, ast.Global):
                yield source.at(node, f"global {', '.join(node.names)}")
        for node in source.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and is_mutable(node.value):
                targets = [
                    ast.unparse(target)
                    for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                ]
                for target in targets:
                    # A table in capitals is a constant: it is read, and type checkers refuse to
                    # rebind it.
                    if target != "__all__" and not target.isupper():
                        yield source.at(node, f"{target} is mutable and belongs to no object")

    check(rule)


SHARED_TIMES = {
    # Promised to users, who give others by an option or a parameter.
    "BLOCKED_LIMIT_SECONDS",
    "LIMIT_SECONDS",
    "STOP_SECONDS",
    # Limits of one room, which another one tells people of, or checks for them.
    "MAX_LEASE_SECONDS",
    "MOST_SECONDS",
    "UNATTENDED_SECONDS",
    # What a room gives others as its own: how it answers, counts or writes.
    "FLUSH_SECONDS",
    "LONG_POLL_SECONDS",
    "LONG_TURN_SECONDS",
}


def is_time(name: str) -> bool:
    """True for `…_SECONDS`."""
    return name.isupper() and "SECONDS" in name.lstrip("_").split("_") and name != "_SECONDS"


def times_without_a_reason(source: Source) -> Iterator[str]:
    """Times among a file's constants that have no docstring, nor one that is that of several."""
    body = source.tree.body
    for place, statement in enumerate(body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if not isinstance(target, ast.Name) or not is_time(target.id):
            continue
        following = (
            each
            for before, each in itertools.pairwise(body[place:])
            if not isinstance(each, ast.Assign | ast.AnnAssign)
            or each.lineno > (before.end_lineno or 0) + 1
        )
        reason = next(following, None)
        if not (isinstance(reason, ast.Expr) and isinstance(reason.value, ast.Constant)):
            yield source.at(statement, f"{target.id} does not say what it is for")


def test_a_time_of_one_file_says_what_it_is_for() -> None:
    check(times_without_a_reason)


def test_times_that_rooms_or_tests_share_are_timings() -> None:
    """A constant is for one file, or one room, that nobody else has to agree with."""

    def shared(source: Source) -> Iterator[str]:
        for node in nodes(source):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    elsewhere = room_of(node.module) != room_of(source.module)
                    if is_time(alias.name) and elsewhere and alias.name not in SHARED_TIMES:
                        yield source.at(node, f"{alias.name} of another room: see runtime.timings")

    check(shared)
    patched = re.compile(r"setattr\([^)]*?\b\w*SECONDS\b")
    # Virtual seconds are no node's: a run of the simulator has limits of its own.
    refuse(
        [
            f"{path.relative_to(ROOT)}: {found[0]!r}: give the node other Timings"
            for path in sorted((ROOT / "tests").rglob("*.py"))
            for found in patched.finditer(path.read_text(encoding="utf-8"))
            if "runtime.simulation" not in found[0]
        ]
    )


def undocumented(source: Source, body: list[ast.stmt], owner: str) -> Iterator[str]:
    """Public classes and functions of a body that have no docstring, methods of public classes
    included.
    """
    for node in body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        name = f"{owner}{node.name}"
        decorators = {
            ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list
        }
        if not ast.get_docstring(node) and not decorators & {"overload", "setter", "deleter"}:
            yield source.at(node, f"{name} has no docstring")
        if isinstance(node, ast.ClassDef):
            yield from undocumented(source, node.body, f"{name}.")


def test_everything_public_says_what_it_promises() -> None:
    def rule(source: Source) -> Iterator[str]:
        if not ast.get_docstring(source.tree):
            yield source.at(1, "the module has no docstring")
        yield from undocumented(source, source.tree.body, "")

    check(rule)


def docstrings(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """All docstrings of a file's functions and classes, with their owners."""
    for node in nodes(source):
        if isinstance(node, ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            yield node, text


def test_no_docstring_only_points_elsewhere() -> None:
    elsewhere = re.compile(r"See `[^`]+`\.?")

    def rule(source: Source) -> Iterator[str]:
        for node, text in docstrings(source):
            if elsewhere.fullmatch(text.strip()):
                yield source.at(node, f"{text!r}: say what this one does")

    check(rule)


def test_texts_say_who_does_what() -> None:
    vague = re.compile(
        # Quoted, it is a key of `understudy stack --json`.
        r"\b(whoever|somebody|what (came|comes|became|becomes) of)\b"
        r"|(?<![`'\"])\btold\b(?![`'\"])",
        re.IGNORECASE,
    )

    def rule(source: Source) -> Iterator[str]:
        for number, line in enumerate(source.text.splitlines(), 1):
            if found := vague.search(line):
                yield source.at(number, f"{found.group()!r}: name the subject and what it does")

    check(rule)


def test_functions_fit_one_screen() -> None:
    def rule(source: Source) -> Iterator[str]:
        for node in functions(source.tree):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node):
                # What users read of a function may be as long as they need it.
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield source.at(
                    node, f"{node.name} has {lines} lines; {MAX_FUNCTION_LINES} are the limit"
                )

    check(rule)


def test_nothing_is_left_for_later() -> None:
    promise = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b")

    def rule(source: Source) -> Iterator[str]:
        for number, line in enumerate(source.text.splitlines(), 1):
            if found := promise.search(line):
                yield source.at(number, f"{found.group()}: do it, or open an issue")

    check(rule)


def modules_loaded_by(statements: str) -> set[str]:
    """What these statements load in a new process, besides trio and what it needs."""
    script = (
        f"import json, sys, trio; before = set(sys.modules); {statements}; "
        "print(json.dumps([*{*sys.modules} - before]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    loaded: set[str] = set(json.loads(done.stdout.splitlines()[-1]))
    return loaded


NEEDED_SELDOM = EXTRAS | {
    "asyncio",
    "email",
    "http",
    "multiprocessing",
    "runtime.dashboard",
    "runtime.elastic",
    "runtime.gateway",
    "runtime.simulation",
    "sqlite3",
    "tokenize",
    "unittest",
    "urllib.request",
}


@pytest.mark.parametrize(
    ("statements", "also"),
    [
        ("import actors, runtime", {"click", "runtime.command_line"}),
        ("import runtime; runtime.open_node", {"click", "runtime.command_line"}),
        (
            "import runtime; runtime.open_local_cluster",
            {"click", "runtime.command_line", "runtime.calls", "runtime.node"},
        ),
        (
            "from click.testing import CliRunner; from runtime.command_line.main import main; "
            "CliRunner().invoke(main, ['--help'])",
            {"actors", "attrs", "runtime.node", "runtime.calls", "runtime.local_cluster", "trio"},
        ),
        ("import runtime.command_line.node", set()),
        ("import runtime.command_line.status", {"runtime.node", "runtime.local_cluster"}),
    ],
    ids=["packages", "node", "local cluster", "help", "command node", "command status"],
)
def test_loading_loads_nothing_that_is_needed_seldom(statements: str, also: set[str]) -> None:
    refuse(
        [
            f"`{statements}` loads {name}: import it inside the function that needs it"
            for name in sorted(modules_loaded_by(statements) & (NEEDED_SELDOM | also))
        ]
    )


def test_the_packages_tell_type_checkers_that_they_are_typed() -> None:
    assert [package for package in PRODUCT if not (ROOT / package / "py.typed").is_file()] == []
