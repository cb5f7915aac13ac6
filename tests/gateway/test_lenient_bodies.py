"""The gateway reads every body that an engine reads, and in the same way, or it refuses the request.

Otherwise a semantic query in such a body would match nothing, and its negation everything: `_delete_by_query` would
delete an index. A document would get no vector, or keep that of an older text.

Each form of `lenient_bodies` is tried with each API. ES_SBERT_TEST_LENIENT=all also tries each combination of a form of
the text with one of the whole body, of which otherwise a few are drawn.
"""

from __future__ import annotations

import gzip
import os
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from tests.gateway.conftest import loaded_index, tiny_gateway

JSON_TYPE = "application/json"


def _same(text: bytes) -> bytes:
    return text


@dataclass(frozen=True)
class Form:
    """A way to write a body.

    Attributes:
        text: Rewrites one JSON object. A body of several lines has this form in each of them.
        body: Rewrites the whole body.
        headers: Of the request, in place of `content-type: application/json`.
    """

    text: Callable[[bytes], bytes] = _same
    body: Callable[[bytes], bytes] = _same
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": JSON_TYPE})

    def request(self, *objects: bytes) -> tuple[bytes, dict[str, str]]:
        """The body with these objects, and its headers."""
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


def _overlong(text: bytes) -> bytes:
    """The letters of `semantic` and `text`, each in two bytes of UTF-8 instead of one."""
    for name in (b"semantic", b"text"):
        text = text.replace(
            b'"%s"' % name, b'"' + bytes(b for c in name for b in (0xC0 | c >> 6, 0x80 | c & 0x3F)) + b'"'
        )
    return text


def to_cbor(value: Any, *, in_pieces: bool = False) -> bytes:
    """Encode objects, lists, strings, booleans and integers below 24 (RFC 8949).

    Args:
        in_pieces: Whether to write strings in pieces of one character.
    """
    if isinstance(value, dict):
        members = (to_cbor(part, in_pieces=in_pieces) for member in value.items() for part in member)
        return b"\xbf" + b"".join(members) + b"\xff"
    if isinstance(value, list):
        return b"\x9f" + b"".join(to_cbor(part, in_pieces=in_pieces) for part in value) + b"\xff"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return bytes([value])
    text = value.encode()
    if in_pieces:
        return b"\x7f" + b"".join(b"\x61" + bytes([each]) for each in text) + b"\xff"
    return b"\x78" + bytes([len(text)]) + text


def to_smile(value: Any) -> bytes:
    """Encode the same as `to_cbor` in Jackson's format SMILE, with strings of up to 64 characters."""

    def encode(part: Any) -> bytes:
        if isinstance(part, dict):
            members = (bytes([0x7F + len(name)]) + name.encode() + encode(inner) for name, inner in part.items())
            return b"\xfa" + b"".join(members) + b"\xfb"
        if isinstance(part, list):
            return b"\xf8" + b"".join(map(encode, part)) + b"\xf9"
        if isinstance(part, bool):
            return b"\x23" if part else b"\x22"
        if isinstance(part, int):
            return b"\x24" + bytes([0x80 | 2 * part])
        return bytes([0x3F + len(part)]) + part.encode()

    return b":)\n\x00" + encode(value)


FORMS: dict[str, Form] = {
    "plain": Form(),
    "comment before": Form(lambda text: b"/* why */" + text),
    "comment inside": Form(lambda text: text.replace(b"{", b"{ /* why */ ", 1)),
    "comment at the end inside": Form(lambda text: text[:-1] + b"/* } */}"),
    "comment after": Form(lambda text: text + b" /* why */"),
    "comment after a key": Form(lambda text: text.replace(b'":', b'"/**/:')),
    "comment with quotes": Form(lambda text: text.replace(b"{", b'{/* " */', 1)),
    "comment to the end of the line": Form(lambda text: text + b" // why"),
    "comment that does not end": Form(lambda text: text + b" /* why"),
    "word after": Form(lambda text: text + b" x"),
    "object after": Form(lambda text: text + b" {}"),
    "brace after": Form(lambda text: text + b"}"),
    "zero after": Form(lambda text: text + b"\0"),
    "white space": Form(lambda text: b" \t" + text + b"\t "),
    "byte order mark": Form(lambda text: b"\xef\xbb\xbf" + text),
    "utf-16": Form(lambda text: text.decode().encode("utf-16-le"), lambda body: body),
    "utf-16 with a mark": Form(lambda text: text.decode().encode("utf-16"), lambda body: body),
    "utf-32": Form(lambda text: text.decode().encode("utf-32-be"), lambda body: body),
    "overlong utf-8": Form(_overlong),
    "broken utf-8": Form(lambda text: text.replace(b'"}', b'\xff"}', 1)),
    "escapes": Form(lambda text: text.replace(b'"semantic"', b'"\\u0073emantic"').replace(b'"text"', b'"\\u0074ext"')),
    "key twice": Form(lambda text: text[:-1] + b"," + text[1:]),
    "comma at the end": Form(lambda text: text[:-1] + b",}"),
    "not a number": Form(lambda text: text[:-1] + b',"boost":NaN}'),
    "single quotes": Form(lambda text: text.replace(b'"', b"'")),
    "not closed": Form(lambda text: text[:-1]),
    "list": Form(lambda text: b"[" + text + b"]"),
    "yaml": _typed("application/yaml", _to_yaml),
    "yaml that looks like json": _typed("application/yaml; charset=json", _to_yaml),
    "json as yaml": _typed("application/yaml"),
    "cbor": _typed("application/cbor", lambda text: to_cbor(orjson.loads(text))),
    "cbor in pieces": _typed("application/cbor", lambda text: to_cbor(orjson.loads(text), in_pieces=True)),
    "smile": _typed("application/smile", lambda text: to_smile(orjson.loads(text))),
    "ndjson": _typed("application/x-ndjson"),
    "upper case": _typed("Application/JSON; charset=UTF-8"),
    "without a type": Form(headers={}),
    "form": _typed("application/x-www-form-urlencoded"),
    "gzip": _encoded("gzip", gzip.compress),
    "gzip in two members": _encoded("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
    "gzip with a tail": _encoded("gzip", lambda body: gzip.compress(body) + b"xx"),
    "gzip without its end": _encoded("gzip", lambda body: gzip.compress(body)[:-8]),
    "deflate": _encoded("deflate", _deflate),
    "deflate with a tail": _encoded("deflate", lambda body: zlib.compress(body) + b"xx"),
    "unknown encoding": _encoded("br"),
    "two encodings": _encoded("gzip, identity", gzip.compress),
}


TEXTS = {str(number): f"a man plays guitar {number}" for number in range(6)}
SEMANTIC: Json = {"match": {"semantic": "the cat sleeps"}}
ORDINARY: Json = {"match": {"text": "guitar"}}


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        path: After the index; from the root if it begins with a slash.
        objects: The JSON objects of its body; `INDEX` stands for the index.
        writes: Ids of the documents that it may write.
    """

    path: str
    objects: tuple[Json, ...]
    method: str = "POST"
    writes: tuple[str, ...] = ()


def requests(query: Json) -> dict[str, Asked]:
    """Requests of each API, with a query that selects documents."""
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
class Bed:
    """An engine with an index of `TEXTS`, and a gateway before it.

    Attributes:
        engine: A connection to the engine.
        addresses: Of the engine and of the gateway.
        index: Its name.
        client: Sends the requests.
        before: Its documents.
    """

    engine: Engine
    addresses: tuple[str, str]
    index: str
    client: httpx.Client
    before: dict[str, Json] = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.documents()

    def send(self, asked: Asked, form: Form, *, to_engine: bool = False) -> httpx.Response:
        path = asked.path if asked.path.startswith("/") else f"/{self.index}/{asked.path}"
        objects = [orjson.dumps(each).replace(b"INDEX", self.index.encode()) for each in asked.objects]
        content, headers = form.request(*objects)
        address = self.addresses[0 if to_engine else 1]
        return self.client.request(asked.method, address + path, content=content, headers=headers)

    def documents(self) -> dict[str, Json]:
        """The documents, read from the engine."""
        return read_sources(self.engine, self.index, [*TEXTS, "new"], source_includes=["*"])

    def undo(self) -> dict[str, Json]:
        """Return the documents, and make them again what they were before."""
        after = self.documents()
        if after != self.before:
            again = [line for key, source in self.before.items() for line in ({"index": {"_id": key}}, source)]
            lines = [*again, {"delete": {"_id": "new"}}]
            self.engine.bulk(self.index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
            self.engine.refresh(self.index)
        return after

    def was_copied(self) -> bool:
        """Whether documents were copied to another index, which is deleted."""
        found = self.engine.get_index(f"{self.index}-copy") is not None
        self.engine.delete_index(f"{self.index}-copy")
        return found


@pytest.fixture(scope="module")
def bed(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Bed]:
    with (
        loaded_index(engine_url, tiny_encoder, [{"id": key, "text": text} for key, text in TEXTS.items()]) as index,
        tiny_gateway(engine_url, tiny, k=3) as gateway,
        open_engine(engine_url) as engine,
        httpx.Client(timeout=120, trust_env=False) as client,
    ):
        yield Bed(engine, (engine_url, gateway), index, client)


def forms() -> dict[str, Form]:
    """Each form, and combinations of one of the text with one of the whole body."""
    texts = {name: form for name, form in FORMS.items() if form.headers == Form().headers and form.body is Form().body}
    bodies = {name: form for name, form in FORMS.items() if name not in texts}
    pairs = [(text, body) for text in texts for body in bodies if bodies[body].text is Form().text]
    if os.environ.get("ES_SBERT_TEST_LENIENT") != "all":
        pairs = random.Random(0).sample(pairs, 6)
    return FORMS | {f"{text}, {body}": replace(bodies[body], text=texts[text].text) for text, body in pairs}


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
def test_a_body_has_the_effect_of_plain_json_or_is_refused(bed: Bed, api: str) -> None:
    asked = (requests(SEMANTIC) | WRITES)[api]
    plain = outcome(bed.send(asked, Form()))
    bed.undo()
    if api in BY_QUERY:
        assert plain is None
    problems = []
    for name, form in forms().items():
        response = bed.send(asked, form)
        found = outcome(response)
        if found is not None and found != plain:
            problems.append(f"{name}: {response.text[:300]}")
        if api not in BY_QUERY and api not in WRITES:
            continue
        after = bed.undo()
        if any(bed.before[key] != after.get(key) for key in bed.before if key not in asked.writes):
            problems.append(f"{name}: another document was changed: {response.text[:200]}")
        stale = [key for key, source in after.items() if not is_current(source)]
        if stale:
            problems.append(f"{name}: {stale} lack the vector of their text: {response.text[:200]}")
        if api == "reindex" and bed.was_copied():
            problems.append(f"{name}: documents were copied")
    assert problems == []


def is_current(source: Json) -> bool:
    meta = source.get("embedding_meta") or {}
    return source.get("embedding") is not None and meta.get("text_hash") == text_hash(source["text"])


@pytest.mark.parametrize("api", requests(ORDINARY))
def test_a_body_that_concerns_no_vector_gets_the_engines_answer_or_is_refused(bed: Bed, api: str) -> None:
    asked = requests(ORDINARY)[api]
    problems = []
    for name, form in FORMS.items():
        answers = []
        for to_engine in (True, False):
            found = outcome(bed.send(asked, form, to_engine=to_engine))
            after = bed.undo() if api in BY_QUERY else bed.before
            answers.append((found, after, bed.was_copied() if api == "reindex" else False))
        if answers[1] not in ((None, bed.before, False), answers[0]):
            problems.append(f"{name}: {answers[0][0]} != {answers[1][0]}")
    assert problems == []


ALLOWED = (
    "plain", "comment before", "comment inside", "comment at the end inside", "comment after", "comment after a key",
    "comment with quotes", "comment to the end of the line", "white space", "byte order mark", "escapes", "ndjson",
    "upper case", "gzip",
)  # fmt: skip


@pytest.mark.parametrize("api", ["search", "count", "msearch", *WRITES])
def test_what_clients_send_and_comments_are_not_refused(bed: Bed, api: str) -> None:
    refused = []
    for name in ALLOWED:
        if outcome(bed.send((requests(SEMANTIC) | WRITES)[api], FORMS[name])) is None:
            refused.append(name)
        bed.undo()
    # Elasticsearch stores a document that begins with a comment, and cannot read it. OpenSearch rejects it.
    assert refused == (["comment before"] if api in ("doc", "create", "bulk") else [])


@pytest.mark.parametrize("parameters", ["q=NOT%20%73emantic:whales", "q=NOT+semantic:whales", "%71=NOT%20semantic:x"])
def test_names_in_parameters_are_read_as_engines_decode_them(bed: Bed, parameters: str) -> None:
    response = bed.client.post(f"{bed.addresses[1]}/{bed.index}/_delete_by_query?{parameters}")
    assert response.status_code == 400
    assert bed.undo() == bed.before
