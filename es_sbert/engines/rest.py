"""Parts of a request to an engine: index names in paths, JSON bodies, parameters, and the response."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from es_sbert.errors import UsageError

Json = dict[str, Any]
QueryParams = Mapping[str, str] | None


@dataclass(frozen=True)
class EngineResponse:
    """What a server answers.

    Attributes:
        status: HTTP status.
        headers: By lower-case names.
        body: Parsed where it is JSON.
    """

    status: int
    headers: Mapping[str, str]
    body: Any


# An integer of more than 64 bits has at least 19 digits. Any digit becomes a zero, and what may come before an integer
# a colon: hashes, which may have as many digits in a row, begin with a quote or a letter.
_SHAPE_OF_NUMBERS = bytes.maketrans(b"123456789[,- \t\r\n", b"000000000:::::::")
_LONG_INTEGER = b":" + b"0" * 19


def parse_json(data: bytes) -> Any:
    """JSON of an engine, by orjson where it reads the same as the standard library: four times as fast.

    Documents may hold integers of any size, which orjson rounds, and lone surrogates, which it refuses.

    Raises:
        ValueError: it is not JSON.
    """
    if data[:1] in (b"{", b"[") and _LONG_INTEGER not in data.translate(_SHAPE_OF_NUMBERS):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
    return json.loads(data)


def quote_index_names(names: str | Sequence[str]) -> str:
    """One name or several as a part of a path.

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
    """An index or alias name as a path segment.

    Raises:
        UsageError: a pattern, a list of names, a name of a remote cluster, an API's own path, or invisible characters.
    """
    if name.isprintable() and any(is_remote_name(each) for each in name.split(",")):
        raise UsageError(
            f"{name!r} is not the name of one index of this cluster, but names a remote cluster",
            "Only the gateway (`es-sbert serve`) searches remote clusters. Or connect to that cluster itself (`url`).",
        )
    if not _is_index_name(name):
        raise UsageError(f"{name!r} is not the name of one index", "Give one index or alias, without wildcards.")
    return quote(name, safe="")


def _is_index_name(name: str) -> bool:
    """Whether an index may have this name, apart from the engine's limit of its length."""
    return (
        name.isprintable()
        and name not in ("", ".", "..")
        and name[0] not in "_-+"
        and not any(character in '*?,#\\/"<>|: ' for character in name)
    )


def is_index_expression(name: str) -> bool:
    """Whether a name may stand for several indices by itself: a list (`a,b`), a pattern (`logs-*`) or `_all`."""
    return name == "_all" or any(character in name for character in ",*")


def quote_index_expression(expression: str) -> str:
    """An index expression as a part of a path: names and patterns with commas between, exclusions (`logs-*,-logs-old`).

    Raises:
        UsageError: a name of a remote cluster, an API's own path, or something that no index is called.
    """
    if not is_index_expression(expression):
        return quote_index_name(expression)
    parts = expression.split(",")
    for number, part in enumerate(parts):
        if expression.isprintable() and is_remote_name(part):
            quote_index_name(part)  # raises
        name = part.removeprefix("-") if number else part
        # What is left of a pattern keeps to the rules of names, but for its beginning.
        if name != "_all" and not _is_index_name(f"x{name.replace('*', '')}" if "*" in name else name):
            raise UsageError(
                f"{part!r} in {expression!r} is neither the name of an index nor a pattern",
                "Give indices or aliases with commas between; * stands for any characters: logs-*,-logs-old.",
            )
    return ",".join(quote(part, safe="*") for part in parts)


# Last parts of the paths of POST requests that change nothing, or the same however often they are sent.
_REPEATABLE_APIS = frozenset({
    "_analyze", "_count", "_disk_usage", "_field_caps", "_flush", "_has_privileges", "_mget", "_msearch", "_refresh",
    "_search",
})  # fmt: skip


def is_repeatable(method: str, path: str) -> bool:
    """Whether a request may be sent again although the engine may have executed it.

    PUT and DELETE are not repeatable: `PUT _bulk` may add documents. Nor is a search that opens a scroll: the context
    of the lost response would stay open.

    Args:
        path: With its query.
    """
    if method in ("GET", "HEAD", "OPTIONS"):
        return True
    path, _, query = path.partition("?")
    return method == "POST" and path.rstrip("/").rpartition("/")[2] in _REPEATABLE_APIS and "scroll=" not in query


# A page of a scan is embedded and loaded before the next page is requested: minutes on a slow machine.
KEEP_ALIVE = "30m"
# Seconds that an engine waits for a shard by default, and the fewest that it is given: it also waits that long for a
# new field of the mapping, which every cluster takes a moment for.
_MAX_ENGINE_WAIT, _MIN_ENGINE_WAIT = 60.0, 1.0
# Part of the client's own limit: the engine is to say what it waited for before the client breaks the request off.
_CLIENT_TIMEOUT_SHARE = 0.8


def limit_engine_wait(asked: float, client: float | None) -> float:
    """Seconds that an engine may wait for what a request needs.

    Args:
        asked: Seconds that the caller would wait.
        client: Seconds after which the client breaks the request off; None where it alone knows.
    """
    most = _MAX_ENGINE_WAIT if client is None else min(_MAX_ENGINE_WAIT, _CLIENT_TIMEOUT_SHARE * client)
    return min(most, max(_MIN_ENGINE_WAIT, asked))


def shard_preference(shard: int, node: str = "") -> str:
    """The `preference` that reads one shard only.

    Args:
        node: Id of the node whose copy is read; empty for any copy.
    """
    return f"_shards:{shard}|_only_nodes:{node}" if node else f"_shards:{shard}"


def point_in_time_params(shard: int, node: str = "") -> dict[str, str]:
    """Parameters of the request that opens a point in time of one shard; see `shard_preference`."""
    return {"keep_alive": KEEP_ALIVE, "preference": shard_preference(shard, node)}


def encode_json(body: dict[str, Any]) -> bytes:
    """A request's body as JSON.

    Raises:
        UsageError: something in it, such as a filter or an id, is not to be written.
    """
    try:
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise UsageError(
            f"the request cannot be written as JSON: {error}",
            "Give texts in valid Unicode, integers of at most 64 bits, and of other values what JSON has.",
        ) from error
