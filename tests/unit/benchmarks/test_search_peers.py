"""The comparison of searches: its parts that need no engine and no peer."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.search_peers import __main__ as command
from benchmarks.search_peers import results
from benchmarks.search_peers.contenders import ENGINE, GATEWAY, LIBRARY, offered_types, own_paths, peer_paths
from benchmarks.search_peers.corpus import Corpus, percentile, query_set, recall
from benchmarks.search_peers.loading import StoredVectors
from benchmarks.search_peers.measure import gateway_body, with_vector
from benchmarks.search_peers.results import (
    COLD_SEARCH,
    EMBEDDING,
    OWN_TIME,
    Cell,
    LoadedIndex,
    Run,
    clients_table,
    goals,
    index_table,
    keep,
    kept,
    run_text,
    section,
)
from benchmarks.search_peers.worker import HITS, HttpClient, SearchContender, check_count, closed_loop, complete_hits
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.mapping import IndexType


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 50) == 50.5
    assert percentile(values[::-1], 99) == pytest.approx(99.01)
    assert percentile([3.0], 95) == 3.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@pytest.fixture
def corpus() -> Corpus:
    vectors = np.array([[1, 0], [0.8, 0.6], [0.8, 0.6], [0, 1]], np.float32)
    return Corpus(["a", "b", "c", "d"], ["one", "two", "three", "four"], vectors)


def test_recall_takes_documents_that_are_as_near_as_the_last_one(corpus: Corpus) -> None:
    exact = corpus.exact_neighbors(np.array([[2, 0], [0, 3]], np.float32), 2)
    assert exact == [{"a", "b", "c"}, {"d", "b", "c"}]
    assert recall([["a", "c"], ["d", "b"]], exact, 2) == 1.0
    assert recall([["a", "d"], ["a", "c"]], exact, 2) == 0.5


def test_queries_are_distinct_and_not_documents(tmp_path: Path) -> None:
    (tmp_path / "sts").mkdir()
    for name in ("stsb-en-test", "stsb-en-dev", "stsb-en-train"):
        lines = ["sentence1\tsentence2\tscore", f"A dog.\tA cat of {name}\t1", "A dog!\tA document, too.\t2"]
        (tmp_path / f"sts/{name}.tsv.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    queries = query_set(tmp_path, ["a Document too"])
    assert sorted(queries.texts) == [
        "A cat of stsb-en-dev",
        "A cat of stsb-en-test",
        "A cat of stsb-en-train",
        "A dog!",
    ]


def test_stored_vectors_are_those_of_the_texts(corpus: Corpus) -> None:
    info = EncoderInfo("m", "f", 2, 256, "fp32", "fp32", "p", "cpu", 1)
    encoder = StoredVectors(corpus, info)
    vectors, embedded = encoder.embed_until(
        encoder.tokenize(["four", "one"], "document"), threading.Event(), lambda _: None
    )
    assert vectors.tolist() == [[0, 1], [1, 0]]
    assert embedded.all()


def test_another_vector_takes_the_place_of_that_of_a_body() -> None:
    body = {"knn": {"query_vector": [0.1, 0.2], "k": 10}, "_source": {"excludes": ["embedding", "x"]}, "size": 10}
    changed = with_vector(body, [3.0, 4.0])
    assert changed == body | {"knn": {"query_vector": [3.0, 4.0], "k": 10}}
    assert gateway_body("a text")["query"] == {"match": {"semantic": "a text"}}


def test_each_client_sends_every_query_once() -> None:
    seen: list[str] = []

    def search(query: str) -> str:
        seen.append(query)
        return query.upper()

    queries = [str(number) for number in range(200)]
    took, answers = closed_loop([search] * 8, iter(queries), 20)
    assert sorted(seen) == sorted(queries)
    assert sorted(answer for _, answer in answers) == sorted(queries)
    assert all(0 <= seconds <= took for seconds, _ in answers)


def test_loop_ends_with_its_time_and_fails_with_a_search() -> None:
    pause = threading.Event()
    took, answers = closed_loop([lambda query: pause.wait(0.01)] * 2, itertools.cycle("ab"), 0.1)
    assert answers
    assert took < 5

    def fail(query: str) -> None:
        raise ValueError("no hits")

    with pytest.raises(ValueError, match="no hits"):
        closed_loop([fail], iter("a"), 1)


class _Fake:
    """Finds ten documents, or for the query `few` nine."""

    details = ""

    def __init__(self, model: str, threads: int, options: dict[str, object]) -> None:
        pass

    def client(self) -> object:
        return lambda query: 9 if query == "few" else HITS

    def ids(self, answer: int) -> list[str]:
        return [str(number) for number in range(answer)]


def test_worker_counts_hits_and_times_each_answer(tmp_path: Path) -> None:
    contender = SearchContender({"fake": _Fake})
    contender.answer({"do": "load", "library": "fake", "model": "m", "threads": 1, "options": {}})
    file = tmp_path / "queries.json"
    file.write_text(json.dumps(["one", "two", "three"]))
    request = {"queries": str(file), "clients": 2, "seconds": 5, "repeat": False}
    answer = contender.answer({"do": "run", **request})
    assert len(answer["milliseconds"]) == 3
    assert answer["seconds"] > 0
    assert contender.answer({"do": "hits", "queries": str(file)})["ids"][0] == list("0123456789")
    file.write_text(json.dumps(["one", "few"]))
    with pytest.raises(ValueError, match="9 hits in place of 10"):
        contender.answer({"do": "run", **request})


def test_answer_that_lacks_shards_is_refused() -> None:
    answer = {"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": [{"_id": "a"}]}}
    assert complete_hits(answer) == ["a"]
    check_count(["x"] * HITS)
    for lacking in ({"timed_out": True}, {"_shards": {"failed": 1}}):
        with pytest.raises(ValueError, match="lacks shards"):
            complete_hits(answer | lacking)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])) + self.path.encode()
        self.send_response(400 if b"bad" in body else 200)
        if b"chunks" in body:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (body[:3], body[3:]):
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_http_client_reads_answers_of_known_and_of_unknown_length(address: str) -> None:
    client = HttpClient(address, "/i/_search")
    try:
        for body in ("plain ö", "in chunks", "plain"):
            assert client(body).decode() == f"{body}/i/_search"
        with pytest.raises(ValueError, match="400: bad"):
            client("bad")
    finally:
        client.close()


@pytest.mark.parametrize(
    ("engine_type", "version", "environments", "types"),
    [
        (EngineType.ELASTICSEARCH, (9, 4, 3), ["langchain-elasticsearch", "elasticsearch-py"], 5),
        (EngineType.ELASTICSEARCH, (8, 19, 8), ["langchain-elasticsearch", "elasticsearch-py-8"], 5),
        (EngineType.OPENSEARCH, (3, 6, 0), ["langchain-opensearch"], 3),
    ],
)
def test_peers_and_types_of_an_engine(
    engine_type: EngineType, version: tuple[int, int, int], environments: list[str], types: int
) -> None:
    info = EngineInfo(engine_type, version, "http://localhost:9200")
    peers = peer_paths(info)
    assert [peer.environment.name for peer in peers if peer.environment] == environments
    assert len({path.label for path in [*own_paths(), *peers]}) == 3 + len(peers)
    assert offered_types(info)[0] is IndexType.HNSW
    assert len(offered_types(info)) == types


def _cell(path: str, clients: int, rate: float, **fields: object) -> Cell:
    shares = {"client": [0.01, 0.03], "gateway": [0.0, 0.0], "engine": [0.5, 0.7], "others": [0.0, 0.2]}
    values = {"rates": [rate, rate + 2], "p50": [1.0, 2.0], "p95": [2.0, 3.0], "p99": [4.0, 5.0], "shares": shares}
    return Cell("hnsw", path, clients, answers=[10, 12], **{**values, **fields})  # type: ignore[arg-type]


def _run(engine: str = "Elasticsearch 9.4.3", kind: str = "amx", own: float = 1.4) -> Run:
    return Run(
        engine=engine,
        model=DEFAULT_MODEL,
        variant="int8",
        date="2026-01-01",
        commit="abc",
        rounds=2,
        seconds=3.0,
        threads=2,
        documents=100_000,
        queries=500,
        processor={"kind": kind, "name": "Some CPU", "features": ["avx2"], "cores": 2},
        python="3.11",
        load=0.1,
        indices=[LoadedIndex("hnsw", 60.4, 1, {ENGINE: 0.99, LIBRARY: 0.985})],
        cells=[
            _cell(ENGINE, 1, 1000.123456),
            _cell(LIBRARY, 1, 100),
            _cell(LIBRARY, 8, 200),
            Cell("hnsw", GATEWAY, 1, "run: ValueError: an | answer"),
        ],
        figures={EMBEDDING: [1.0, 1.5], OWN_TIME: [own, own], "encoding alone": [2.0, 2.0]},
        versions={"es-sbert": {"es-sbert": "1"}},
    )


def test_goals_are_met_missed_or_not_measured() -> None:
    assert [goal.met for goal in goals(_run())] == [True, True, None]
    assert [goal.met for goal in goals(replace(_run(own=1.51), figures={OWN_TIME: [1.51], COLD_SEARCH: [0.9]}))] == [
        None,
        False,
        False,
    ]
    assert "1.25 (1.00–1.50) ms, goal ≤ 2 ms: met" in str(next(goals(_run())))


def test_tables_have_every_cell_and_index() -> None:
    lines = clients_table(_run(), 1).splitlines()
    assert len(lines) == 5
    assert "| 1,001 (1,000–1,002) | 1.5 (1.0–2.0) | 2.5 (2.0–3.0) | 4.5 (4.0–5.0) | 2%, 0%, 60% |" in lines[2]
    assert "failed: run: ValueError: an \\| answer" in lines[4]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "| hnsw | 60 | 1 | 0.990 | 0.985 |" in index_table(_run())
    text = run_text(_run())
    assert "8 clients:" in text
    assert "the machine was busy" in text
    assert "encoding alone 2.00 (2.00–2.00) ms" in text


def test_run_replaces_only_its_own_kind_and_engine(tmp_path: Path) -> None:
    keep(_run(kind="avx2"), tmp_path)
    keep(_run(), tmp_path)
    keep(_run("OpenSearch 3.6.0"), tmp_path)
    before = (tmp_path / "avx2.json").read_bytes()
    keep(_run("Elasticsearch 9.5.0", own=1.7), tmp_path)
    assert (tmp_path / "avx2.json").read_bytes() == before
    runs = kept(tmp_path)
    assert list(runs) == ["amx", "avx2"]
    assert list(runs["amx"]) == ["Elasticsearch 9", "OpenSearch 3"]
    assert runs["amx"]["Elasticsearch 9"].engine == "Elasticsearch 9.5.0"
    assert runs["amx"]["Elasticsearch 9"].cells[0].rates == [1000.1235, 1002.1235]
    text = section(runs)
    assert text.index("#### x86 with AMX: Elasticsearch 9.5.0") < text.index("#### x86 with AMX: OpenSearch 3.6.0")
    assert section(kept(tmp_path / "missing")) == "No processor has been measured yet."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "."], "--data and --url are needed"),
        (["--data", ".", "--url", "http://x", "--write", "--types", "flat"], "--write is for whole runs"),
    ],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command.main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_command_writes_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    page.write_text(f"# Results\n<!-- {results.NAME}: made by {results.MAKER} -->\n<!-- end of {results.NAME} -->\n")
    keep(_run(), tmp_path)
    runs = kept(tmp_path)
    monkeypatch.setattr(results, "PAGE", page)
    monkeypatch.setattr(results, "kept", lambda: runs)
    result = CliRunner().invoke(command.main, ["--kept", "--write"])
    assert result.exit_code == 0
    assert "#### x86 with AMX: Elasticsearch 9.4.3" in page.read_text()
