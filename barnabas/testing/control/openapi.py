"""The OpenAPI 3.1 description of all verbs, generated from the routing table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import barnabas
from barnabas.testing.control.answers import SHAPES
from barnabas.testing.control.verb import Verb
from barnabas.testing.control.verbs import VERBS

PATH: Final = "/openapi.json"
_NUMBERED: Final = frozenset({"fault", "snapshot"})


def document(verbs: Sequence[Verb] = VERBS, *, has_token: bool = False) -> dict[str, Any]:
    """The whole description; `has_token` says that each request needs a token."""
    paths: dict[str, dict[str, Any]] = {}
    for verb in verbs:
        paths.setdefault(verb.path, {})[verb.method.lower()] = _operation(verb)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Barnabas, brokers for tests",
            "version": barnabas.__version__,
            "description": "Kafka brokers that fail on demand. Fields and verbs are those of barnabas.testing.",
        },
        "paths": paths,
        "components": {"schemas": dict(SHAPES)},
    }
    if has_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _operation(verb: Verb) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _operation_id(verb),
        "summary": verb.does,
        "responses": {str(verb.status): _answer(verb), "default": _json("What was wrong.", "Error")},
    }
    parameters = [_in_path(name) for name in re.findall(r"\{(\w+)\}", verb.path)]
    if verb.method == "GET":
        parameters += [
            {
                "name": field.name,
                "in": "query",
                "required": field.is_required,
                "description": field.does,
                "schema": dict(field.kind.schema),
            }
            for field in verb.fields
        ]
    elif verb.fields:
        required = [field.name for field in verb.fields if field.is_required]
        schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": {field.name: field.schema for field in verb.fields},
            **({"required": required} if required else {}),
        }
        found["requestBody"] = {"required": bool(required), "content": {"application/json": {"schema": schema}}}
    if parameters:
        found["parameters"] = parameters
    return found


def _operation_id(verb: Verb) -> str:
    """The method's name in generated clients: the verb itself, if the path ends with one."""
    words = [word for word in re.split(r"[/.]", verb.path) if word and not word.startswith("{")]
    last = "_".join(words[1:]) or "_".join(words) or "index"
    if verb.method == "POST" and len(words) > 1:
        return "_".join(words[-2:]) if words[-1] == "wait" else words[-1]
    one = "_one" if verb.path.endswith("}") else ""
    return f"{verb.method.lower()}_{last}{one}"


def _in_path(name: str) -> dict[str, Any]:
    kind = "integer" if name in _NUMBERED else "string"
    return {"name": name, "in": "path", "required": True, "schema": {"type": kind}}


def _answer(verb: Verb) -> dict[str, Any]:
    if verb.answer in SHAPES:
        return _json("Done.", verb.answer)
    return {"description": "Done.", "content": {verb.answer: {"schema": {"type": "string"}}}}


def _json(description: str, shape: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{shape}"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
