"""The same code without a part of it, in the same process: what the part costs while it does
nothing.

A row that compares a node with itself shows what it costs to use a part, and not what it costs to
have it. So here the code of the functions on the way of a call is compiled a second time, from
their own source, without what reads the attributes of the part: these are None, and what an `if`
never reaches then is left out. The two codes are put into the same functions in turn.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import attrs


@attrs.frozen
class _Twin:
    """A function that reads one of the names, with its own code and the one without them."""

    function: FunctionType
    own: CodeType
    without: CodeType

    def use(self, code: CodeType) -> None:
        """Let the function run this code."""
        # By name: to a checker a function that is an attribute is a method, whose code is fixed.
        setattr(self.function, "__code__", code)  # noqa: B010


class RemovedCode:
    """The functions of these modules that read one of these names, which are attributes, variables
    and parameters, and are None where the part is not used.
    """

    def __init__(self, modules: Iterable[ModuleType], names: frozenset[str]) -> None:
        self._modules = tuple(modules)
        self._names = names

    @cached_property
    def _twins(self) -> list[_Twin]:
        # When it is first used: a module that has such a part is imported by each process of tests.
        found = [twin for module in self._modules for twin in _twins(module, self._names)]
        assert found, f"no function reads {', '.join(sorted(self._names))}"
        return found

    @property
    def functions(self) -> list[str]:
        """The functions that have another code without the part."""
        return [twin.own.co_qualname for twin in self._twins]

    @contextmanager
    def removed(self) -> Iterator[None]:
        """In the block these functions run without the part, where they are called. What has begun
        before goes on as it is.
        """
        for twin in self._twins:
            twin.use(twin.without)
        try:
            yield
        finally:
            for twin in self._twins:
                twin.use(twin.own)


def _twins(module: ModuleType, names: frozenset[str]) -> Iterator[_Twin]:
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    changed = compile(without(tree, names), module.__file__, "exec")
    codes = dict(_codes(changed))
    for function in _functions(module):
        own = function.__code__
        other = codes.get((own.co_qualname, own.co_firstlineno))
        if other is None:
            other = _generated(function, names)
        # With other free variables it cannot take the place; there is none on the way of a call.
        if (
            other is not None
            and other.co_freevars == own.co_freevars
            and (other.co_code, other.co_consts) != (own.co_code, own.co_consts)
        ):
            yield _Twin(function, own, other)


def _generated(function: FunctionType, names: frozenset[str]) -> CodeType | None:
    """The code without the names of a function that attrs has written; None for any other."""
    if not function.__code__.co_filename.startswith("<attrs generated"):
        return None
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    changed = compile(without(tree, names), "<attrs>", "exec")
    return next((code for (name, _), code in _codes(changed) if name == function.__name__), None)


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that are defined in the module."""
    for found in vars(module).values():
        if getattr(found, "__module__", None) != module.__name__:
            continue
        members: Iterable[Any] = vars(found).values() if isinstance(found, type) else (found,)
        for member in members:
            plain = member.fget if isinstance(member, property) else member
            if isinstance(plain, FunctionType):
                yield plain


class _Without(ast.NodeTransformer):
    """Rewrites code as if these names were always None: they are neither set nor asked for."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def _is_named(self, node: ast.expr) -> bool:
        name = (
            node.attr
            if isinstance(node, ast.Attribute)
            else node.id
            if isinstance(node, ast.Name)
            else ""
        )
        return name in self._names

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        is_read = isinstance(node.ctx, ast.Load) and self._is_named(node)
        return _constant(None, node) if is_read else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_read = isinstance(node.ctx, ast.Load) and self._is_named(node)
        return _constant(None, node) if is_read else node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        return _nothing(node) if all(map(self._is_named, node.targets)) else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        return _nothing(node) if self._is_named(node.target) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if not all(_is_constant(one, None) for one in (node.left, *node.comparators)):
            return node
        if all(isinstance(one, ast.Is) for one in node.ops):
            return _constant(True, node)
        return _constant(False, node) if isinstance(node.ops[0], ast.IsNot) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return _constant(not node.operand.value, node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        is_and = isinstance(node.op, ast.And)
        values: list[ast.expr] = []
        for value in node.values:
            is_last = value is node.values[-1]
            if not is_last and isinstance(value, ast.Constant) and bool(value.value) is is_and:
                # It decides nothing. The last one may be the result: `x or None`.
                continue
            values.append(value)
            if isinstance(value, ast.Constant):
                # What stands behind it is never asked for.
                break
        both = ast.BoolOp(node.op, values)
        return values[0] if len(values) == 1 else ast.copy_location(both, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            left = node.body if node.test.value else node.orelse
            return left or _nothing(node)
        return node


def without(tree: ast.Module, names: frozenset[str]) -> ast.Module:
    changed: ast.Module = _Without(names).visit(tree)
    return ast.fix_missing_locations(changed)


def _nothing(node: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Pass(), node)


def _constant(value: bool | None, node: ast.expr) -> ast.Constant:
    return ast.copy_location(ast.Constant(value), node)


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


class InstructionCount:
    """Counts the instructions of Python's interpreter that run in a block, in functions that are
    called or go on in it, those of this module apart. Unlike time it does not depend on what else
    the machine does.
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> InstructionCount:
        # Python 3.12 counts instructions only if a frame has asked for it before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _begin(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "opcode":
            self.count += 1
        return self._step
