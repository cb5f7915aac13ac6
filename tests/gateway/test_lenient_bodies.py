"""The gateway reads every body that an engine reads, and in the same way, or it refuses the request.

Otherwise a semantic query in such a body would match nothing, and its negation everything: `_delete_by_query` would
delete an index. A document would get no vector, or keep that of an older text.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import text_hash
from tests.engine.ingest_support import open_engine
from tests.engine.sources import read_sources
from tests.gateway.bed import Bed, bed_of
from tests.gateway.patient import ndjson

JSON_TYPE = "application/json"


def _same(text: bytes) -> bytes:
    return text


@dataclass(frozen=True)
class Form:
    text: Callable[[bytes], bytes] = _same
    body: Callable[[bytes], bytes] = _same
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": JSON_TYPE})

    def request(self, *objects: bytes) -> tuple[bytes, dict[str, str]]:
        lines = list(map(self.text, objects))
        return self.body(lines[0] if len(lines) == 1 else b"".join(line + b"\n" for line in lines)), dict(self.headers)


def _encoded(name: str, compress: Callable[[bytes], bytes] = _same) -> Form:
    return Form(body=compress, headers={"content-type": JSON_TYPE, "content-encoding": name})


def _typed(content_type: str, convert: Callable[[bytes], bytes] = _same) -> Form:
    return Form(text=convert, headers={"content-type": content_type})


def _deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


def _to_yaml(text: bytes) -> bytes:
    return yaml.safe_dump(orjson.loads(text)).encode()


def to_cbor(value: Any) -> bytes:
    """Encode objects, lists, strings, booleans and integers below 24 (RFC 8949)."""
    if isinstance(value, dict):
        return b"\xbf" + b"".join(to_cbor(part) for member in value.items() for part in member) + b"\xff"
    if isinstance(value, list):
        return b"\x9f" + b"".join(map(to_cbor, value)) + b"\xff"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return bytes([value])
    return b"\x78" + bytes([len(value.encode())]) + value.encode()


FORMS: dict[str, Form] = {
    "plain": Form(),
    "comment before": Form(lambda text: b"/* why */" + text),
    "comment inside": Form(lambda text: text.replace(b"{", b"{ /* why */ ", 1)),
    "comment after a key": Form(lambda text: text.replace(b'":', b'"/**/:')),
    "comment to the end of the line": Form(lambda text: text + b" // why"),
    "word after": Form(lambda text: text + b" x"),
    "zero after": Form(lambda text: text + b"\0"),
    "white space": Form(lambda text: b" \t" + text + b"\t "),
    "byte order mark": Form(lambda text: b"\xef\xbb\xbf" + text),
    "utf-16 with a mark": Form(lambda text: text.decode().encode("utf-16"), lambda body: body),
    "utf-32": Form(lambda text: text.decode().encode("utf-32-be"), lambda body: body),
    "broken utf-8": Form(lambda text: text.replace(b'"}', b'\xff"}', 1)),
    "escapes": Form(lambda text: text.replace(b'"semantic"', b'"\\u0073emantic"').replace(b'"text"', b'"\\u0074ext"')),
    "key twice": Form(lambda text: text[:-1] + b"," + text[1:]),
    "comma at the end": Form(lambda text: text[:-1] + b",}"),
    "single quotes": Form(lambda text: text.replace(b'"', b"'")),
    "not closed": Form(lambda text: text[:-1]),
    "list": Form(lambda text: b"[" + text + b"]"),
    "yaml": _typed("application/yaml", _to_yaml),
    "json as yaml": _typed("application/yaml"),
    "cbor": _typed("application/cbor", lambda text: to_cbor(orjson.loads(text))),
    "ndjson": _typed("application/x-ndjson"),
    "upper case": _typed("Application/JSON; charset=UTF-8"),
    "gzip": _encoded("gzip", gzip.compress),
    "gzip in two members": _encoded("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
    "gzip without its end": _encoded("gzip", lambda body: gzip.compress(body)[:-8]),
    "deflate": _encoded("deflate", _deflate),
    "unknown encoding": _encoded("br"),
}


TEXTS = {str(number): f"a man plays guitar {number}" for number in range(6)}
SEMANTIC: Json = {"match": {"semantic": "the cat sleeps"}}
ORDINARY: Json = {"match": {"text": "guitar"}}


@dataclass(frozen=True)
class Asked:
    path: str
    objects: tuple[Json, ...]
    method: str = "POST"
    writes: tuple[str, ...] = ()


def requests(query: Json) -> dict[str, Asked]:
    others: Json = {"bool": {"must_not": [query]}}
    reindex = {"source": {"index": "INDEX", "query": others}, "dest": {"index": "INDEX-copy"}}
    return {
        "search": Asked("_search", ({"query": query},)),
        "count": Asked("_count", ({"query": query},)),
        "explain": Asked("_explain/1", ({"query": query},)),
        "validate": Asked("_validate/query", ({"query": query},)),
        "msearch": Asked("_msearch", ({}, {"query": query}, {}, {"query": query, "size": 2})),
        "async_search": Asked("_async_search", ({"query": query},)),
        "template": Asked("_search/template", ({"source": {"query": query}},)),
        "msearch_template": Asked("_msearch/template", ({}, {"source": {"query": query}})),
        "delete_by_query": Asked("_delete_by_query?refresh=true", ({"query": others},)),
        "update_by_query": Asked("_update_by_query?refresh=true", ({"query": others},)),
        "reindex": Asked("/_reindex?refresh=true", (reindex,)),
        "rank_eval": Asked(
            "_rank_eval",
            (
                {
                    "requests": [{"id": "q", "request": {"query": query}, "ratings": []}],
                    "metric": {"precision": {"k": 5}},
                },
            ),
        ),
    }


WRITES = {
    "doc": Asked("_doc/0", ({"text": "the cat sleeps"},), "PUT", ("0",)),
    "create": Asked("_create/new", ({"text": "the cat sleeps"},), "PUT", ("new",)),
    "update": Asked("_update/1", ({"doc": {"text": "the cat sleeps"}},), writes=("1",)),
    "upsert": Asked("_update/new", ({"doc": {"text": "the cat"}, "doc_as_upsert": True},), writes=("new",)),
    "bulk": Asked(
        "_bulk",
        (
            {"index": {"_id": "0"}}, {"text": "the cat sleeps"}, {"update": {"_id": "1"}}, {"doc": {"text": "the cat"}},
            {"create": {"_id": "new"}}, {"text": "the cat"},
        ),
        writes=("0", "1", "new"),
    ),
}  # fmt: skip
APIS = (*requests(SEMANTIC), *WRITES)
BY_QUERY = ("delete_by_query", "update_by_query", "reindex")


@dataclass
class Place:
    bed: Bed
    engine: Engine
    before: dict[str, Json]

    def send(self, asked: Asked, form: Form, *, to_engine: bool = False) -> httpx.Response:
        index = self.bed.index
        path = asked.path if asked.path.startswith("/") else f"/{index}/{asked.path}"
        objects = [orjson.dumps(each).replace(b"INDEX", index.encode()) for each in asked.objects]
        content, headers = form.request(*objects)
        client = self.bed.engine if to_engine else self.bed.gateway
        return client.request(asked.method, path, content=content, headers=headers)

    def undo(self) -> dict[str, Json]:
        """Return the documents, and make them again what they were before."""
        after = documents(self.engine, self.bed.index)
        if after != self.before:
            again = [line for key, source in self.before.items() for line in ({"index": {"_id": key}}, source)]
            lines = [*again, {"delete": {"_id": "new"}}]
            self.engine.bulk(self.bed.index, ndjson(*lines))
            self.engine.refresh(self.bed.index)
        return after

    def was_copied(self) -> bool:
        """Whether documents were copied to another index, which is deleted."""
        found = self.engine.get_index(f"{self.bed.index}-copy") is not None
        self.engine.delete_index(f"{self.bed.index}-copy")
        return found


def documents(engine: Engine, index: str) -> dict[str, Json]:
    return read_sources(engine, index, [*TEXTS, "new"], source_includes=["*"])


@pytest.fixture(scope="module")
def place(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Place]:
    rows = [{"id": key, "text": text} for key, text in TEXTS.items()]
    with bed_of(engine_url, tiny, tiny_encoder, rows, k=3) as bed, open_engine(engine_url) as engine:
        yield Place(bed, engine, documents(engine, bed.index))


VARYING = frozenset({
    "took", "_seq_no", "_version", "_primary_term", "max_score", "_score", "description", "value", "details", "id",
    "result", "start_time_in_millis", "expiration_time_in_millis", "completion_time_in_millis",
    "embedding", "embedding_meta",  # hidden by the gateway
    "status",  # OpenSearch adds it to the answer to a template
})  # fmt: skip


def comparable(answer: Any) -> Any:
    """An answer without what differs from one run to the next, and without what the gateway hides."""
    if isinstance(answer, list):
        return [comparable(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    return {name: comparable(value) for name, value in answer.items() if name not in VARYING}


def outcome(response: httpx.Response) -> Any:
    """What a response says; None if it is a refusal."""
    if response.status_code >= 400:
        return None
    if "json" not in response.headers["content-type"]:
        return response.text
    answer = response.json()
    parts = [*answer.get("responses", []), *(each for item in answer.get("items", []) for each in item.values())]
    return None if any("error" in part for part in parts) or answer.get("failures") else comparable(answer)


@pytest.mark.parametrize("api", APIS)
def test_a_body_has_the_effect_of_plain_json_or_is_refused(place: Place, api: str) -> None:
    asked = (requests(SEMANTIC) | WRITES)[api]
    plain = outcome(place.send(asked, Form()))
    place.undo()
    if api in BY_QUERY:
        assert plain is None
    problems = []
    for name, form in FORMS.items():
        response = place.send(asked, form)
        found = outcome(response)
        if found is not None and found != plain:
            problems.append(f"{name}: {response.text[:300]}")
        if api not in BY_QUERY and api not in WRITES:
            continue
        after = place.undo()
        if any(place.before[key] != after.get(key) for key in place.before if key not in asked.writes):
            problems.append(f"{name}: another document was changed: {response.text[:200]}")
        stale = [key for key, source in after.items() if not is_current(source)]
        if stale:
            problems.append(f"{name}: {stale} lack the vector of their text: {response.text[:200]}")
        if api == "reindex" and place.was_copied():
            problems.append(f"{name}: documents were copied")
    assert problems == []


def is_current(source: Json) -> bool:
    meta = source.get("embedding_meta") or {}
    return source.get("embedding") is not None and meta.get("text_hash") == text_hash(source["text"])


@pytest.mark.parametrize("api", requests(ORDINARY))
def test_a_body_that_concerns_no_vector_gets_the_engines_answer_or_is_refused(place: Place, api: str) -> None:
    asked = requests(ORDINARY)[api]
    problems = []
    for name, form in FORMS.items():
        answers = []
        for to_engine in (True, False):
            found = outcome(place.send(asked, form, to_engine=to_engine))
            after = place.undo() if api in BY_QUERY else place.before
            answers.append((found, after, place.was_copied() if api == "reindex" else False))
        if answers[1] not in ((None, place.before, False), answers[0]):
            problems.append(f"{name}: {answers[0][0]} != {answers[1][0]}")
    assert problems == []


ALLOWED = (
    "plain", "comment before", "comment inside", "comment after a key", "comment to the end of the line", "white space",
    "byte order mark", "escapes", "ndjson", "upper case", "gzip",
)  # fmt: skip


@pytest.mark.parametrize("api", ["search", "count", "msearch", *WRITES])
def test_what_clients_send_and_comments_are_not_refused(place: Place, api: str) -> None:
    refused = []
    for name in ALLOWED:
        if outcome(place.send((requests(SEMANTIC) | WRITES)[api], FORMS[name])) is None:
            refused.append(name)
        place.undo()
    # Elasticsearch stores a document that begins with a comment, and cannot read it. OpenSearch rejects it.
    assert refused == (["comment before"] if api in ("doc", "create", "bulk") else [])


@pytest.mark.parametrize("parameters", ["q=NOT%20%73emantic:whales", "q=NOT+semantic:whales", "%71=NOT%20semantic:x"])
def test_names_in_parameters_are_read_as_engines_decode_them(place: Place, parameters: str) -> None:
    response = place.bed.gateway.post(f"/{place.bed.index}/_delete_by_query?{parameters}")
    assert response.status_code == 400
    assert place.undo() == place.before
