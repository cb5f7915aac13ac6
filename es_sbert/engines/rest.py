"""Parts of a request to an engine: index names in paths, JSON bodies, parameters, and the response."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from es_sbert.errors import UsageError
from es_sbert.io.json_text import may_lose_numbers, parse_exact
from es_sbert.messages import setting

Json = dict[str, Any]
QueryParams = Mapping[str, str] | None


@dataclass(frozen=True)
class EngineResponse:
    """The response of a server.

    Attributes:
        status: HTTP status.
        headers: By lower-case names.
        body: Parsed if it is JSON.
    """

    status: int
    headers: Mapping[str, str]
    body: Any


# An integer of more than 64 bits has at least 19 digits. The table maps every digit to a zero, and every character that
# may precede an integer to a colon. Hashes, which may have as many digits in a row, follow a quote or a letter.
_SHAPE_OF_NUMBERS = bytes.maketrans(b"123456789[,- \t\r\n", b"000000000:::::::")
_LONG_INTEGER = b":" + b"0" * 19


# Whether numbers keep their text, see `exact_numbers`.
EXACT_NUMBERS: ContextVar[bool] = ContextVar("exact_numbers", default=False)


@contextmanager
def exact_numbers() -> Iterator[None]:
    """Requests in the block return `JsonNumber` for each number that would not be the same if it were written again.

    Use it to read whole documents that are written back. The request must not filter `_source`: engines parse what they
    filter, and `1.10` becomes 1.1.
    """
    token = EXACT_NUMBERS.set(True)
    try:
        yield
    finally:
        EXACT_NUMBERS.reset(token)


def parse_json(data: bytes) -> Any:
    """Parse JSON of an engine: with orjson, which is four times as fast, if it reads the same as the standard library.

    Documents may hold integers of any size, which orjson rounds, and lone surrogates, which it refuses.

    Raises:
        ValueError: the data is not JSON.
    """
    if EXACT_NUMBERS.get() and may_lose_numbers(data):
        return parse_exact(data)
    if data[:1] in (b"{", b"[") and _LONG_INTEGER not in data.translate(_SHAPE_OF_NUMBERS):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:  # the standard library reads more, and raises the error otherwise
            pass
    return json.loads(data)


def quote_index_names(names: str | Sequence[str]) -> str:
    """Quote one name or several for a path.

    Raises:
        UsageError: see `quote_index_name`.
    """
    return quote_index_name(names) if isinstance(names, str) else ",".join(map(quote_index_name, names))


# `cluster:index`; not `<date{math:with colons}>`, nor the selector `index::failures`.
_REMOTE_NAME = re.compile(r"-?[^<:]+:(?!:)")


def is_remote_name(name: str) -> bool:
    """Whether a name or pattern is that of indices of a remote cluster: `far:docs`, `*:docs`, `-far:*`."""
    return _REMOTE_NAME.match(name) is not None


def quote_index_name(name: str) -> str:
    """Quote the name of an index or alias as a path segment.

    Raises:
        UsageError: the name is a pattern, a list, a name of a remote cluster or an API's own path, or has invisible
            characters.
    """
    if name.isprintable() and any(is_remote_name(each) for each in name.split(",")):
        raise UsageError(
            f"{name!r} is not the name of one index of this cluster, but names a remote cluster",
            f"Connect to that cluster ({setting('url')}).",
        ).about("index", name)
    if not _is_index_name(name):
        raise UsageError(f"{name!r} is not the name of one index", "Name an index or an alias.").about("index", name)
    return quote(name, safe="")


def _is_index_name(name: str) -> bool:
    """Whether an index may have this name, apart from the engine's limit on its length."""
    return (
        name.isprintable()
        and name not in ("", ".", "..")
        and name[0] not in "_-+"
        and not any(character in '*?,#\\/"<>|: ' for character in name)
    )


def is_index_expression(name: str) -> bool:
    """Whether this is an expression instead of a single name: a list (`a,b`), a pattern (`logs-*`) or `_all`."""
    return name == "_all" or any(character in name for character in ",*")


def quote_index_expression(expression: str) -> str:
    """Quote an index expression for a path: names, patterns and exclusions separated by commas (`logs-*,-logs-old`).

    Raises:
        UsageError: the expression contains a name of a remote cluster, an API's own path, or an invalid index name.
    """
    if not is_index_expression(expression):
        return quote_index_name(expression)
    parts = expression.split(",")
    for number, part in enumerate(parts):
        if expression.isprintable() and is_remote_name(part):
            quote_index_name(part)  # raises
        name = part.removeprefix("-") if number else part
        # Without its wildcards, a pattern must follow the rules for names, except for its beginning.
        if name != "_all" and not _is_index_name(f"x{name.replace('*', '')}" if "*" in name else name):
            raise UsageError(
                f"{part!r} in {expression!r} is neither the name of an index nor a pattern",
                "Use indices or aliases separated by commas; * matches any characters: logs-*,-logs-old.",
            ).about("index", expression)
    return ",".join(quote(part, safe="*") for part in parts)


# Last parts of the paths of POST requests that change nothing, or that can be repeated with the same effect.
_REPEATABLE_APIS = frozenset({
    "_analyze", "_count", "_disk_usage", "_field_caps", "_flush", "_has_privileges", "_mget", "_msearch", "_refresh",
    "_search",
})  # fmt: skip


def is_repeatable(method: str, path: str) -> bool:
    """Whether a request may be sent again although the engine may have executed it.

    PUT and DELETE are not repeatable: `PUT _bulk` may add documents. Nor is a search that opens a scroll: the context
    of the lost response would stay open.

    Args:
        path: The path with its query string.
    """
    if method in ("GET", "HEAD", "OPTIONS"):
        return True
    path, _, query = path.partition("?")
    return method == "POST" and path.rstrip("/").rpartition("/")[2] in _REPEATABLE_APIS and "scroll=" not in query


# Lifetime of a point in time after a page. A page of a scan is embedded and loaded before the next page is requested,
# which takes minutes on a slow machine.
KEEP_ALIVE = "30m"
# Seconds that an engine waits for a shard by default, and the fewest that a request allows: the limit also applies to
# the wait for a new field of the mapping, which takes every cluster a moment.
_MAX_ENGINE_WAIT, _MIN_ENGINE_WAIT = 60.0, 1.0
# Share of the client's timeout: the engine must answer, and say what it waited for, before the client gives up.
_CLIENT_TIMEOUT_SHARE = 0.8


def limit_engine_wait(asked: float, client: float | None) -> float:
    """Return the engine's own timeout for a request, in seconds.

    Args:
        asked: Seconds that the caller would wait.
        client: The client's timeout in seconds; None if only the client knows it.
    """
    most = _MAX_ENGINE_WAIT if client is None else min(_MAX_ENGINE_WAIT, _CLIENT_TIMEOUT_SHARE * client)
    return min(most, max(_MIN_ENGINE_WAIT, asked))


def shard_preference(shard: int, node: str = "") -> str:
    """The `preference` that limits a search to one shard.

    Args:
        node: Id of the node whose copy is read; empty for any copy.
    """
    return f"_shards:{shard}|_only_nodes:{node}" if node else f"_shards:{shard}"


def encode_json(body: dict[str, Any]) -> bytes:
    """Encode the body of a request as JSON.

    Raises:
        UsageError: a part of the body, such as a filter or an id, cannot be written as JSON.
    """
    try:
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise UsageError(
            f"the request cannot be written as JSON: {error}",
            "Use only values that JSON has, texts in valid Unicode, and integers of at most 64 bits.",
        ) from error
