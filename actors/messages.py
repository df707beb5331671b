"""Types registered to cross the wire besides plain data.

`@message` marks an attrs class, a dataclass, a pydantic model or an exception class as data that
peers may send each other. The mark lives on the class itself: there is no registry to fill, and a
class is found again by its import path (`module:qualified.name`) on the receiving side, which
accepts it only if it carries the mark there too. Fields travel by name, so that a type may gain
fields with defaults between two versions of a program; unknown fields are ignored.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import attrs

from actors.class_names import module_name, own_attributes, qualified_name

C = TypeVar("C", bound=type)

_MARK = "__understudy_message__"

MAIN_ALIAS = "__mp_main__"
"""The name under which the main script runs in processes that it started, so that its `__name__ ==
"__main__"` part does not.

It is the name that `multiprocessing` gives the script in processes that it starts afresh. A method
that uses a pool of those pickles functions of the script by this name, and they find them.
"""


@attrs.frozen
class MessageType:
    """The facts about a registered class that the wire needs: its import path and the fields that
    its constructor takes.

    `fields` pairs each attribute's name with the constructor argument's (attrs strips leading
    underscores, pydantic has aliases). `later` are attributes that the constructor does not take
    (`init=False`): they are set after it. Exceptions have no fields: their `args` travel. A
    pydantic model may have values besides its fields, and knows which of them were given.
    `defaults`: arguments that are not sent while they have these values. `of_sent(fields)` builds
    a common instance in less time than the constructor; None for others.
    """

    path: str
    fields: tuple[tuple[str, str], ...]
    later: tuple[str, ...] = ()
    is_exception: bool = False
    is_model: bool = False
    defaults: Mapping[str, object] = attrs.field(factory=dict)
    of_sent: Callable[[Mapping[str, object]], object] | None = None


@overload
def message(cls: C, /) -> C: ...
@overload
def message() -> Callable[[C], C]: ...
def message(cls: C | None = None, /) -> C | Callable[[C], C]:
    """Mark an attrs class, a dataclass, a pydantic model or an exception class as one that may be
    sent.

    Put it outermost, above `@attrs.define` or `@dataclass`. Raises TypeError for any other class,
    and for classes defined inside a function, which no other process could import. Instances of a
    class of another library need a converter: `register_converter`.
    """
    return _mark if cls is None else _mark(cls)


def sparse_message(cls: C) -> C:
    """Mark an attrs class of this library likewise, all of whose fields have defaults: fields that
    have theirs are not sent, so most instances are small and quick to read.

    What is left out gets the receiver's default. So a default may never change between versions.
    A method `of_sent` of the class itself becomes that of its `MessageType`.
    """
    described, usual = _described(cls), cls()
    defaults = {argument: getattr(usual, name) for name, argument in described.fields}
    of_sent = getattr(cls, "of_sent") if "of_sent" in vars(cls) else None  # noqa: B009
    setattr(cls, _MARK, attrs.evolve(described, defaults=defaults, of_sent=of_sent))
    return cls


def message_type(cls: type) -> MessageType | None:
    """The mark of `cls` itself, or None. A subclass of a registered class is not registered by
    that.
    """
    found = own_attributes(cls).get(_MARK)
    # By its type: what stands there may be an object of the user's, whose `__class__` raises.
    return found if type(found) is MessageType else None


def import_path(cls: type) -> str:
    """`module:qualified.name`, by which another process finds `cls`; the same in every process,
    also for classes of the main script.
    """
    module = module_name(cls)
    return f"{'__main__' if module == MAIN_ALIAS else module}:{qualified_name(cls)}"


def path_by_file(path: str) -> str | None:
    """Another path of a class of the running script itself: by the name of the script's file. None
    for other classes, and without a file.
    """
    module, _, name = path.partition(":")
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if module != "__main__" or not isinstance(file, str) or not file.endswith(".py"):
        return None
    return f"{Path(file).stem}:{name}"


def _mark(cls: C) -> C:
    setattr(cls, _MARK, _described(cls))
    return cls


def _described(cls: type) -> MessageType:
    # Under another name: mypy would narrow `cls` to exceptions from here on.
    subject: type = cls
    path = import_path(cls)
    if "<locals>" in path:
        raise TypeError(
            f"@message: {path} is defined inside a function; move it to the top of its module, so "
            "that others can import it"
        )
    if issubclass(subject, BaseException):
        if not issubclass(subject, Exception):
            raise TypeError(f"@message: {path} must derive from Exception to be sent as an error")
        return MessageType(path, (), is_exception=True)
    if attrs.has(subject):
        return MessageType(
            path,
            tuple((a.name, a.alias or a.name) for a in attrs.fields(subject) if a.init),
            tuple(a.name for a in attrs.fields(subject) if not a.init),
        )
    if dataclasses.is_dataclass(subject):
        _refuse_init_variables(subject, path)
        return MessageType(
            path,
            tuple((f.name, f.name) for f in dataclasses.fields(subject) if f.init),
            tuple(f.name for f in dataclasses.fields(subject) if not f.init),
        )
    if _is_model(subject):
        return MessageType(path, _model_fields(subject, path), is_model=True)
    raise TypeError(
        f"@message: {path} is neither an attrs class, a dataclass, a pydantic model nor an "
        "exception; write @dataclass or @attrs.frozen below @message"
    )


def _refuse_init_variables(cls: Any, path: str) -> None:
    # They are in this table only, with a mark for their kind: `dataclasses.fields` leaves them out.
    for name, field in cls.__dataclass_fields__.items():
        variable = field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
        if variable and field.default is dataclasses.MISSING:
            raise TypeError(
                f"@message: {path}.{name} is an InitVar, which no instance keeps, so none could be "
                "built again where it arrives; give it a default, or make it a field"
            )


def _is_model(cls: type) -> bool:
    # A model is there only if pydantic has been imported, which this does not do for others.
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return isinstance(base, type) and issubclass(cls, base)


def _model_fields(cls: Any, path: str) -> tuple[tuple[str, str], ...]:
    """The fields of a pydantic model, and by which name its constructor takes each."""
    config = cls.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    fields: list[tuple[str, str]] = []
    for name, field in cls.model_fields.items():
        alias = field.validation_alias or field.alias
        if by_name or alias is None:
            fields.append((name, name))
            continue
        texts = [one for one in getattr(alias, "choices", [alias]) if isinstance(one, str)]
        if not texts:
            raise TypeError(
                f"@message: the field {name} of {path} is read from within another value "
                "(AliasPath), so it cannot be given to the constructor; set validate_by_name=True "
                "in its model_config"
            )
        fields.append((name, texts[0]))
    return tuple(fields)
