"""Questions to the engine for the page, always with the rights of whoever looks at it.

The gateway's own credentials are never used here: what the page lists and shows is what its reader may see.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour, Json
from es_sbert.gateway.targets import FieldTarget
from es_sbert.gateway.ui.requests import Document
from es_sbert.gateway.wire.callers import identity
from es_sbert.gateway.wire.incoming import Headers
from es_sbert.gateway.wire.upstream import Reply, Upstream
from es_sbert.index.layout import PASSAGE_VECTOR, vector_path
from es_sbert.index.vectors import read_vector


class Refused(Exception):
    """The engine answered with an error, which goes to the page as it is.

    Attributes:
        reply: The engine's.
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"the engine answered {reply.status}")
        self.reply = reply


class Asking:
    """The engine, as one caller may use it.

    Args:
        upstream: The engine.
        headers: The caller's.
    """

    def __init__(self, upstream: Upstream, headers: Headers) -> None:
        self._upstream = upstream
        self._identity = identity(headers)

    @property
    def flavour(self) -> Flavour:
        """Of the engine; ask it something before."""
        return self._upstream.known_flavour

    async def get(self, target: str) -> Json:
        """The answer to a GET.

        Raises:
            Refused: it is an error in the engine's words, or the engine wants to know who asks.
            EngineUnreachable: there is none, or it is not from an engine.
            EsSbertError: an error in no words of an engine.
        """
        return self._object(await self._upstream.ask("GET", target, self._identity), f"GET {target}")

    async def search(self, index: str, body: Json) -> Json:
        """The answer to a search; see `get`."""
        path = f"/{expression(index)}/_search"
        return self._object(await self._upstream.ask("POST", path, self._identity, body), f"POST {path}")

    async def may_search(self, index: str) -> None:
        """Let the engine say whether the caller may search there, before the gateway tells anything of the index.

        Raises:
            Refused, EngineUnreachable: see `get`.
        """
        await self.search(index, {"size": 0, "query": {"match_none": {}}})

    async def vectors(
        self, index: str, target: FieldTarget, documents: Iterable[Document]
    ) -> dict[Document, list[Vectors]]:
        """The vectors of documents, of each the one or those of its passages; documents without any are left out.

        Args:
            index: Through which they are read.
            target: The vector field.

        Raises:
            Refused, EngineUnreachable: see `get`.
        """
        wanted = set(documents)
        if not wanted:
            return {}
        path = vector_path(target.name, target.meta)
        places = sorted({document.index for document in wanted})
        named: list[Json] = [
            {"ids": {"values": sorted({document.id for document in wanted})}}, {"terms": {"_index": places}}
        ]  # fmt: skip
        body: Json = {"query": {"bool": {"filter": named}}, "size": min(10_000, len(wanted) * len(places))}
        if self.flavour is Flavour.ELASTICSEARCH:
            # From 9.2 on `_source` leaves vectors out, and older versions do not know how to ask for them.
            body |= {"_source": False, "fields": [path]}
        else:
            # A stand-in takes the place of a passage's vector unless it is named in full.
            body["_source"] = [target.name, path]
        found: dict[Document, list[Vectors]] = {}
        answer = await self.search(index, body)
        with self.reading("a search for vectors"):
            for hit in answer["hits"]["hits"]:
                document = Document(index=hit["_index"], id=hit["_id"])
                held = (hit.get("fields") or hit.get("_source") or {}).get(target.name)
                if document in wanted and held:
                    found[document] = _vectors(held)
        return found

    def reading(self, action: str) -> AbstractContextManager[None]:
        """Around code that reads an answer; see `Upstream.reading`."""
        return self._upstream.reading(action)

    def _object(self, reply: Reply, action: str) -> Json:
        if reply.status == 401 or (reply.status != 200 and isinstance(reply.body, dict)):
            raise Refused(reply)
        return self._upstream.needed(reply, action)


def expression(index: str) -> str:
    """An expression of indices as it stands in a path."""
    return quote(index, safe=",*")


def _vectors(held: Any) -> list[Vectors]:
    """What stands in a vector field, as `_source` has it or `fields`, which may wrap a vector in a list."""
    if not isinstance(held[0], dict):
        return [read_vector(held)]
    vectors = [passage[PASSAGE_VECTOR] for passage in held]
    return [read_vector(vector[0] if isinstance(vector[0], list) else vector) for vector in vectors]
