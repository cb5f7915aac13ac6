"""An index with vectors, its engine and a gateway in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.gateway.conftest import loaded_index
from tests.gateway.patient import NDJSON, client, ndjson
from tests.gateway.serving import gateway


@dataclass(frozen=True)
class Bed:
    """Clients of an engine and of a gateway in front of it, and an index."""

    engine: httpx.Client
    gateway: httpx.Client
    index: str

    @property
    def url(self) -> str:
        return str(self.engine.base_url).rstrip("/")

    @property
    def is_opensearch(self) -> bool:
        return "x-elastic-product" not in self.engine.get("/_cluster/health").headers

    def post(
        self, body: Any, path: str = "_search", *, index: str = "", mode: str = "", **params: Any
    ) -> httpx.Response:
        headers = {"x-es-sbert": mode} if mode else {}
        return self.gateway.post(f"/{index or self.index}/{path}", json=body, params=params or None, headers=headers)

    def search(self, body: Any, path: str = "_search", **options: Any) -> Json:
        return _succeeded(self.post(body, path, **options))

    def direct(self, body: Any, path: str = "_search", *, index: str = "", **params: Any) -> Json:
        return _succeeded(self.engine.post(f"/{index or self.index}/{path}", json=body, params=params or None))

    def send(self, path: str, *lines: Any, **params: Any) -> Json:
        content = ndjson(*lines)
        return _succeeded(
            self.gateway.post(f"/{self.index}/{path}", content=content, params=params or None, headers=NDJSON)
        )

    def msearch(self, *lines: Any, path: str = "_msearch", **params: Any) -> list[Json]:
        responses: list[Json] = self.send(path, *lines, **params)["responses"]
        return responses

    def point_in_time(self, index: str = "") -> str:
        """Id of one that the gateway opened."""
        api = "_search/point_in_time" if self.is_opensearch else "_pit"
        opened = _succeeded(self.gateway.post(f"/{index or self.index}/{api}?keep_alive=10m"))
        return str(opened.get("id") or opened["pit_id"])


def _succeeded(answer: httpx.Response) -> Json:
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


@contextmanager
def bed_of(
    engine_url: str,
    tiny: Path,
    encoder: Encoder,
    documents: list[Json],
    *,
    front: str = "",
    load: Json | None = None,
    **settings: Any,
) -> Iterator[Bed]:
    """Made, filled and served until the block ends.

    Args:
        front: Address at which the gateway finds the engine, if it is another one.
        load: Options of the load.
        settings: Of the gateway.
    """
    with (
        loaded_index(engine_url, encoder, documents, **(load or {})) as index,
        gateway(front or engine_url, tiny, **settings) as url,
        client(engine_url) as engine,
        client(url) as through,
    ):
        yield Bed(engine, through, index)


def ids(answer: Json) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


def scores(answer: Json) -> list[float]:
    return [hit["_score"] for hit in answer["hits"]["hits"]]
