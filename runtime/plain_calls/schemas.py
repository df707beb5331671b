"""Parameters and results of methods by their annotations: JSON Schema of them, and arguments that
came as plain data turned into what the annotations say.

Runs where the actor is hosted, where its class and messages are imported. What an annotation does
not say, or what cannot be found out about it, is taken as it came.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Union, cast
from uuid import UUID

import attrs

from actors.converters import converter_of
from actors.errors import BadArgumentsError
from actors.messages import import_path, message_type
from actors.method import MethodDefinition
from actors.reference import taken
from runtime.plain_calls.plain_values import MOST_DEPTH, plain
from runtime.user_errors import guarded, summary_of
from runtime.wire.standard_types import TEXTS, named_tuple_fields

Schema = dict[str, object]

MOST_DEFINITIONS = 1000
"""Messages in the description of one node's methods."""

BYTES: Schema = {
    "type": "object",
    "properties": {"$bytes": {"type": "string", "contentEncoding": "base64"}},
    "required": ["$bytes"],
    "additionalProperties": False,
}

_LISTS = (list, Sequence, Collection, deque)
_SETS = (set, frozenset)
_MAPPINGS = (dict, Mapping, OrderedDict, Counter, defaultdict)


def _numbers(kind: str, *names: str) -> Schema:
    """An object with exactly these numbers."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


_SIMPLE: dict[object, Schema] = {
    NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: BYTES,
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    timedelta: {"type": "number", "description": "seconds"},
    Decimal: {"type": "string", "format": "decimal"},
    UUID: {"type": "string", "format": "uuid"},
    dict: {"type": "object"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    frozenset: {"type": "array", "uniqueItems": True},
    deque: {"type": "array"},
    OrderedDict: {"type": "object"},
    Counter: {"type": "object"},
    defaultdict: {"type": "object"},
    complex: _numbers("number", "real", "imag"),
    range: _numbers("integer", "start", "stop", "step"),
    Path: {"type": "string", "format": "path"},
    **{cls: {"type": "string"} for cls in TEXTS},
}


def _fraction(text: str) -> Fraction:
    # Fraction itself also takes an exponent, and computes a power of ten of any size for it.
    if not re.fullmatch(r"-?\d{1,2000}(/\d{1,2000})?", text):
        raise ValueError("a fraction is written as 1/3, with at most 2,000 digits each")
    return Fraction(text)


_READERS: dict[object, Callable[[Any], object]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
    Path: Path,
    Fraction: _fraction,
    **{cls: cls for cls in TEXTS if cls is not Fraction},
}
"""Types that plain data gives as text."""


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function or class, as far as they can be found out."""
    # They are the user's code: to look at them runs it, and may raise anything.
    return guarded(lambda: typing.get_type_hints(function, include_extras=True), lambda error: {})


class SchemaWriter:
    """Writes JSON Schema; messages are collected in `definitions`, under their names, and referred
    to with `prefix` before these.
    """

    def __init__(self, prefix: str = "#/components/schemas/") -> None:
        self.definitions: dict[str, Schema] = {}
        self._prefix = prefix
        self._names: dict[type, str] = {}

    def method(self, definition: MethodDefinition) -> tuple[Schema, Schema]:
        """Return the schema of a method's parameters, as an object, and that of its result, or of
        one item of a stream.
        """
        hints = hints_of(definition.function)
        properties: dict[str, object] = {}
        required: list[str] = []
        rest = False
        parameters = guarded(
            lambda: list(definition.signature.parameters.values()), lambda error: []
        )
        for one in parameters:
            if one.kind is one.VAR_KEYWORD:
                rest = True
            elif one.kind is not one.VAR_POSITIONAL:
                schema = self.of(hints.get(one.name, Any))
                if one.default is one.empty:
                    required.append(one.name)
                else:
                    schema = _with_default(schema, one.default)
                properties[one.name] = schema
        found: Schema = {"type": "object", "properties": properties}
        if required:
            found["required"] = required
        if not rest:
            found["additionalProperties"] = False
        result = hints.get("return", Any)
        if definition.stream:
            parts = typing.get_args(result)
            result = parts[0] if parts else Any
        return found, self.of(result)

    def of(self, annotation: Any, depth: int = 0) -> Schema:
        """Return the schema of an annotation; `{}`, which fits anything, if it is unknown."""
        if depth > MOST_DEPTH:
            return {}
        simple = _SIMPLE.get(annotation) if isinstance(annotation, type) else None
        if simple is not None:
            return dict(simple)
        if annotation is None:
            return {"type": "null"}
        origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is Annotated:
            return self.of(parts[0], depth + 1)
        if origin is Union or origin is types.UnionType:
            return {"anyOf": [self.of(part, depth + 1) for part in parts]}
        if origin is Literal:
            return {"enum": [_plain_or_none(part) for part in parts]}
        if origin is tuple and parts and parts[-1] is not Ellipsis:
            rows = [self.of(part, depth + 1) for part in parts]
            return {
                "type": "array",
                "prefixItems": rows,
                "minItems": len(rows),
                "maxItems": len(rows),
            }
        if origin in _LISTS or origin is tuple:
            return {"type": "array", "items": self.of(parts[0] if parts else Any, depth + 1)}
        if origin in _SETS:
            items = self.of(parts[0] if parts else Any, depth + 1)
            return {"type": "array", "uniqueItems": True, "items": items}
        if origin in _MAPPINGS:
            if len(parts) == 2 and parts[0] is str:
                return {"type": "object", "additionalProperties": self.of(parts[1], depth + 1)}
            return {"type": "object"}
        if isinstance(annotation, type):
            return self._of_class(annotation, depth)
        return {}

    def _of_class(self, cls: type, depth: int) -> Schema:
        if issubclass(cls, Enum):
            return {"enum": [_plain_or_none(member.value) for member in cls]}
        described = message_type(cls)
        names = named_tuple_fields(cls)
        if described is not None and not described.is_exception:
            fields = list(described.fields)
        elif names is not None:
            fields = [(each, each) for each in names]
        else:
            return {}
        name = self._names.get(cls)
        if name is None:
            if len(self.definitions) >= MOST_DEFINITIONS:
                return {}
            # With the module: descriptions of several nodes are put together.
            name = self._names[cls] = import_path(cls).replace(":", ".")
            definition: Schema = {"type": "object"}
            # Entered before its fields: a message may have one of its own type.
            self.definitions[name] = definition
            hints = hints_of(cls)
            definition["properties"] = {
                alias: self.of(hints.get(field, Any), depth + 1) for field, alias in fields
            }
            wanted = _wanted(cls)
            if wanted:
                definition["required"] = wanted
        return {"$ref": f"{self._prefix}{name}"}


def _with_default(schema: Schema, default: object) -> Schema:
    found = _plain_or_none(default)
    # A default that plain data cannot say, or that is None beside other types, is not shown.
    return schema if found is None else {**schema, "default": found}


def _plain_or_none(value: object) -> object:
    found = guarded(lambda: plain(value, "default", 0), lambda error: None)
    return found if isinstance(found, bool | int | float | str | NoneType) else None


def _wanted(cls: type) -> list[str]:
    """The arguments that a message cannot be made without."""
    signature = guarded(lambda: inspect.signature(cls), lambda error: None)
    if signature is None:
        return []
    return [
        one.name
        for one in signature.parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


# Arguments: from plain data to what annotations say.


class _MisfitError(Exception):
    """A value is not what its annotation says."""


@attrs.frozen
class PlainArguments:
    """The arguments of a call, read by the annotations of its method."""

    args: tuple[object, ...]
    kwargs: dict[str, object]


def arguments_of(actor: str, definition: MethodDefinition, body: object) -> PlainArguments:
    """The arguments in the body of a request: a list has them by position, a dictionary by name;
    one with no other keys than "args" (a list) and "kwargs" (a dictionary) has both.

    Raises BadArgumentsError, which names the parameter, for what does not fit the method.
    """
    args, kwargs = _parts(actor, definition, body)
    try:
        bound = definition.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise BadArgumentsError(
            f"{actor}.{definition.name} was not called: {error}; it takes "
            f"{taken(definition.signature)}",
            actor=actor,
            method=definition.name,
        ) from None
    hints = hints_of(definition.function)
    parameters = definition.signature.parameters
    try:
        for name, value in bound.arguments.items():
            hint = hints.get(name, Any)
            kind = parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(
                    converted(hint, one, f"{name}[{index}]") for index, one in enumerate(value)
                )
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {
                    key: converted(hint, one, key) for key, one in value.items()
                }
            else:
                bound.arguments[name] = converted(hint, value, name)
    except _MisfitError as error:
        raise BadArgumentsError(
            f"{actor}.{definition.name} was not called: argument {error}",
            actor=actor,
            method=definition.name,
        ) from None
    return PlainArguments(bound.args, bound.kwargs)


def _parts(
    actor: str, definition: MethodDefinition, body: object
) -> tuple[list[object], dict[str, object]]:
    if body is None:
        return [], {}
    if isinstance(body, list):
        return cast("list[object]", body), {}
    if not isinstance(body, dict):
        raise BadArgumentsError(
            f"{actor}.{definition.name} was not called: the body is a list of arguments, or an "
            f"object of arguments by name, not {type(body).__name__}",
            actor=actor,
            method=definition.name,
        )
    given = cast("dict[str, object]", body)
    args, kwargs = given.get("args", []), given.get("kwargs", {})
    if (
        given
        and given.keys() <= {"args", "kwargs"}
        and isinstance(args, list)
        and isinstance(kwargs, dict)
        # A method may have parameters of these names itself.
        and not given.keys() <= definition.signature.parameters.keys()
    ):
        return cast("list[object]", args), cast("dict[str, object]", kwargs)
    return [], given


def converted(annotation: Any, value: Any, path: str, depth: int = 0) -> object:
    """The plain value as its annotation says. Raises `_MisfitError`, which names the path."""
    if annotation is Any or annotation is object or depth > MOST_DEPTH:
        return value
    if annotation is None or annotation is NoneType:
        return _checked(value, value is None, "null", path)
    if annotation in (bool, str, bytes):
        return _checked(value, type(value) is annotation, annotation.__name__, path)
    if annotation is int:
        return _checked(value, type(value) is int, "a whole number", path)
    if annotation is float:
        _checked(value, type(value) in (int, float), "a number", path)
        return _made(lambda: float(value), path)
    if annotation is timedelta:
        _checked(value, type(value) in (int, float), "a number of seconds", path)
        return _made(lambda: timedelta(seconds=value), path)
    reader = _READERS.get(annotation) if isinstance(annotation, type) else None
    if reader is not None:
        _checked(value, type(value) is str, "text", path)
        return _made(lambda: reader(value), path)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return converted(parts[0], value, path, depth + 1)
    if origin is Union or origin is types.UnionType:
        return _converted_to_one(parts, value, path, depth)
    if origin is Literal:
        found = [part for part in parts if _plain_or_none(part) == value]
        return found[0] if found else _misfit(f"{path} is one of {parts}, not {value!r:.100}")
    kind = origin if isinstance(origin, type) else annotation
    if kind in _LISTS or kind in _SETS or kind is tuple:
        return _converted_list(kind, parts, value, path, depth)
    if kind in _MAPPINGS:
        _checked(value, type(value) is dict, "an object", path)
        inner = int if kind is Counter else parts[1] if len(parts) == 2 else Any
        items = {
            key: converted(inner, one, f"{path}[{key!r}]", depth + 1) for key, one in value.items()
        }
        # The factory of a defaultdict is code, of which a request says nothing.
        return _MAKERS[kind](items) if kind in _MAKERS else items
    if kind in (complex, range):
        return _converted_numbers(kind, value, path)
    return _converted_to_class(kind, value, path, depth)


def _converted_to_one(parts: tuple[Any, ...], value: object, path: str, depth: int) -> object:
    misfits: list[str] = []
    for part in parts:
        try:
            return converted(part, value, path, depth + 1)
        except _MisfitError as error:
            misfits.append(str(error))
    return _misfit("; or ".join(misfits))


def _converted_list(kind: Any, parts: tuple[Any, ...], value: Any, path: str, depth: int) -> object:
    _checked(value, type(value) is list, "an array", path)
    if kind is tuple and parts and parts[-1] is not Ellipsis:
        _checked(value, len(value) == len(parts), f"an array of {len(parts)}", path)
        return tuple(
            converted(part, one, f"{path}[{index}]", depth + 1)
            for index, (part, one) in enumerate(zip(parts, value, strict=True))
        )
    inner = parts[0] if parts else Any
    items = [
        converted(inner, one, f"{path}[{index}]", depth + 1) for index, one in enumerate(value)
    ]
    if kind in (tuple, deque):
        return kind(items)
    if kind is set:
        return _made(lambda: set(items), path)
    if kind is frozenset:
        return _made(lambda: frozenset(items), path)
    return items


def _without_factory(items: dict[str, object]) -> defaultdict[str, object]:
    return defaultdict(None, items)


_MAKERS: dict[object, Callable[[dict[str, Any]], object]] = {
    OrderedDict: OrderedDict,
    Counter: Counter,
    defaultdict: _without_factory,
}
"""Of mappings that are no plain dicts."""


def _converted_numbers(kind: Any, value: Any, path: str) -> object:
    """A complex number or a range, from an object with the numbers that make it."""
    names = ("real", "imag") if kind is complex else ("start", "stop", "step")
    _checked(
        value,
        type(value) is dict and value.keys() == set(names),
        f"an object with {', '.join(names)}",
        path,
    )
    part = float if kind is complex else int
    numbers: list[Any] = [converted(part, value[name], f"{path}.{name}") for name in names]
    return _made(lambda: kind(*numbers), path)


def _converted_to_named_tuple(
    cls: Any, names: tuple[str, ...], value: Any, path: str, depth: int
) -> object:
    _checked(value, type(value) is dict, f"an object with the fields of {cls.__name__}", path)
    unknown = sorted(value.keys() - set(names))
    if unknown:
        _misfit(f"{path} has fields that {cls.__name__} has not: {', '.join(unknown)[:200]}")
    hints = hints_of(cls)
    fields = {
        key: converted(hints.get(key, Any), one, f"{path}.{key}", depth + 1)
        for key, one in value.items()
    }
    return _made(lambda: cls(**fields), path)


def _converted_to_class(cls: Any, value: Any, path: str, depth: int) -> object:
    if not isinstance(cls, type):
        return value
    if issubclass(cls, Enum):
        found = [member for member in cls if _plain_or_none(member.value) == value]
        return found[0] if found else _misfit(f"{path} is no {cls.__name__}: {value!r:.100}")
    names = named_tuple_fields(cls)
    if names is not None:
        return _converted_to_named_tuple(cls, names, value, path, depth)
    converter = converter_of(cls)
    if converter is not None:
        return _made(lambda: converter.from_plain(value), path)
    described = message_type(cls)
    if described is None or described.is_exception:
        return value
    _checked(value, type(value) is dict, f"an object with the fields of {cls.__name__}", path)
    aliases = {alias: field for field, alias in described.fields}
    unknown = sorted(value.keys() - aliases.keys())
    if unknown:
        _misfit(f"{path} has fields that {cls.__name__} has not: {', '.join(unknown)[:200]}")
    hints = hints_of(cls)
    fields = {
        key: converted(hints.get(aliases[key], Any), one, f"{path}.{key}", depth + 1)
        for key, one in value.items()
    }
    # The constructor and its validators are the user's code.
    return _made(lambda: cls(**fields), path)


def _made(make: Callable[[], object], path: str) -> object:
    return guarded(make, lambda error: _misfit(f"{path}: {summary_of(error)}"))


def _checked(value: Any, fits: bool, what: str, path: str) -> Any:
    if not fits:
        _misfit(f"{path} is {what}, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r:.100}"


def _misfit(text: str) -> typing.NoReturn:
    raise _MisfitError(text)
