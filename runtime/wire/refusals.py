"""Types that cannot be sent: why, and what to send instead."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from actors.actor import Actor
from actors.messages import import_path, message_type
from runtime.wire.standard_types import BY_TYPE, named_tuple_fields

_ADVICE = (
    "send plain data, mark a class of yours with @message, or give a class of another library a "
    "converter with register_converter"
)


_CONVERSIONS = {
    "_io.BufferedReader": "send its path, or what it contains",
    "_io.TextIOWrapper": "send its path, or what it contains",
    "actors.UnderstudyError": "send its text, str(...) of it",
    "builtins.BaseExceptionGroup": "send a list of its exceptions",
    "actors.BoundMethod": "send the handle of its actor",
    "builtins.async_generator": (
        "send a list of its items, or use a stream, which is a method of an actor"
    ),
    "builtins.builtin_function_or_method": "send its name; node.run(...) runs a function elsewhere",
    "builtins.coroutine": "it was not awaited; await it in an `async def`, and send what it gives",
    "builtins.dict_items": "send list(...) of it",
    "builtins.dict_keys": "send list(...) of it",
    "builtins.dict_values": "send list(...) of it",
    "builtins.filter": "send list(...) of it",
    "builtins.function": "send its name; node.run(...) runs a function elsewhere",
    "builtins.generator": ("send list(...) of it, or use a stream, which is a method of an actor"),
    "builtins.map": "send list(...) of it",
    "builtins.method": "send the handle of an actor, or the name of a function",
    "builtins.type": "send its name, or an instance of it",
    "builtins.zip": "send list(...) of it",
    "logging.Logger": "send its name",
    "pandas.DataFrame": "send its .to_dict('list'), or the .to_numpy() of columns of numbers",
    "pandas.Series": "send its .to_numpy(), or its .to_list()",
    "pandas.Timedelta": "send its .to_pytimedelta()",
    "pandas.Timestamp": "send its .to_pydatetime()",
    "pathlib.PurePath": "send str(...) of it",
    "polars.DataFrame": "send its .to_dict(as_series=False), or the .to_numpy() of columns",
    "polars.Series": "send its .to_numpy(), or its .to_list()",
    "pydantic.BaseModel": "mark the model with @message, or send its .model_dump()",
    "re.Pattern": "send its .pattern",
    "runtime.LocalCluster": "an actor has its own node, self.node",
    "runtime.Node": "an actor has its own node, self.node",
    "torch.Tensor": "send its .numpy(force=True)",
}
"""Advice what to send instead of a well-known type, by its top-level package and its name, because
that package need not be installed.
"""


def refusal(kind: type, exact: Collection[type]) -> str:
    """Return what is said of a value of type `kind`, after the path to it. `exact`: the types that
    are sent only as they are, so that a subclass would arrive as a plain one.
    """
    name = (
        kind.__qualname__ if kind.__module__ == "builtins" else import_path(kind).replace(":", ".")
    )
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    text = f"is {article} {name}, which cannot be sent"
    if issubclass(kind, Actor):
        return f"{text}: it is an actor itself; send its handle, in its methods `self.handle`"
    if issubclass(kind, Enum) or named_tuple_fields(kind) is not None:
        return (
            f"{text}: the class is defined inside a function, where no other process can "
            "import it; move it to the top of its module"
        )
    if found := _conversion(kind):
        return f"{text}; {found}"
    for base in kind.__mro__[1:]:
        if base in exact:
            return (
                f"{text}: it is a subclass of {base.__name__} and would arrive as a plain one; "
                f"convert it with {base.__name__}(...)"
            )
        if base in BY_TYPE and not issubclass(base, Exception):
            return (
                f"{text}: it is a subclass of {base.__name__}, and only {base.__name__} itself is "
                "sent as it is; convert it, or see register_converter"
            )
        if base.__module__ == "numpy" and base.__name__ == "ndarray":
            return f"{text}: it is a subclass of numpy.ndarray; convert it with numpy.asarray(...)"
        if message_type(base) is not None:
            return (
                f"{text}: the mark of {base.__qualname__} does not hold for its subclasses; "
                "mark it with @message as well"
            )
    found = next(filter(None, map(_conversion, kind.__mro__)), _ADVICE)
    return f"{text}; {found}"


def _conversion(kind: type) -> str | None:
    return _CONVERSIONS.get(f"{f'{kind.__module__}'.partition('.')[0]}.{kind.__qualname__}")
