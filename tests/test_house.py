"""The architecture, held by the syntax trees of the product: who may import whom, where time and chance come in, how large things grow.

Each rule collects all its violations and names them as file:line. A rule that stands in the way of something better is changed here,
in the open, by the same change that needs it.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("actors", "runtime")

CORE = {"attr", "attrs", "cbor2", "click", "trio"}
"""Third-party modules of a plain install. `attr` is attrs by its older name."""

PLUGINS = {"runtime.simulation.pytest_plugin": "pytest", "runtime.torchrun.plugin": "torch"}
"""Modules that nothing but the program of this name imports, which finds them by their entry point."""

EXTRAS = {"h11", "hypercorn", "numpy", "opentelemetry", "prometheus_client", "rich", "starlette"}
"""Third-party modules of the extras in pyproject.toml: imported inside the function that needs them, or not at all."""

SANS_IO = (
    "actors/adoption.py",
    "actors/dynamic_restarts.py",
    "actors/errors.py",
    "actors/intensity.py",
    "actors/messages.py",
    "actors/options.py",
    "actors/restarts.py",
    "actors/retry.py",
    "actors/supervision.py",
    "runtime/calls/credit.py",
    "runtime/calls/format.py",
    "runtime/calls/incoming.py",
    "runtime/calls/outgoing.py",
    "runtime/calls/records.py",
    "runtime/elastic/budget.py",
    "runtime/elastic/failures.py",
    "runtime/elastic/machine.py",
    "runtime/elastic/ranks.py",
    "runtime/elastic/settings.py",
    "runtime/elastic/watchdog.py",
    "runtime/groups/holdings.py",
    "runtime/groups/records.py",
    "runtime/groups/view.py",
    "runtime/links/reassembly.py",
    "runtime/hosting/admission.py",
    "runtime/hosting/applied.py",
    "runtime/membership/applied_keys.py",
    "runtime/isolation/orders.py",
    "runtime/links/session.py",
    "runtime/links/settling.py",
    "runtime/membership/lease.py",
    "runtime/links/spin.py",
    "runtime/links/transfers.py",
    "runtime/observation/drawing.py",
    "runtime/observation/tree.py",
    "runtime/processes/output.py",
    "runtime/processes/protocol.py",
    "runtime/references/listing.py",
    "runtime/references/memory/budget.py",
    "runtime/references/memory/ends.py",
    "runtime/references/memory/place.py",
    "runtime/rendezvous/errors.py",
    "runtime/rendezvous/file_format.py",
    "runtime/rendezvous/file_leases.py",
    "runtime/rendezvous/interface.py",
    "runtime/rendezvous/machine.py",
    "runtime/rendezvous/parameters.py",
    "runtime/rendezvous/state.py",
    "runtime/simulation/history.py",
    "runtime/simulation/linearizability.py",
    "runtime/simulation/oracle.py",
    "runtime/simulation/report.py",
    "runtime/simulation/trace.py",
    "runtime/references/addresses.py",
    "runtime/references/claims.py",
    "runtime/references/hand_overs.py",
    "runtime/references/letters.py",
    "runtime/references/holds.py",
    "runtime/store/etcd/markers.py",
    "runtime/store/etcd/refusals.py",
    "runtime/store/etcd/translation.py",
    "runtime/store/history.py",
    "runtime/store/memory.py",
    "runtime/store/rows.py",
    "runtime/supervision/loads.py",
    "runtime/supervision/placement.py",
    "runtime/torchrun/membership.py",
    "runtime/torchrun/settings.py",
    "runtime/watching/tables.py",
    "runtime/wire/*.py",
)
"""The state machines: driven by the caller with bytes, events and the time as a number. A new one is named here."""

IO_MODULES = {"asyncio", "multiprocessing", "os", "select", "selectors", "signal", "socket", "ssl", "subprocess", "threading", "trio"}

FACE = "__init__"
ROOMS = (
    "calls",
    "elastic",
    "groups",
    "hosting",
    "isolation",
    "membership",
    "observation",
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
        "checking",
        "environment",
        "exception_groups",
        "faults",
        "limited_log",
        "lifetime",
        "liveness",
        "system_calls",
        "user_errors",
        "version",
    ),
    ("wire",),
    ("links",),
    ROOMS,
    ("node",),
    ("opening",),
    ("testing",),
    ("simulation",),
    ("announcements", "local_cluster"),
    ("demonstration",),
    (FACE,),
    ("command_line",),
)
"""Lowest first: a module imports from its own floor and those below. `__init__` is the face of `runtime`: it gathers what is public."""

MAX_FUNCTION_LINES = 70

Function = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class Source:
    """One file of the product: its path below the root, its dotted module name, its text and its tree."""

    path: str
    module: str
    text: str
    tree: ast.Module = attrs.field(repr=False)

    def at(self, node: ast.stmt | ast.expr | int, what: str) -> str:
        """A violation as people and editors read it."""
        return f"{self.path}:{node if isinstance(node, int) else node.lineno}: {what}"


@attrs.frozen
class Import:
    """One imported module, resolved to its absolute dotted name, and when the import runs."""

    target: str
    line: int
    when: Literal["at import", "in a function", "for types"]

    @property
    def top(self) -> str:
        """The top-level package."""
        return self.target.partition(".")[0]


def sources() -> list[Source]:
    """Every Python file of the product."""
    found = []
    for path in sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py")):
        relative = path.relative_to(ROOT)
        parts = relative.with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(relative.as_posix(), module, text, ast.parse(text, str(relative))))
    return found


SOURCES = sources()
MODULES = {source.module for source in SOURCES}


def imports(source: Source) -> Iterator[Import]:
    """All imports of a file, wherever they stand; `from package import module` counts as an import of `package.module`."""
    package = source.module if source.path.endswith("/__init__.py") else source.module.rpartition(".")[0]

    def visit(node: ast.AST, when: Literal["at import", "in a function", "for types"]) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [node.module])])
            base = base if node.level else node.module or ""
            for target in {name if (name := f"{base}.{alias.name}") in MODULES else base for alias in node.names}:
                yield Import(target, node.lineno, when)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for statement in node.body:
                yield from visit(statement, "for types")
            for statement in node.orelse:
                yield from visit(statement, when)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, "in a function" if isinstance(node, Function | ast.Lambda) else when)

    return visit(source.tree, "at import")


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function of a tree, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def refuse(violations: list[str]) -> None:
    """Fail the test with one violation a line."""
    if violations:
        pytest.fail("\n" + "\n".join(violations), pytrace=False)


def check(rule: Callable[[Source], Iterator[str]], *patterns: str) -> None:
    """Apply a rule to the files that match a pattern, or to the whole product. A pattern without a file is a violation: the file moved."""
    violations = [f"{pattern}: no such file" for pattern in patterns if not any(fnmatch(source.path, pattern) for source in SOURCES)]
    for source in SOURCES:
        if not patterns or any(fnmatch(source.path, pattern) for pattern in patterns):
            violations.extend(rule(source))
    refuse(violations)


def test_actors_never_imports_runtime() -> None:
    def rule(source: Source) -> Iterator[str]:
        return (source.at(found.line, f"imports {found.target}") for found in imports(source) if found.top == "runtime")

    check(rule, "actors/*.py")


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
    calls = {"os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid3", "uuid.uuid4", "uuid.uuid5"} | {
        f"{prefix}{name}" for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today") for prefix in ("", "datetime.")
    }

    def rule(source: Source) -> Iterator[str]:
        if source.module == "runtime.environment":
            return
        for found in imports(source):
            if source.module.startswith("runtime.simulation.") and found.target == "random":
                # It makes environments, from generators with seeds; see the next test.
                continue
            if found.top in sources_of_chance:
                yield source.at(found.line, f"imports {found.target}; ask the Environment")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in calls:
                yield source.at(node, f"uses {ast.unparse(node)}; ask the Environment")
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in calls:
                        yield source.at(node, f"imports {node.module}.{alias.name}; ask the Environment")

    check(rule)


def test_what_is_simulated_depends_on_nothing_but_seeds() -> None:
    outside = {"threading", "socket", "subprocess", "multiprocessing", "signal", "select", "asyncio", "concurrent"}

    def rule(source: Source) -> Iterator[str]:
        for found in imports(source):
            if found.top in outside:
                yield source.at(found.line, f"imports {found.target}: a simulation has nothing outside of itself")
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Attribute):
                continue
            text = ast.unparse(node)
            if text.startswith("random.") and not text.startswith("random.Random"):
                yield source.at(node, f"uses {text}: the generator that all share; make one with a seed")
            elif text.startswith(("trio.to_thread", "trio.from_thread", "trio.SystemClock")) or text in (
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
    for source in SOURCES:
        here = room_of(source.module)
        for found in imports(source):
            there = room_of(found.target)
            if source.module.startswith("runtime.") and found.top == "runtime" and here != there and {here, there} <= set(ROOMS):
                uses[here].setdefault(there, source.at(found.line, f"{here} imports {found.target}"))
    ring: list[str] = []
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError as error:
        ring = error.args[1]
    refuse([uses[user][used] for used, user in itertools.pairwise(ring)])


def test_a_plain_install_has_all_that_is_imported() -> None:
    known = set(sys.stdlib_module_names) | set(PRODUCT) | CORE

    def rule(source: Source) -> Iterator[str]:
        for found in imports(source):
            allowed = known if found.when == "at import" else known | EXTRAS
            if found.top == PLUGINS.get(source.module):
                continue
            if found.top not in allowed:
                hint = "an extra: import it inside the function that needs it" if found.top in EXTRAS else "not a dependency"
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
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
                yield source.at(node, f"calls {node.func.id}")

    check(rule)


def test_no_module_keeps_state_of_its_own() -> None:
    containers = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)
    makers = {"dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter", "WeakKeyDictionary", "WeakValueDictionary", "count"}

    def is_mutable(value: ast.expr | None) -> bool:
        if isinstance(value, ast.Call):
            return ast.unparse(value.func).rpartition(".")[2] in makers
        return isinstance(value, containers)

    def rule(source: Source) -> Iterator[str]:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Global):
                yield source.at(node, f"global {', '.join(node.names)}")
        for node in source.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and is_mutable(node.value):
                targets = [ast.unparse(target) for target in (node.targets if isinstance(node, ast.Assign) else [node.target])]
                for target in targets:
                    # A table in capitals is a constant: it is read, and type checkers refuse to rebind it.
                    if target != "__all__" and not target.isupper():
                        yield source.at(node, f"{target} is mutable and belongs to no object")

    check(rule)


def undocumented(source: Source, body: list[ast.stmt], owner: str) -> Iterator[str]:
    """Public classes and functions of a body that have no docstring, methods of public classes included."""
    for node in body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        name = f"{owner}{node.name}"
        decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
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


def test_functions_fit_one_screen() -> None:
    def rule(source: Source) -> Iterator[str]:
        for node in functions(source.tree):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield source.at(node, f"{node.name} has {lines} lines; {MAX_FUNCTION_LINES} are the limit")

    check(rule)


def test_nothing_is_left_for_later() -> None:
    promise = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b")

    def rule(source: Source) -> Iterator[str]:
        for number, line in enumerate(source.text.splitlines(), 1):
            if found := promise.search(line):
                yield source.at(number, f"{found.group()}: do it, or open an issue")

    check(rule)


def test_importing_the_packages_loads_nothing_that_a_plain_program_does_not_need() -> None:
    script = "import json, sys, trio; before = set(sys.modules); import actors, runtime; print(json.dumps([*{*sys.modules} - before]))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded: set[str] = set(json.loads(done.stdout))
    unwanted = EXTRAS | {"asyncio", "click", "email", "http", "multiprocessing", "sqlite3", "tokenize", "unittest", "urllib.request"}
    unwanted |= {"runtime.command_line", "runtime.elastic", "runtime.simulation"}
    refuse([f"`import actors, runtime` loads {name}: import it inside the function that needs it" for name in sorted(loaded & unwanted)])


def test_both_packages_tell_type_checkers_that_they_are_typed() -> None:
    assert [package for package in PRODUCT if not (ROOT / package / "py.typed").is_file()] == []
