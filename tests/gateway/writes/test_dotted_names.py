"""Texts in fields with dotted names: documents and updates spell them in either way, and so does `_source`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import read_document_meta, text_hash
from es_sbert.index.mapping import index_body
from es_sbert.index.text_template import MISSING, TextTemplate, find_field
from tests.engine.ingest_support import contents, open_engine, same_vectors, vector_of
from tests.engine.vectors import field_of
from tests.gateway.writes.support import JSON, bulk_lines

SYNTHETIC = {"index.mapping.source.mode": "synthetic"}
FLAT = {"subobjects": False}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stored": ({}, {}),
    "stored-flat": ({}, FLAT),
    "synthetic": (SYNTHETIC, {}),
    "synthetic-flat": (SYNTHETIC, FLAT),
    "logsdb-flat": ({"index.mode": "logsdb"}, FLAT),
}
# A text field without a keyword keeps the order of its values in every kind of `_source`.
PROPERTIES = {"a.b": {"type": "text"}, "c": {"type": "text"}, "@timestamp": {"type": "date"}}
WHOLE: list[dict[str, Any]] = [
    {"a.b": "the river"},
    {"a": {"b": "the river"}},
    {"a": {"b": "the river"}, "a.b": "bread"},
    {"c": "the river"},
]
PARTIAL: list[dict[str, Any]] = [
    {"a.b": "the cat sleeps"},
    {"a": {"b": "the cat sleeps"}},
    {"a": None},
    {"a.b": None},
    {"a": {"b": None}},
    {"c": "a storm"},
    {"a.b": None, "c": None},
    {"o": {"p": 2}},
]
Write = tuple[str, dict[str, Any], Any]


@pytest.fixture
def twins(
    kind: str, template: str, engine_url: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder
) -> tuple[str, str]:
    """An index with vectors, and one without, which shows what the engine makes of requests."""
    settings, mapped = KINDS[kind]
    with open_engine(engine_url) as engine:
        if (settings or mapped) and engine.info.engine_type is not EngineType.ELASTICSEARCH:
            pytest.skip("only Elasticsearch has a synthetic source, and mappings without objects")
        body = index_body(engine.info.engine_type, "embedding", field_of(tiny_encoder.info, template))
        body["mappings"]["properties"] |= PROPERTIES
        names = fresh_index(engine_url), fresh_index(engine_url)
        engine.create_index(names[0], {"settings": body["settings"] | settings, "mappings": body["mappings"] | mapped})
        engine.create_index(names[1], {"settings": settings, "mappings": {"properties": PROPERTIES} | mapped})
    return names


@pytest.mark.parametrize("template", ["{a.b}", "{a.b} {c}"])
@pytest.mark.parametrize("kind", KINDS)
def test_vector_belongs_to_text_and_no_field_is_lost(
    engine_url: str, client: httpx.Client, twins: tuple[str, str], tiny_encoder: Encoder, kind: str, template: str
) -> None:
    cases = list(product(WHOLE, PARTIAL, PARTIAL))
    if kind == "logsdb-flat":
        # The engine itself loses a value that an update adds to a list under another spelling.
        other = {"a": {"b": "the cat sleeps"}}
        cases = [case for case in cases if len(case[0]) == 1 and case[1:] != (other, other)]
    steps: list[list[Write]] = [[], [], [], []]
    for number, (whole, first, second) in enumerate(cases):
        document = whole | {"@timestamp": "2026-01-01T00:00:00Z", "o": {"p": 1}, "n": number}
        writes: list[Write] = [
            ("index", {"_id": f"s{number}"}, document),
            ("update", {"_id": f"s{number}"}, {"doc": first}),
            ("update", {"_id": f"s{number}"}, {"doc": second, "doc_as_upsert": True}),
        ]
        for step, write in enumerate(writes):
            steps[step].append(write)
            # And all in one request.
            steps[3].append((write[0], {"_id": f"t{number}"}, write[2]))
    for step in steps:
        for name, url in zip(twins, (str(client.base_url), engine_url), strict=True):
            body = bulk_lines(step)
            answer = httpx.post(f"{url}/{name}/_bulk?refresh=true", content=body, headers=JSON, timeout=300)
            assert answer.json()["errors"] is False, answer.text[:2000]
        check(engine_url, twins, tiny_encoder, template)
    other = cases.index((WHOLE[0], {"c": "a storm"}, {"o": {"p": 2}}))
    for id, doc in (("s0", {"a.b": "bread"}), (f"s{other}", {"a": {"b": "bread"}}), ("s2", {"c": "bread"})):
        for name, url in zip(twins, (str(client.base_url), engine_url), strict=True):
            httpx.post(f"{url}/{name}/_update/{id}", json={"doc": doc}, timeout=60).raise_for_status()
    check(engine_url, twins, tiny_encoder, template)


def orders(source: dict[str, Any], template: TextTemplate) -> dict[str, str]:
    """Hash → text, for the values of `a.b` in each order: engines return two spellings of a name in any order."""
    values = find_field(source, "a.b")
    found = permutations(values) if isinstance(values, list) else [[values]]
    others = {"c": source.get("c")}
    texts = (template.text_of(others | ({} if MISSING in order else {"a.b": [*order]})) for order in found)
    return {text_hash(text): text for text in texts if text}


def check(url: str, names: tuple[str, str], encoder: Encoder, template: str) -> None:
    """Every document has the vector of its text, and all fields that it has without es-sbert."""
    ours, plain = (contents(url, name) for name in names)
    assert ours.keys() == plain.keys()
    texts = {id: orders(source, TextTemplate.parse(template)) for id, source in ours.items()}
    distinct = sorted({text for some in texts.values() for text in some.values()})
    vectors = dict(zip(distinct, encoder.encode(distinct, "document"), strict=True))
    for id, source in ours.items():
        others = {name: value for name, value in source.items() if not name.startswith(("embedding", "_version"))}
        assert others == {name: value for name, value in plain[id].items() if name != "_version"}
        meta = read_document_meta(source, "embedding_meta")
        if texts[id]:
            assert meta is not None, (id, source)
            assert meta.text_hash in texts[id], (id, source)
            assert same_vectors(vector_of(source), vectors[texts[id][meta.text_hash]]), (id, others)
        else:
            assert source.get("embedding") is None, (id, others)
            assert meta is None, (id, source)
