"""The search log: what it takes from searches and answers, and a file that is rotated, slow, full or gone."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.engines.rest import Json
from es_sbert.gateway.search.search_log import SearchLog, SearchRecorder, SearchTrace, read_trace
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticSyntax
from es_sbert.gateway.settings import SearchLogSettings
from es_sbert.index.vector_field import VectorField
from es_sbert.search.search_scope import SearchScope
from tests.unit.gateway.rewriting import vector_field

ROOT = Path(__file__).parents[3]
unix = pytest.mark.skipif(sys.platform == "win32", reason="needs files of Unix")


def search(number: int, index: str = "docs", text: str = "secret words") -> Json:
    return {"index": index, "milliseconds": {"total": float(number)}, "texts": [text]}


def settings(
    path: Path, *, log_queries: bool = False, buffer: int = 10_000, seconds: float = 60.0
) -> SearchLogSettings:
    return SearchLogSettings(path, log_queries, "here", buffer=buffer, close_seconds=seconds)


def logged(path: Path, *records: Json, log_queries: bool = False) -> list[Json]:
    """The lines that a gateway writes."""
    log = SearchLog(settings(path, log_queries=log_queries))
    log.start()
    for each in records:
        log.record(each)
    asyncio.run(log.close())
    assert log.dropped == 0
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def numbers(content: bytes) -> list[int]:
    return [int(orjson.loads(line)["milliseconds"]["total"]) for line in content.splitlines()]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_records_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    for start in (0, 1300):
        logged(path, *map(search, range(start, start + 1300)))
    assert numbers(path.read_bytes()) == list(range(2600))
    assert b"secret" not in path.read_bytes()


@unix
@pytest.mark.parametrize("removed", [False, True])
def test_file_that_was_rotated_is_created_again(tmp_path: Path, removed: bool) -> None:
    path, old = tmp_path / "searches.jsonl", tmp_path / "searches.jsonl.1"
    log = SearchLog(settings(path))
    log.start()
    log.record(search(0))
    until(lambda: path.stat().st_size > 0)
    if removed:
        path.unlink()
    else:
        path.rename(old)
    log.record(search(1))
    log.record(search(2) | {"index": ".kibana"})
    asyncio.run(log.close())
    log.record(search(3))
    assert (numbers(path.read_bytes()), log.dropped) == ([1], 1)
    if not removed:
        assert numbers(old.read_bytes()) == [0]


@unix
def test_reader_that_does_not_keep_up_costs_records_but_never_blocks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = SearchLog(settings(pipe, buffer=10, seconds=0.2))
        log.start()
        start = time.monotonic()
        for number in range(20_000):
            log.record(search(number))
        asyncio.run(log.close())
        assert time.monotonic() - start < 30
        assert 0 < log.dropped < 20_000
        assert any(getattr(record, "event", "") == "search_log_dropped" for record in caplog.records)
    finally:
        os.close(reader)


@unix
def test_error_costs_its_records_and_no_line_is_joined_to_a_broken_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, failing = tmp_path / "searches.jsonl", os.write, threading.Event()

    def half(descriptor: int, data: memoryview) -> int:
        if not failing.is_set():
            return write(descriptor, data)
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) - 50])

    monkeypatch.setattr("es_sbert.gateway.search.search_log.os.write", half)
    log = SearchLog(settings(path))
    log.start()
    log.record(search(0))
    until(lambda: path.stat().st_size > 0)
    failing.set()
    with caplog.at_level(logging.WARNING):
        log.record(search(1))
        until(lambda: log.dropped == 1)
    failing.clear()
    log.record(search(2))
    asyncio.run(log.close())
    first, broken, last = path.read_bytes().splitlines()
    assert numbers(first + b"\n" + last) == [0, 2]
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(broken)
    assert "1 record is missing from the search log" in caplog.text
    assert "No space left on device" in caplog.text


def test_dash_is_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = SearchLog(settings(Path("-")))
    log.start()
    log.record(search(3))
    asyncio.run(log.close())
    assert numbers(capfdbinary.readouterr().out) == [3]


def _names(value: Json, prefix: str = "") -> set[str]:
    """The names of all fields of a document, or of a mapping."""
    names: set[str] = set()
    for name, member in value.items():
        inner = member.get("properties", member) if isinstance(member, dict) else {"type": None}
        names |= {prefix + name} if "type" in inner else _names(inner, f"{prefix}{name}.")
    return names


def test_lines_and_index_template_have_the_same_fields(tmp_path: Path) -> None:
    recorder = SearchRecorder("docs", "search", [SearchTrace(queries=(semantic_query(),), seconds=0.5)], status=200)
    recorder.watch()(b'{"hits":{"total":3}}')
    [line] = logged(tmp_path / "searches.jsonl", *recorder.records(), log_queries=True)
    template = orjson.loads((ROOT / "examples/search-log/index-template.json").read_bytes())
    assert _names(line) == _names(template["template"]["mappings"]["properties"])


@pytest.mark.parametrize("log_queries", [False, True])
def test_query_text_is_logged_only_when_enabled(tmp_path: Path, log_queries: bool) -> None:
    texts = ["Plants  and\tenergy ", "plants and energy", "plants and energies"]
    path, restarted = tmp_path / "searches.jsonl", tmp_path / "restarted.jsonl"
    lines = logged(path, *(search(0, text=text) for text in texts), log_queries=log_queries)
    assert [line.get("query") for line in lines] == ([[text] for text in texts] if log_queries else [None] * 3)
    assert (b"energ" in path.read_bytes()) is log_queries
    [first], [same], [other] = (line["query_hash"] for line in lines)
    assert first == same != other
    # The key of the hashes is that of the process.
    assert logged(restarted, search(0, text=texts[0]))[0]["query_hash"] != [first]


ANSWER = b'{"took":1,"timed_out":false,"_shards":{"total":1},"hits":{"total":{"value":17,"relation":"eq"},"hits":[]}}'


@pytest.mark.parametrize(
    ("answer", "total"),
    [
        (ANSWER, 17),
        (b'{"hits":{"total":3,"max_score":null,"hits":[]}}', 3),
        (gzip.compress(ANSWER), 17),
        (ANSWER + b" " * 20_000, 17),
        (b"\x1f\x8b\x08\x00 damaged on its way", None),
    ],
    ids=["object", "number", "gzip", "long", "damaged"],
)
def test_total_hits_are_parsed_from_partial_responses(answer: bytes, total: int | None) -> None:
    recorder = SearchRecorder("docs", "search")
    part = recorder.watch()
    for start in range(0, len(answer), 7):
        part(answer[start : start + 7])
    assert recorder.records()[0]["hits"] == total


# The query of Discover before anything is typed, of a data view with a time field.
_TIME_RANGE = b'{"range":{"at":{"gte":"2026-11-26"}}}'
_OPENED = b'{"bool":{"must":[],"filter":[{"match_all":{}},%b],"should":[],"must_not":[]}}' % _TIME_RANGE


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (_OPENED, True),
        (b'{"match_all":{}}', True),
        (_OPENED.replace(b'{"match_all":{}}', b'{"match_phrase":{"tag":"music"}}'), False),
        (_OPENED.replace(b'"must_not":[]', b'"must_not":[{"match_phrase":{"tag":"music"}}]'), False),
        (b'{"bool":{"should":[{"range":{"year":{"gt":2000}}}],"minimum_should_match":1}}', False),
        (b'{"query_string":{"query":"piano"}}', False),
    ],
)
def test_search_without_typed_query_is_recognized(query: bytes, expected: bool) -> None:
    trace = read_trace(b'{"size":500,"query":%b}' % query)
    assert (trace.kind, trace.returns_hits) == ("browse" if expected else "lexical", True)


def semantic_query(**changed: Any) -> SemanticQuery:
    scope = SearchScope((VectorField("docs", "embedding", vector_field()),))
    return SemanticQuery(scope, "plants", **({"k": 10, "syntax": SemanticSyntax.VIRTUAL_FIELD} | changed))


def test_records_say_what_each_search_of_a_request_was() -> None:
    recorder = SearchRecorder("docs,old", "msearch", status=200)
    recorder.searches += [
        SearchTrace(),
        SearchTrace("articles", queries=(semantic_query(), semantic_query(k=7)), seconds=0.5),
        SearchTrace(is_semantic=True, status=400),  # refused before its texts were known
        # Its model could not be loaded.
        SearchTrace(queries=(semantic_query(syntax=SemanticSyntax.HYBRID),), status=503, returns_hits=False),
    ]
    records = recorder.records()
    members = ("index", "api", "kind", "k", "status", "texts", "returns_hits")
    assert [tuple(record[member] for member in members) for record in records] == [
        ("docs,old", "_msearch", "lexical", None, 200, [], True),
        ("articles", "_msearch", "semantic", 10, 200, ["plants"], True),
        ("docs,old", "_msearch", "semantic", None, 400, [], True),
        ("docs,old", "_msearch", "hybrid", 10, 503, ["plants"], False),
    ]
    assert [record["milliseconds"].get("embedding") for record in records] == [None, 500.0, None, None]
    # Of a request that was refused before anything of it was read.
    [unread] = SearchRecorder("docs", "search", status=413).records()
    assert (unread["kind"], unread["status"]) == ("lexical", 413)
