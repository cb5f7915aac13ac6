"""Every kind of name, every reader and writer: they see and change the documents that the engine itself does by it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from es_sbert import SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError
from es_sbert.index.mapping import index_body
from tests.engine.ingest_support import load, open_engine
from tests.engine.vectors import field_of
from tests.gateway import patient
from tests.gateway.writes.support import JSON, bulk, bulk_lines

TEXTS = {f"d{number}": f"The river and the river met number {number}." for number in range(8)}
SEVEN_SHARDS: Json = {"number_of_shards": 7, "number_of_replicas": 0}


@dataclass(frozen=True)
class Kind:
    first: Json | None = None
    second: Json | None = None
    name: str = "{alias}"
    refused: tuple[str, ...] = ()


KINDS = {
    "index": Kind(name="{first}"),
    "alias": Kind({}),
    "alias with a filter": Kind({"filter": {"term": {"tenant": "one"}}}),
    "alias with a routing": Kind({"routing": "one"}),
    "alias with one routing for each": Kind({"index_routing": "two", "search_routing": "one,two"}),
    "alias that is not written to": Kind({"is_write_index": False}, refused=("add",)),
    "alias of two": Kind({}, {}, refused=("add", "load")),
    "alias of two with a write index": Kind({"is_write_index": True}, {}, refused=("add", "load")),
    "alias of two, written with a routing": Kind(
        {}, {"is_write_index": True, "index_routing": "one"}, refused=("add", "load")
    ),
    "alias of two, one with a filter": Kind(
        {"filter": {"term": {"tenant": "two"}}}, {"is_write_index": True}, refused=("add", "load")
    ),
    "list": Kind(name="{first},{second}", refused=("add", "load")),
    "list with an alias": Kind(
        {"filter": {"term": {"tenant": "one"}}}, name="{alias},{second}", refused=("add", "load")
    ),
    "pattern": Kind(name="{first}*", refused=("add", "load")),
    "pattern of an alias": Kind({"filter": {"term": {"tenant": "one"}}}, name="{alias}*", refused=("add", "load")),
    "date math": Kind({}, name="<{alias}-{{now/d{{yyyy}}}}>", refused=("add", "load")),
    "date math of an alias of two": Kind({}, {}, name="<{alias}-{{now/d{{yyyy}}}}>", refused=("add", "load")),
    "date math of an alias of two with a write index": Kind(
        {"is_write_index": True, "index_routing": "one"},
        {},
        name="<{alias}-{{now/d{{yyyy}}}}>",
        refused=("add", "load"),
    ),
}


@dataclass(frozen=True)
class Place:
    """Two indices of seven shards, and a name of a kind."""

    engine: httpx.Client
    gateway: httpx.Client
    library: Engine
    name: str
    indices: tuple[str, str]
    refused: tuple[str, ...]
    path: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", httpx.URL(f"http://x/{self.name.replace('/', '%2F')}").raw_path.decode())

    def documents(self, name: str) -> dict[tuple[str, str, str | None], Json]:
        """Index, id and routing → `_source`, as the engine itself finds them by this name."""
        self.engine.post(f"/{','.join(self.indices)}/_refresh").raise_for_status()
        answer = self.engine.post(f"{name}/_search", json={"size": 100, "version": True}).raise_for_status()
        hits = answer.json()["hits"]["hits"]
        return {
            (hit["_index"], hit["_id"], hit.get("_routing")): hit["_source"] | {"v": hit["_version"]} for hit in hits
        }

    def all_documents(self) -> dict[tuple[str, str, str | None], Json]:
        return self.documents("/" + ",".join(self.indices))

    def placed(self, id: str) -> list[tuple[str, str | None]]:
        return sorted((index, routing) for index, found, routing in self.all_documents() if found == id)

    def has_vector(self, encoder: Encoder, id: str, text: str) -> bool:
        self.all_documents()
        for index in {index for index, _ in self.placed(id)}:
            with SemanticIndex(index, self.library, encoder=encoder) as found:
                cosines = [
                    hit.cosine for hit in found.search_vector(encoder.encode(text, "document"), 100) if hit.id == id
                ]
            if not cosines or any(cosine is None or cosine < 0.9999 for cosine in cosines):
                return False
        return True


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest,
    engine_url: str,
    gateway_url: str,
    tiny_encoder: Encoder,
    fresh_index: Callable[[str], str],
) -> Iterator[Place]:
    kind = KINDS[request.param]
    indices = fresh_index(engine_url), fresh_index(engine_url)
    alias = f"alias-{uuid.uuid4().hex[:12]}"
    with (
        patient.client(engine_url) as engine,
        patient.client(gateway_url) as gateway,
        open_engine(engine_url) as library,
    ):
        body = index_body(library.info.engine_type, "embedding", field_of(tiny_encoder.info))
        body["settings"] = body.get("settings", {}) | SEVEN_SHARDS
        body["mappings"]["properties"] |= {"text": {"type": "text"}, "tenant": {"type": "keyword"}}
        for index, options in zip(indices, (kind.first, kind.second), strict=True):
            library.create_index(index, body)
            if options is not None:
                aliases = (alias, f"{alias}-{datetime.now(UTC):%Y}") if kind.name.startswith("<") else (alias,)
                library.update_aliases([{"add": {"index": index, "alias": name, **options}} for name in aliases])
        lines = [
            ("index", {"_index": index, "_id": id, "routing": tenant}, {"text": text, "tenant": tenant})
            for index, index_tenants in zip(indices, (("one", "two"), ("two", "one")), strict=True)
            for number, (id, text) in enumerate(TEXTS.items())
            for tenant in (index_tenants[number % 2],)
        ]
        bulk(gateway, lines)
        name = kind.name.format(alias=alias, first=indices[0], second=indices[1])
        yield Place(engine, gateway, library, name, indices, kind.refused)


def test_searches_find_the_documents_of_the_engine(place: Place, tiny_encoder: Encoder) -> None:
    expected = {(index, id) for index, id, _ in place.documents(place.path)}
    query: Json = {"query": {"match": {"semantic": {"query": "a cat", "k": 100}}}, "size": 100}
    answer = place.gateway.post(f"{place.path}/_search", json=query).json()
    assert {(hit["_index"], hit["_id"]) for hit in answer["hits"]["hits"]} == expected
    if place.name.startswith("<"):
        return  # the library takes names without date math
    with SemanticIndex(place.name, place.library, encoder=tiny_encoder) as index:
        assert {(hit.index, hit.id) for hit in index.search("a cat", 100)} == expected
        assert {(hit.index, hit.id) for hit in index.hybrid("river", 100)} == expected


def test_writes_go_where_the_engine_puts_them(place: Place, tiny_encoder: Encoder) -> None:
    direct = place.engine.put(f"{place.path}/_doc/direct", json={"text": "a cat"})
    ours = place.gateway.put(f"{place.path}/_doc/ours", json={"text": "a cat"})
    lines = bulk_lines([("index", {"_index": place.name, "_id": "bulk"}, {"text": "a mat"})])
    [item] = place.gateway.post("/_bulk", content=lines, headers=JSON).json()["items"]
    assert (ours.status_code, item["index"]["status"]) == (direct.status_code, direct.status_code)
    assert place.placed("ours") == place.placed("bulk") == place.placed("direct")
    if direct.is_success:
        assert place.has_vector(tiny_encoder, "ours", "a cat")
        assert place.has_vector(tiny_encoder, "bulk", "a mat")
        for id, text in (("ours", "a dog"), ("bulk", "the dog")):
            place.gateway.post(f"{place.path}/_update/{id}", json={"doc": {"text": text}}).raise_for_status()
            assert place.has_vector(tiny_encoder, id, text)
    try:
        with SemanticIndex(place.name, place.library, encoder=tiny_encoder) as index:
            index.add([{"id": "added", "text": "a tree"}], id_field="id")
    except EsSbertError:
        assert "add" in place.refused
        assert place.placed("added") == []
        return
    assert "add" not in place.refused
    assert place.placed("added") == place.placed("direct") != []
    assert place.has_vector(tiny_encoder, "added", "a tree")


def test_load_in_place_changes_only_the_documents_of_the_engine(
    place: Place, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    for index in place.indices:
        lines = [
            ("index", {"_id": f"new-{tenant}", "routing": tenant}, {"text": f"a {tenant}", "tenant": tenant})
            for tenant in ("one", "two")
        ]
        place.engine.post(f"/{index}/_bulk", content=bulk_lines(lines), headers=JSON).raise_for_status()
    before, seen = place.all_documents(), place.documents(place.path)
    try:
        load(str(place.engine.base_url), tiny_encoder, place.name, dead=tmp_path / "dead")
    except EsSbertError:
        assert "load" in place.refused
        assert place.all_documents() == before
        return
    assert "load" not in place.refused
    after = place.all_documents()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {key for key in seen if key[1].startswith("new-")} != set()
    assert all("embedding_meta" in after[key] for key in changed)
