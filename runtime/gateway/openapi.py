"""The OpenAPI description of what a gateway may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast
from urllib.parse import quote

import attrs

from runtime.gateway.media import CBOR, EVENTS, JSON, JSON_LINES, PROBLEM_JSON, json_of
from runtime.printable import many
from runtime.version import __version__

Object = dict[str, object]

_ANSWERS = {
    "400": "The arguments do not fit. The method did not run.",
    "403": "The method may not be called. It did not run.",
    "404": "There is no such actor or method now.",
    "409": "The Idempotency-Key was used for another call. This one did not run.",
    "422": "The method raised.",
    "503": "The call certainly did not run: repeat it, after the seconds in Retry-After.",
    "504": "The outcome is unknown: the call may have run.",
}

_PROBLEM: Object = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "outcome": {"enum": ["not executed", "unknown", "raised"]},
        "error": {"type": "string", "description": "The class of the error."},
        "next": {"type": "string", "description": "What to do next."},
        "explain": {"type": "string", "description": "The command that explains the error."},
        "class": {"type": "string", "description": "Import path of what the method raised."},
        "fields": {"type": "object", "description": "The fields of what the method raised."},
    },
    "required": ["title", "status", "detail", "outcome", "error", "next", "explain"],
}

_HEADERS: list[object] = [
    {
        "name": "Understudy-Timeout",
        "in": "header",
        "description": "Seconds for the whole call: its deadline, also where it runs.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    }
]

_KEY: Object = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Identifies the call: a repeat with the same key never runs it twice.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


@attrs.define
class DescribedActors:
    """The methods of actors as their nodes describe them, and the messages in their schemas."""

    actors: list[dict[str, object]] = attrs.field(factory=list)
    definitions: dict[str, object] = attrs.field(factory=dict)
    left_out: int = 0
    """Actors beyond those that a node describes in one answer."""

    def add(self, answer: dict[str, object]) -> None:
        """Add what one node has answered about its actors."""
        actors, definitions = answer.get("actors"), answer.get("definitions")
        if isinstance(actors, list) and isinstance(definitions, dict):
            self.actors += [one for one in cast("list[object]", actors) if isinstance(one, dict)]
            self.definitions |= cast("dict[str, object]", definitions)


def openapi_of(
    described: DescribedActors, is_allowed: Callable[[str, str], bool], *, secured: bool
) -> Object:
    """The description, with nothing in it that may not be called."""
    paths: Object = {}
    for actor in sorted(described.actors, key=lambda one: str(one.get("name"))):
        name, methods = actor.get("name"), actor.get("methods")
        if not isinstance(name, str) or not isinstance(methods, list):
            continue
        for method in cast("list[object]", methods):
            if not isinstance(method, dict):
                continue
            one = cast("Object", method)
            own = str(one.get("name"))
            if one.get("http") is True or is_allowed(name, own):
                path = f"/v1/actors/{quote(name, safe='')}/{quote(own, safe='')}"
                paths[path] = {"post": _operation(name, str(actor.get("class")), own, one)}
    schemas = _used(paths, described.definitions) | {"Problem": _PROBLEM}
    components: Object = {"schemas": schemas}
    text = "Each path calls one method of one actor."
    if described.left_out:
        text += f" {many(described.left_out, 'actor')} left out: ask for them with ?actor=NAME."
    document: Object = {
        "openapi": "3.1.0",
        "info": {
            "title": "Actors of an Understudy cluster",
            "version": __version__,
            "description": text,
        },
        "paths": paths,
        "components": components,
    }
    if secured:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def json_of_parts(document: Object) -> bytes:
    """The description as JSON. Written path by path: the writer of a whole document would hold up
    other threads until its end.
    """
    parts: list[bytes] = []
    for key, section in document.items():
        if isinstance(section, dict):
            inner = (_pair(name, one) for name, one in cast("Object", section).items())
            parts.append(json_of(key) + b":{" + b",".join(inner) + b"}")
        else:
            parts.append(_pair(key, section))
    return b"{" + b",".join(parts) + b"}"


def _pair(key: str, value: object) -> bytes:
    return json_of(key) + b":" + json_of(value)


def _operation(name: str, class_path: str, own: str, method: Object) -> Object:
    stream = method.get("stream") is True
    parameters, result = method.get("parameters"), method.get("result")
    summary, _, more = str(method.get("text") or "").strip().partition("\n")
    media = {JSON_LINES: {}, EVENTS: {}} if stream else {JSON: {"schema": result}, CBOR: {}}
    if stream:
        media[JSON_LINES] = {"schema": _line(result)}
    content: Object = {JSON: {"schema": parameters}, CBOR: {"schema": parameters}}
    what = "The items." if stream else "What the method returned."
    answers: Object = {"200": {"description": what, "content": media}}
    for status, description in _ANSWERS.items():
        schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
        answers[status] = {"description": description, "content": {PROBLEM_JSON: schema}}
    return {
        "operationId": f"{name}.{own}",
        "tags": [name],
        "summary": summary or f"{class_path.rpartition(':')[2]}.{own}",
        "description": more.strip(),
        "parameters": list(_HEADERS) if stream else [_KEY, *_HEADERS],
        "requestBody": {"content": content},
        "responses": answers,
        "x-stream": stream,
    }


def _line(result: object) -> Object:
    return {
        "description": "One line of JSON each: an item, then the end or an error.",
        "type": "object",
        "properties": {
            "item": result,
            "end": {"const": True},
            "error": {"$ref": "#/components/schemas/Problem"},
        },
    }


def _used(paths: object, definitions: dict[str, object]) -> Object:
    """The definitions that the paths refer to, directly or through others. Those of methods that
    may not be called are left out.
    """
    found: Object = {}
    waiting: list[object] = [paths]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            target = cast("Object", one).get("$ref")
            name = target.rpartition("/")[2] if isinstance(target, str) else ""
            if name in definitions and name not in found:
                found[name] = definitions[name]
                waiting.append(definitions[name])
            waiting += cast("Object", one).values()
        elif isinstance(one, list):
            waiting += cast("list[object]", one)
    return found
