"""A request to a search API, as far as it is read before anything is understood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl

from es_sbert.engines.protocol import Json
from es_sbert.gateway.searches.scope import Mode
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.tasks import run_by_size
from es_sbert.gateway.wire.forward import Outgoing
from es_sbert.gateway.wire.incoming import Incoming, decompressed
from es_sbert.gateway.wire.json_bodies import in_utf8, parse_object

MODE_HEADER = b"x-es-sbert"
# Parameters of a URI search, which become a query_string in the body.
_URI_QUERY = {"q": "query", "df": "default_field", "default_operator": "default_operator", "analyzer": "analyzer",
              "analyze_wildcard": "analyze_wildcard", "lenient": "lenient"}  # fmt: skip


@dataclass(frozen=True)
class Arrived:
    """A request whose body is there.

    Attributes:
        same: The very request, to be passed on.
        mode: How it wants to be understood.
        plain: Its body, uncompressed, in UTF-8; None where nothing is to be understood: it is switched off, or no JSON.
    """

    same: Outgoing
    mode: Mode
    plain: bytes | None


@dataclass(frozen=True)
class SearchAsRead:
    """A request's search as it was read.

    Attributes:
        body: The search.
        params: The parameters that stay in the query.
    """

    body: Json
    params: list[tuple[str, str]]


async def arrived(
    incoming: Incoming, understanding: Understanding, recoded: Callable[[bytes], bytes] = in_utf8
) -> Arrived:
    """Wait for the body.

    Args:
        recoded: Puts it into UTF-8.

    Raises:
        RequestTooLarge, BadRequest: as `Incoming.body` and `decompressed`.
    """
    raw = await incoming.body()
    mode = understanding.mode(incoming.header(MODE_HEADER))
    plain = None
    if is_json(incoming) and mode is not Mode.OFF:
        plain = await uncompressed(raw, incoming)
    if plain is not None:
        plain = await run_by_size(len(plain), recoded, plain)
    return Arrived(Outgoing.same(incoming, raw), mode, plain)


async def uncompressed(raw: bytes, incoming: Incoming) -> bytes | None:
    """A body without its content encoding; None where that is one that cannot be undone here.

    Raises:
        RequestTooLarge, BadRequest: as `decompressed`.
    """
    # How large a compressed body is, is known only afterwards.
    size = incoming.limits.body_bytes if incoming.header(b"content-encoding") else len(raw)
    return await run_by_size(size, decompressed, raw, incoming)


def read_search(plain: bytes, incoming: Incoming) -> SearchAsRead:
    """The search of a request, which may stand in its body or in its query.

    Raises:
        NotPlainJson: it is for the engine to say what is wrong with it.
    """
    params = parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True)
    given = dict(params)
    if not plain.strip() and "source" in given:
        plain = given.pop("source").encode()
        params = [(name, value) for name, value in params if name not in ("source", "source_content_type")]
    body = parse_object(plain) if plain.strip() else {}
    if "q" in given:
        # The engine takes `q` in place of the body's query.
        said: Json = {_URI_QUERY[name]: value for name, value in given.items() if name in _URI_QUERY}
        body = body | {"query": {"query_string": said}}
        params = [(name, value) for name, value in params if name not in _URI_QUERY]
    return SearchAsRead(body, params)


def is_json(incoming: Incoming) -> bool:
    """Whether a request's body is JSON, also in the clients' own dialect of the type; engines refuse one without."""
    return not incoming.has_body or b"json" in incoming.header(b"content-type").lower()
