"""Smoke tests of the comparisons with other libraries: no peer is installed, and no engine runs."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import pairs
from benchmarks.encode_peers import __main__ as encode_command
from benchmarks.encode_peers import worker
from benchmarks.encode_peers.contenders import AUTO, REFERENCE, Contender, own_contenders, peer_contenders
from benchmarks.encode_peers.environments import Environments, without_addresses
from benchmarks.encode_peers.measure import Comparison, ContenderFailed, ContenderProcess, sts_correlation
from benchmarks.encode_peers.processor import describe, onnx_instructions, others_share, parse_busy
from benchmarks.encode_peers.results import ContenderResult, Run
from benchmarks.encode_peers.texts import OWN, PARAGRAPHS, SHORT, STSB, TextSet, distinct, short_documents, text_sets
from benchmarks.ingest_peers import __main__ as ingest_command
from benchmarks.ingest_peers import worker as ingest_worker
from benchmarks.ingest_peers.contenders import OWN as OWN_LOAD
from benchmarks.ingest_peers.contenders import contenders
from benchmarks.ingest_peers.measure import check_vectors
from benchmarks.ingest_peers.results import BULK, EMBEDDING, LOAD, WHOLE, LoadRun, harmonic_limit
from benchmarks.kept_runs import Section
from benchmarks.pairs_results import OURS, PairsResult, PairsRun
from benchmarks.ready_vectors import ReadyEncoder
from benchmarks.search_peers import __main__ as search_command
from benchmarks.search_peers.contenders import ENGINE, GATEWAY, LIBRARY, offered_types, own_paths, peer_paths
from benchmarks.search_peers.corpus import Corpus, percentile, recall
from benchmarks.search_peers.measure import with_vector
from benchmarks.search_peers.results import OWN_TIME, Cell, LoadedIndex
from benchmarks.search_peers.results import Run as SearchRun
from benchmarks.search_peers.worker import closed_loop, complete_hits
from es_sbert.config import DEFAULT_MODEL
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.mapping import IndexType

_ENGINES = [
    EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "http://localhost:9200"),
    EngineInfo(EngineType.ELASTICSEARCH, (8, 19, 8), "http://localhost:9200"),
    EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200"),
]
_FAKE = f"""
import importlib.util, time
spec = importlib.util.spec_from_file_location("worker", {worker.__file__!r})
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

class Fake:
    def __init__(self, model, threads, options):
        print("a library that prints")
        if options.get("broken"):
            raise ValueError("no file at /home/someone/models/model.onnx")
        self.details = f"{{model}} {{threads}}"

    def encode(self, texts):
        return [[len(text), text.count("a"), 1.0] for text in texts]

worker.serve({{"fake": Fake}})
"""


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "kind", "instructions"),
    [
        ("flags : fpu avx2 avx512f avx512_vnni amx_tile amx_int8 amx_bf16 avx_vnni", "x86_64", "amx", "avx512_vnni"),
        ("flags : avx2 avx512f avx512_vnni avx512_bf16", "x86_64", "avx512-bf16", "avx512_vnni"),
        ("flags : avx2 avx_vnni", "AMD64", "avx2-vnni", "avx2"),
        ("Features : asimd asimddp i8mm", "aarch64", "arm-i8mm", "arm64"),
    ],
)
def test_kind_of_a_processor(cpuinfo: str, machine: str, kind: str, instructions: str) -> None:
    processor = describe(cpuinfo + "\n", machine, 2)
    assert (processor.kind, onnx_instructions(processor)) == (kind, instructions)


def test_time_of_other_programs() -> None:
    assert parse_busy(["cpu  100 20 30 999 999 5 5 40 7 7", "cpu0 1 1 1 1 1 1 1 1"], 100) == 2.0
    assert others_share(None, 1.0, 0.0, 1.0) is None
    assert others_share(1.0, 1.5, 2.0, 1.0) == 0.0


def test_reasons_are_without_addresses() -> None:
    assert without_addresses("no file at /home/someone/x/model.onnx (1/2)") == "no file at … (1/2)"


def test_labels_of_contenders_differ() -> None:
    labels = [contender.label for contender in [*own_contenders(budgets=[512]), *peer_contenders("avx2", "folder")]]
    assert len(set(labels)) == len(labels)
    assert {AUTO, REFERENCE, *pairs.PEERS} <= set(labels)


def test_no_text_of_a_round_was_seen_before(tmp_path: Path) -> None:
    rows = [f"A sentence {number}.\tA sentence {number // 2}!\t{number % 6}" for number in range(20)]
    documents = [{"text": f"document {number} " + "word " * (number % 30)} for number in range(1_000)]
    for name, lines in {
        "sts/stsb-en-test.tsv.gz": ["sentence1\tsentence2\tscore", *rows],
        "ingest/short-docs.jsonl.gz": [json.dumps(document) for document in documents],
    }.items():
        file = tmp_path / name
        file.parent.mkdir()
        file.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    sets = text_sets(tmp_path, short_documents(tmp_path), lambda texts: [len(text.split()) for text in texts])
    assert [texts.name for texts in sets] == [STSB, SHORT, PARAGRAPHS]
    rounds = [sets[0].for_round(number) for number in range(6)]
    assert len({text for part in rounds for text in part}) == 6 * len(sets[0].texts)
    assert distinct(["a.", "a!", "", "b"]) == ["a!", "b"]
    assert ingest_command.first_documents(tmp_path, 4) == [document["text"] for document in documents[:4]]


def test_contender_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        ContenderProcess(command, {}, tmp_path / "log", limit=0.5) as process,
        pytest.raises(ContenderFailed, match="^load: no answer within"),
    ):
        process.ask(do="load", library="fake", model="m", threads=2, options={})


def test_turns_of_all_contenders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake.py").write_text(_FAKE)
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "fake.py"))
    comparison = Comparison(
        model="m",
        folder=tmp_path,
        prepared=tmp_path,
        environments=Environments(tmp_path, pytest.fail),
        threads=2,
        sets=[TextSet(STSB, tuple(f"Text {number}" for number in range(40)), 3.0), TextSet(OWN, ("One", "Two"), 2.0)],
        sts=[{"sentence1": f"{'a' * number}", "sentence2": "b" * 5, "score": str(number)} for number in range(1, 6)],
        work=tmp_path,
        report=lambda line: None,
    )
    contenders = [Contender(AUTO, "fake"), Contender(REFERENCE, "fake"), Contender("broken", "fake", {"broken": True})]
    auto, reference, broken = comparison.run(contenders, 2)
    assert {name: len(speeds) for name, speeds in auto.speeds.items()} == {STSB: 2, OWN: 2}
    assert auto.cosines == pytest.approx({STSB: 1, OWN: 1})
    assert auto.rho == reference.rho != 0
    assert broken.reason.startswith("load: ValueError: no file at …")


def test_correlation_of_vectors() -> None:
    first, second = np.array([[1, 0]] * 3, np.float32), np.array([[1, 0], [1, 1], [0, 1]], np.float32)
    assert sts_correlation(np.concatenate([first, second]), [5, 3, 1]) == pytest.approx(100)


@pytest.mark.parametrize("engine", _ENGINES, ids=lambda engine: engine.label)
def test_every_library_of_an_engine_has_code_and_settings(engine: EngineInfo) -> None:
    own, *peers = contenders(engine)
    assert own.label == OWN_LOAD
    assert {peer.library for peer in peers} <= set(ingest_worker.LIBRARIES)
    assert all(one.settings for one in (own, *peers))
    searched = [*own_paths(), *peer_paths(engine)]
    assert len({path.label for path in searched}) == len(searched)
    assert offered_types(engine)[0] is IndexType.HNSW


def test_ready_vectors_are_those_of_the_texts() -> None:
    encoder = ReadyEncoder(["a", "b", "c"], np.arange(6, dtype=np.float32).reshape(3, 2))
    found, embedded = encoder.embed_until(encoder.tokenize(["c", "a"], "document"), threading.Event(), lambda _: None)
    assert found.tolist() == [[4, 5], [0, 1]]
    assert embedded.all()


def test_vectors_are_checked() -> None:
    reference = np.array([[1, 0], [0, 2]], np.float32)
    right = [np.array(numbers, np.float32) for numbers in ([2, 0], [5, 5], [0.1, 1])]
    check_vectors(right, [0, 2], reference)
    with pytest.raises(ContenderFailed, match=f"a cosine of 0.707 with that of {REFERENCE}"):
        check_vectors(right, [0, 1], reference)
    with pytest.raises(ContenderFailed, match="2 of 3 documents have a vector of 2 numbers"):
        check_vectors([*right[:2], None], [0, 1], reference)


def test_recall_takes_documents_that_are_as_near_as_the_last_one() -> None:
    vectors = np.array([[1, 0], [0.8, 0.6], [0.8, 0.6], [0, 1]], np.float32)
    corpus = Corpus(["a", "b", "c", "d"], ["one", "two", "three", "four"], vectors)
    exact = corpus.exact_neighbors(np.array([[2, 0], [0, 3]], np.float32), 2)
    assert exact == [{"a", "b", "c"}, {"d", "b", "c"}]
    assert recall([["a", "d"], ["a", "c"]], exact, 2) == 0.5
    assert percentile([float(value) for value in range(1, 101)], 99) == pytest.approx(99.01)


def test_each_client_sends_every_query_once_and_partial_answers_are_refused() -> None:
    queries = [str(number) for number in range(200)]
    _, answers = closed_loop([str.upper] * 8, iter(queries), 20)
    assert sorted(answer for _, answer in answers) == sorted(queries)
    answer = {"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": [{"_id": "a"}]}}
    assert complete_hits(answer) == ["a"]
    with pytest.raises(ValueError, match="lacks shards"):
        complete_hits(answer | {"_shards": {"failed": 1}})
    body = {"knn": {"query_vector": [0.1, 0.2], "k": 10}, "size": 10}
    assert with_vector(body, [3.0, 4.0]) == body | {"knn": {"query_vector": [3.0, 4.0], "k": 10}}


_ABOUT = {
    "date": "2026-01-01",
    "commit": "abc",
    "rounds": 2,
    "threads": 2,
    "processor": {"kind": "amx", "name": "Some CPU", "features": ["avx2"], "cores": 2},
    "python": "3.11",
    "load": 0.1,
}


def _result(label: str, speed: float, *names: str, **fields: object) -> ContenderResult:
    speeds = {name: [speed, speed] for name in names}
    ours = label.startswith("es-sbert")
    return ContenderResult(label, ours, speeds=speeds, start_seconds=[1.0], megabytes=[100.0], others=[0.2], **fields)  # type: ignore[arg-type]


def _encode(auto: float = 200.0) -> Run:
    names = (STSB, SHORT, PARAGRAPHS)
    found = [_result(AUTO, auto, *names, rho=81.6), _result(REFERENCE, 50, *names, rho=82.0), _result("b", 100, *names)]
    sets = {name: {"texts": 10, "tokens": 14.2} for name in names}
    broken = ContenderResult("broken", False, reason="pip: a | b")
    return Run(**_ABOUT, model=DEFAULT_MODEL, sets=sets, contenders=[*found, broken])  # type: ignore[arg-type]


def _load(own: float = 95.0, engine: str = "Elasticsearch 9.5.0") -> LoadRun:
    found = [_result(OWN_LOAD, own, LOAD, WHOLE), _result("fast", 50, LOAD, WHOLE)]
    sets = {LOAD: {"texts": 10, "tokens": 14.2}}
    limits = {EMBEDDING: [200.0, 200.0], BULK: [200.0, 200.0]}
    return LoadRun(
        **_ABOUT, model=DEFAULT_MODEL, sets=sets, contenders=found, engine=engine, index_type="hnsw", limits=limits,
        settings={},
    )  # type: ignore[arg-type]  # fmt: skip


def _search(own: float = 1.4) -> SearchRun:
    shares = {"client": [0.01], "gateway": [0.0], "engine": [0.5], "others": [0.0]}
    cells = [
        Cell("hnsw", path, 1, rates=[100.0], p50=[1.0], p95=[2.0], p99=[3.0], shares=shares)
        for path in (ENGINE, LIBRARY)
    ]
    return SearchRun(
        **_ABOUT,
        engine="Elasticsearch 9.5.0",
        model=DEFAULT_MODEL,
        variant="int8",
        seconds=3.0,
        documents=10,
        queries=5,
        indices=[LoadedIndex("hnsw", 60.4, 1, {ENGINE: 0.99})],
        cells=[*cells, Cell("hnsw", GATEWAY, 1, "run: a | b")],
        figures={OWN_TIME: [own]},
        versions={},
    )  # type: ignore[arg-type]


def _pairs(ours: float = 4.0) -> PairsRun:
    found = [PairsResult(OURS, "bf16"), PairsResult("mining")]
    found[0].add(ours, {"start": 1.0, "embedding": 2.5, "comparing": 0.2}, 0.01)
    found[1].add(10.0, {"start": 3.0}, None)
    sizes = [[1_000, 0.1, 100.0], [10_000, 10.0, 200.0]]
    return PairsRun(
        **_ABOUT, model=DEFAULT_MODEL, texts=10_000, contenders=found, cross_encoder=200.0, sizes=sizes
    )  # type: ignore[arg-type]  # fmt: skip


def test_goals_are_met_missed_or_not_measured() -> None:
    assert [goal.met for goal in _encode().goals()] == [True] * 4
    assert [goal.met for goal in _encode(120.0).goals()] == [False, False, True, True]
    assert [goal.met for goal in replace(_encode(), contenders=[]).goals()] == [None] * 4
    assert harmonic_limit(100, 300) == pytest.approx(75)
    assert [str(goal) for goal in _load().goals()] == ["es-sbert: 95% of the limit, goal ≥ 90%: met"]
    assert [goal.met for goal in _load(89.0).goals()] == [False]
    assert [goal.met for goal in _search().goals()] == [None, True, None, False]
    assert [goal.met for goal in _pairs().goals()] == [True]
    assert [goal.met for goal in _pairs(5.5).goals()] == [False]


def test_pages_show_contenders_fastest_first_and_what_failed() -> None:
    lines = _encode().run_table().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {AUTO}", "| b", f"| {REFERENCE}", "| broken"]
    assert "not measured: pip: a \\| b" in lines[-1]
    assert "The machine was busy" in _encode().text()
    assert "limit: 100 (100–100), of which the load reaches 95%" in _load().text()
    assert "| hnsw | 60 | 100 | 0.990 |" in _search().text()
    assert f"| {GATEWAY} | 1 | not measured: run: a \\| b |" in _search().text()
    assert "200 pairs/s, scaled | 249,975 | 62,494 |" in _pairs().text()
    assert _pairs().text().endswith("| 10,000 | 10.00 | 200 | 2.00 |")


def test_run_replaces_only_that_of_its_kind_and_title(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- loads: made by b -->\n<!-- end of loads -->\nafter\n", encoding="utf-8")
    section = Section(LoadRun, tmp_path / "kept", "loads", "b", page)
    section.keep(_load(engine="OpenSearch 3.6.0"))
    section.keep(_load())
    section.keep(_load(80.123456, engine="Elasticsearch 9.6.1"))
    assert [run.engine for run in section.kept()["amx"]] == ["Elasticsearch 9.6.1", "OpenSearch 3.6.0"]
    assert section.kept()["amx"][0].contenders[0].speeds[LOAD] == [80.1235, 80.1235]
    section.write()
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "### Elasticsearch 9.6.1: x86 with AMX" in text
    assert "Goals that were missed: es-sbert: 80% of the limit" in text


@pytest.mark.parametrize("command", [encode_command, ingest_command, search_command, pairs])
def test_commands_refuse_incomplete_arguments_and_show_what_is_kept(command: object) -> None:
    refused = CliRunner().invoke(command.main, [])  # type: ignore[attr-defined]
    assert refused.exit_code == 2
    assert "--data" in refused.output
    shown = CliRunner().invoke(command.main, ["--kept"])  # type: ignore[attr-defined]
    assert shown.exit_code == 0
    assert "AMD EPYC" in shown.output
