"""A client of `serve --control` as another language would have it: HTTP and JSON. Each answer is held against what
/openapi.json says of it."""

import json
import re
import urllib.error
import urllib.request
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tools.waiting import PATIENCE_S


class Answer(NamedTuple):
    """`content` is JSON, or text where the answer is none."""

    status: int
    content: Any


class ControlClient:
    """Asks the server at `url`."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, /, *, http_headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """The server's response to a request."""
        query = f"?{urlencode(fields, doseq=True, errors='surrogatepass')}" if fields and method == "GET" else ""
        body = None if method == "GET" or not fields else json.dumps(fields).encode()
        told = {**self._headers, **({"Content-Type": "application/json"} if body else {}), **(http_headers or {})}
        request = urllib.request.Request(f"{self.url}{path}{query}", body, told, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                answer = Answer(response.status, _content(response))
        except urllib.error.HTTPError as error:
            with error:
                answer = Answer(error.code, _content(error))
        return answer

    def done(self, method: str, path: str, /, **fields: Any) -> Any:
        """The content of an answer that is as /openapi.json says."""
        answer = self.ask(method, path, **fields)
        assert answer.status < 300, answer
        operation = self.operation(method, path)
        content = operation["responses"][str(answer.status)]["content"]
        [(media_type, described)] = content.items()
        if media_type == "application/json":
            self.check(answer.content, described["schema"], f"{method} {path}")
        return answer.content

    def operation(self, method: str, path: str) -> dict[str, Any]:
        """The description of a request in /openapi.json."""
        paths = self.document()["paths"]
        for template in sorted(paths, key=lambda each: each.count("{")):  # concrete ones first
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and method.lower() in paths[template]:
                found: dict[str, Any] = paths[template][method.lower()]
                return found
        raise AssertionError(f"{method} {path} is not described")

    @cache  # noqa: B019 - there is one for each server
    def document(self) -> dict[str, Any]:
        """/openapi.json."""
        answer = self.ask("GET", "/openapi.json")
        assert answer.status == 200, answer
        return dict(answer.content)

    def check(self, value: Any, schema: dict[str, Any], where: str) -> None:
        """Hold a value against a schema, as far as ours use JSON Schema."""
        if "$ref" in schema:
            shape = schema["$ref"].rpartition("/")[2]
            self.check(value, self.document()["components"]["schemas"][shape], f"{where}, {shape}")
            return
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert _type_of(value) in types, f"{where}: {value!r} is not {types}"
        if isinstance(value, dict) and "properties" in schema:
            assert set(schema["required"]) <= value.keys() <= schema["properties"].keys(), f"{where}: {value}"
            for name, each in value.items():
                self.check(each, schema["properties"][name], f"{where}.{name}")
        if isinstance(value, list):
            for each in value:
                self.check(each, schema["items"], f"{where}[]")


def _content(response: Any) -> Any:
    text = response.read().decode()
    return json.loads(text) if response.headers.get_content_type() == "application/json" else text


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]
