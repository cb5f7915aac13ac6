"""API calls of YAML tests as HTTP requests, by the `api/*.json` files that come with the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

T = TypeVar("T")
# Picks one of several paths or methods.
Choose = Callable[[Sequence[T]], T]

_JSON, _NDJSON, _YAML = "application/json", "application/x-ndjson", "application/yaml"
# Arguments for the runner, not for the engine.
_FOR_THE_RUNNER = frozenset({"ignore"})


class InvalidCall(Exception):
    """A call that the API's description does not allow."""


@dataclass(frozen=True)
class ApiPath:
    """One way to address an API: `/{index}/_doc/{id}`."""

    template: str
    methods: tuple[str, ...]
    parts: frozenset[str]


@dataclass(frozen=True)
class Api:
    """One API of the engine: `search`, `indices.create`, …

    Attributes:
        params: Query parameters, with those that every API takes.
        takes_body: Whether a body may be sent.
        is_bulk: Whether the body is newline-delimited JSON.
    """

    name: str
    paths: tuple[ApiPath, ...]
    params: frozenset[str]
    takes_body: bool
    is_bulk: bool


@dataclass(frozen=True)
class Request:
    """What is sent."""

    method: str
    path: str
    query: str
    body: bytes | None
    content_type: str

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path


def read_apis(files: Mapping[str, bytes]) -> dict[str, Api]:
    """APIs by name.

    Args:
        files: Name of each `.json` file → content.
    """
    loaded = {name: json.loads(content) for name, content in files.items()}
    common = frozenset(name for spec in loaded.values() for name in spec.get("params", ()))
    return {
        name: _api(name, description, common)
        for spec in loaded.values()
        for name, description in spec.items()
        if isinstance(description, dict) and "paths" in (description.get("url") or ())
    }


def _api(name: str, description: Mapping[str, Any], common: frozenset[str]) -> Api:
    paths = tuple(
        ApiPath(path["path"], tuple(path["methods"]), frozenset(path.get("parts", ())))
        for path in description["url"]["paths"]
    )
    body = description.get("body") or {}
    params = common | frozenset(description.get("params") or ())
    return Api(name, paths, params, bool(description.get("body")), body.get("serialize") == "bulk")


def build_request(api: Api, arguments: Mapping[str, Any], choose: Choose[Any], *, yaml: bool = False) -> Request:
    """The request of a call.

    As the official runner does, it takes the path that uses most of the arguments, and chooses where several paths or
    methods would do.

    Args:
        yaml: Send the body as YAML.

    Raises:
        InvalidCall: An argument is unknown, or one that every path needs is missing.
    """
    given = {name: value for name, value in arguments.items() if name != "body" and name not in _FOR_THE_RUNNER}
    path = choose(_best_paths(api, given))
    if unknown := sorted(given.keys() - path.parts - api.params):
        raise InvalidCall(f"[{api.name}] has no parameter {', '.join(unknown)}")
    if "body" in arguments and not api.takes_body:
        raise InvalidCall(f"[{api.name}] takes no body")
    filled = path.template
    for part in path.parts:
        filled = filled.replace("{" + part + "}", quote(_text(given[part]), safe=",*"))
    query = urlencode({name: _text(value) for name, value in given.items() if name not in path.parts}, quote_via=quote)
    body, content_type = _body(api, arguments, yaml)
    return Request(choose(path.methods), filled, query, body, content_type)


def _best_paths(api: Api, given: Mapping[str, Any]) -> list[ApiPath]:
    usable = [path for path in api.paths if path.parts <= given.keys()]
    if not usable:
        raise InvalidCall(f"[{api.name}] lacks a part of its path")
    most = max(len(path.parts) for path in usable)
    return [path for path in usable if len(path.parts) == most]


def _text(value: Any) -> str:
    """A value in a path or query."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return "" if value is None else str(value)


def _body(api: Api, arguments: Mapping[str, Any], yaml: bool) -> tuple[bytes | None, str]:
    if arguments.get("body") is None:
        return None, ""
    documents = _documents(arguments["body"])
    if isinstance(documents, str):
        return documents.encode(), _NDJSON if api.is_bulk else _JSON
    if api.is_bulk or len(documents) > 1:
        return b"".join(_dumps(each) + b"\n" for each in documents), _NDJSON
    # JSON is YAML, so no YAML writer is needed.
    return b"".join(map(_dumps, documents)), _YAML if yaml else _JSON


def _documents(body: Any) -> list[Any] | str:
    """The JSON values of a body, or its text where that is not JSON."""
    if isinstance(body, str):
        return _json_values(body)
    if not isinstance(body, list):
        return [body]
    documents = []
    for each in body:
        values = _documents(each) if isinstance(each, str) else [each]
        if isinstance(values, str):
            return "".join(line if isinstance(line, str) else _dumps(line).decode() for line in body)
        documents += values
    return documents


def _json_values(text: str) -> list[Any] | str:
    """All JSON values of a text that has one after another, or the text itself."""
    decoder, values, position = json.JSONDecoder(), [], 0
    while text[position:].strip():
        position = len(text) - len(text[position:].lstrip())
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError:
            return text
        values.append(value)
    return values


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
