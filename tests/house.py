"""The product as its syntax trees show it: files, imports, classes, and the counts that `make
house` prints.

`tests/test_house.py` holds the rules; here is what they look at. Counted are the files of
`actors`, `runtime` and `understudy`, without tests.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import attrs

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("actors", "runtime", "understudy")

MADE = {"_build", "errors"}
"""Folders of docs/ that are written when the site is built."""


def pages() -> list[Path]:
    """The pages of docs/ that people write."""
    found = (ROOT / "docs").rglob("*.md")
    return sorted(page for page in found if not MADE & set(page.parts[len(ROOT.parts) :]))


SMALL_LINES = 70
"""A module of fewer lines than that, which one module of its own room imports and no other, is a
part of that one.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class Source:
    """One file of the product: its path below the root, its dotted module name, its text and its
    tree.
    """

    path: str
    module: str
    text: str
    tree: ast.Module = attrs.field(repr=False)

    @property
    def is_face(self) -> bool:
        """True for the `__init__` or `__main__` of a package: it defines nothing."""
        return self.path.endswith(("/__init__.py", "/__main__.py"))

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


@functools.cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the product, read when the first test asks for them: not by each process
    that collects tests.
    """
    found = []
    for path in sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py")):
        relative = path.relative_to(ROOT)
        parts = relative.with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(relative.as_posix(), module, text, ast.parse(text, str(relative))))
    return tuple(found)


@functools.cache
def modules() -> set[str]:
    """The dotted names of all modules of the product."""
    return {source.module for source in sources()}


@functools.cache
def nodes(source: Source) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree."""
    return tuple(ast.walk(source.tree))


@functools.cache
def imports(source: Source) -> tuple[Import, ...]:
    """All imports of a file, wherever they stand; `from package import module` counts as an import
    of `package.module`.
    """
    package = (
        source.module if source.path.endswith("/__init__.py") else source.module.rpartition(".")[0]
    )

    def visit(
        node: ast.AST, when: Literal["at import", "in a function", "for types"]
    ) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(
                [
                    *package.split(".")[: len(package.split(".")) - node.level + 1],
                    *filter(None, [node.module]),
                ]
            )
            base = base if node.level else node.module or ""
            for target in {
                name if (name := f"{base}.{alias.name}") in modules() else base
                for alias in node.names
            }:
                yield Import(target, node.lineno, when)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in {
            "TYPE_CHECKING",
            "typing.TYPE_CHECKING",
        }:
            for statement in node.body:
                yield from visit(statement, "for types")
            for statement in node.orelse:
                yield from visit(statement, when)
        else:
            # No expression has an import in it.
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                    yield from visit(child, "in a function" if isinstance(node, Function) else when)

    return tuple(visit(source.tree, "at import"))


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function of a tree, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, by Tarjan's algorithm ("Depth-First Search and
    Linear Graph Algorithms", 1972).
    """
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in numbers:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], numbers[target])
        if lowest[module] == numbers[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(graph):
        if module not in numbers:
            visit(module)
    return found


def import_graph() -> dict[str, set[str]]:
    """Which modules of the product each of them imports, at import, inside functions and for types
    alike. Faces of packages gather only.
    """
    modules = {source.module for source in sources() if not source.is_face}
    return {
        source.module: {found.target for found in imports(source) if found.target in modules}
        - {source.module}
        for source in sources()
        if not source.is_face
    }


def small_modules() -> list[tuple[Source, str]]:
    """Modules below `SMALL_LINES` that have one importer, which is in the same room; with
    its name.
    """
    importers: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        for found in imports(source):
            importers[found.target].add(source.module)
    small = []
    for source in sources():
        if (
            source.is_face
            or len(source.text.splitlines()) >= SMALL_LINES
            or len(importers[source.module]) != 1
        ):
            continue
        (importer,) = importers[source.module]
        if importer.rpartition(".")[0] == source.module.rpartition(".")[0]:
            small.append((source, importer))
    return small


def class_places() -> dict[str, list[str]]:
    """Where each class name is defined at the top of a module; a leading underscore makes no other
    name of it.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(source.at(node, node.name))
    return places


OTHERS_PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]")
"""A private name of anything but the object itself."""

NAMED_TUPLES = {"_asdict", "_fields", "_replace"}
"""Methods of named tuples: public, in spite of their names."""


def privates_of(tree: Iterable[ast.AST]) -> Iterator[str]:
    """The private attributes and functions that these nodes of a tree define."""
    for node in tree:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, Function):
            name = node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        else:
            continue
        if name.startswith("_") and not name.endswith("_"):
            yield name


def private_reaches() -> list[tuple[str, int, str]]:
    """Where tests use a private name of another room than their own: path, line and name."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        parts = source.module.split(".")
        for name in privates_of(nodes(source)):
            rooms[name].add(parts[1] if parts[0] == "runtime" and len(parts) > 1 else parts[0])
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        relative = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        # Most have none, and need not be parsed.
        if not OTHERS_PRIVATE.search(text):
            continue
        tree = tuple(ast.walk(ast.parse(text)))
        modules = {
            alias.asname or alias.name.partition(".")[0]
            for node in tree
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
            if isinstance(node, ast.Import) or (node.module or "").startswith("trio.")
        }
        own = {"self", "cls", *modules}
        for node in tree:
            if (
                isinstance(node, ast.Attribute)
                and node.attr not in NAMED_TUPLES
                and relative.parts[1] not in rooms.get(node.attr, {relative.parts[1]})
                and not (isinstance(node.value, ast.Name) and node.value.id in own)
            ):
                found.append((relative.as_posix(), node.lineno, node.attr))
    return found


def is_narrowing(node: ast.Assert) -> bool:
    """True for an assertion that only tells a type checker what is not None, or of which class
    something is.
    """
    test = node.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
        return isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


def comment_lines(text: str) -> int:
    """Lines that are only a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens
    )


def parameters(function: Function) -> int:
    """How many parameters a function has, without `self` and `cls`."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def counts() -> dict[str, str]:
    """What `make house` prints, by name."""
    lengths = [(len(source.text.splitlines()), source.path) for source in sources()]
    lines = sum(length for length, _ in lengths)
    asserts = [
        node for source in sources() for node in nodes(source) if isinstance(node, ast.Assert)
    ]
    comments = sum(comment_lines(source.text) for source in sources())
    longest = max(
        (parameters(node), source.at(node, node.name))
        for source in sources()
        for node in functions(source.tree)
    )
    twice = [name for name, places in class_places().items() if len(places) > 1]
    wide = sum(len(line) > 100 for source in sources() for line in source.text.splitlines())
    return {
        "files": f"{len(sources())}",
        "lines": f"{lines:,}",
        "mean length of a file": f"{lines / len(sources()):.0f}",
        "longest file": max((len(source.text.splitlines()), source.path) for source in sources())[
            1
        ],
        "import circles between files": f"{len(circles(import_graph()))}",
        f"modules below {SMALL_LINES} lines with one importer, in their "
        "room": f"{len(small_modules())}",
        "class names defined twice": f"{len(twice)}",
        "lines that are comments": f"{100 * comments / lines:.1f} %",
        "assertions of invariants per 1,000 "
        "lines": f"{1000 * sum(not is_narrowing(node) for node in asserts) / lines:.1f}",
        "assertions in all per 1,000 lines": f"{1000 * len(asserts) / lines:.1f}",
        "longest parameter list": f"{longest[0]}, {longest[1]}",
        "lines over 100 columns": f"{wide:,}",
        "uses in tests of private names of other rooms": f"{len(private_reaches())}",
    }


def main() -> None:
    """Print the counts, one a line."""
    for name, value in counts().items():
        sys.stdout.write(f"{name:<62} {value}\n")


if __name__ == "__main__":
    main()
