"""The comparison of loads: its parts that need no peer and no engine."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.encode_peers.contenders import REFERENCE
from benchmarks.encode_peers.environments import SENTENCE_TRANSFORMERS
from benchmarks.encode_peers.measure import ContenderFailed
from benchmarks.encode_peers.results import ContenderResult
from benchmarks.ingest_peers import __main__ as command
from benchmarks.ingest_peers import results, worker
from benchmarks.ingest_peers.bulk_alone import ReadyEncoder
from benchmarks.ingest_peers.contenders import ELASTICSEARCH_8, ELASTICSEARCH_9, OWN, contenders
from benchmarks.ingest_peers.measure import PeakMemory, check_vectors
from benchmarks.ingest_peers.ml_pipeline import connector_body, has_ml_pipeline, pipeline_body
from benchmarks.ingest_peers.results import (
    BULK,
    EMBEDDING,
    LOAD,
    WHOLE,
    LoadRun,
    goals,
    harmonic_limit,
    keep,
    kept,
    limit_share,
    limit_table,
    run_table,
    run_text,
    section,
)
from es_sbert.config import DEFAULT_MODEL
from es_sbert.engines.engine_info import EngineInfo, EngineType
from tests.docs_requests import shown_requests

_ROOT = Path(__file__).parents[3]
_ES9 = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "http://localhost:9200")
_ES8 = EngineInfo(EngineType.ELASTICSEARCH, (8, 19, 8), "http://localhost:9200")
_OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200")


@pytest.mark.parametrize("engine", [_ES9, _ES8, _OPENSEARCH], ids=lambda engine: engine.label)
def test_every_library_of_an_engine_has_code_and_settings(engine: EngineInfo) -> None:
    own, *peers = contenders(engine, ml_pipeline=True)
    assert own.ours
    assert own.label == OWN
    assert not any(peer.ours for peer in peers)
    assert {peer.library for peer in peers} <= set(worker.LIBRARIES)
    assert all(one.settings for one in (own, *peers))
    assert len({peer.label for peer in peers}) == len(peers) >= 4


def test_every_library_is_compared_somewhere() -> None:
    compared = {
        one.library for engine in (_ES9, _OPENSEARCH) for one in contenders(engine, ml_pipeline=True) if not one.ours
    }
    assert compared == set(worker.LIBRARIES)


def test_elasticsearch_client_fits_the_version() -> None:
    environments = {
        engine: {one.environment for one in contenders(engine, ml_pipeline=True)} for engine in (_ES9, _ES8)
    }
    assert ELASTICSEARCH_9 in environments[_ES9]
    assert ELASTICSEARCH_9 not in environments[_ES8]
    assert ELASTICSEARCH_8 in environments[_ES8]


def test_pytorch_is_shared_by_all_environments() -> None:
    shared = (SENTENCE_TRANSFORMERS, *SENTENCE_TRANSFORMERS.bases)
    peers = [
        one
        for engine in (_ES9, _ES8, _OPENSEARCH)
        for one in contenders(engine, ml_pipeline=True)
        if one.environment is not None
    ]
    assert len(shared) == 2
    assert all(peer.environment.bases == shared for peer in peers if peer.environment is not None)


class _Nodes:
    """In place of an engine: its nodes have these plugins."""

    def __init__(self, info: EngineInfo, *nodes: Sequence[str]) -> None:
        self.info = info
        self._nodes = {str(number): {"plugins": [{"name": name} for name in node]} for number, node in enumerate(nodes)}

    def request_api(self, path: str, params: object) -> dict[str, object]:
        return {"nodes": self._nodes}


def test_ml_pipeline_needs_both_plugins_on_every_node() -> None:
    plugins = ["opensearch-knn", "opensearch-ml", "opensearch-neural-search"]
    engines = [
        _Nodes(_OPENSEARCH, plugins),
        _Nodes(_OPENSEARCH, plugins, plugins[1:]),
        _Nodes(_OPENSEARCH, plugins[:2]),
    ]
    engines += [_Nodes(_OPENSEARCH, plugins, plugins[:1]), _Nodes(_ES9, plugins)]
    assert [has_ml_pipeline(engine) for engine in engines] == [True, True, False, False, False]  # type: ignore[arg-type]
    assert not any(one.ml_pipeline for one in contenders(_OPENSEARCH, ml_pipeline=False))


def test_ml_pipeline_is_that_of_the_documentation() -> None:
    shown = {request.path: request.body for request in shown_requests(_ROOT / "docs/opensearch-ml.md")}
    connector = json.loads(shown["/_plugins/_ml/connectors/_create"])
    url = "http://127.0.0.1:9280/v1/embeddings"
    assert connector_body(DEFAULT_MODEL, url) == connector | {"name": "ingest-peers"}
    assert pipeline_body("MODEL_ID") == json.loads(shown["/_ingest/pipeline/embed-text"])


def test_first_documents_are_distinct_and_in_order(tmp_path: Path) -> None:
    file = tmp_path / "ingest/short-docs.jsonl.gz"
    file.parent.mkdir()
    texts = ["one", "two.", "two", "", "three", "four", "five"]
    file.write_bytes(gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode()))
    assert command.first_documents(tmp_path, 4) == ["one", "two", "three", "four"]


def test_worker_finds_its_protocol_where_this_package_is_not_installed() -> None:
    spec = importlib.util.spec_from_file_location("worker_alone", worker.__file__)
    assert spec is not None
    assert spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    assert set(alone.LIBRARIES) == set(worker.LIBRARIES)


def test_worker_ingests_the_documents_of_a_file(tmp_path: Path) -> None:
    loaded: list[tuple[list[str], list[str]]] = []

    class Fake:
        details = "fake"

        def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
            pass

        def ingest(self, ids: list[str], texts: list[str]) -> None:
            loaded.append((ids, texts))

    loader = worker.Loader({"fake": Fake})
    loader.answer({"do": "load", "library": "fake", "model": "m", "threads": 1, "options": {}})
    file = tmp_path / "documents.jsonl"
    file.write_text('{"id": "1", "text": "a\\u2028b"}\n{"id": "2", "text": "ö"}\n', encoding="utf-8")
    assert loader.answer({"do": "ingest", "documents": str(file)})["seconds"] >= 0
    assert loaded == [(["1", "2"], ["a\u2028b", "ö"])]


def test_ready_vectors_are_those_of_the_texts() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    encoder = ReadyEncoder(["a", "b", "c"], vectors)
    assert encoder.info.dimensions == 2
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
    with pytest.raises(ContenderFailed, match="2 of 3 documents have a vector of 2 numbers"):
        check_vectors([*right[:2], np.ones(3, np.float32)], [0, 1], reference)
    with pytest.raises(ContenderFailed, match="a cosine of nan"), np.errstate(invalid="ignore"):
        check_vectors([np.zeros(2, np.float32), *right[1:]], [0, 1], reference)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_of_another_process() -> None:
    with PeakMemory(os.getpid()) as memory:
        threading.Event().wait(0.2)
    assert memory.megabytes > 1


def _result(label: str, speeds: list[float], **fields: object) -> ContenderResult:
    values = {"start_seconds": [1.0, 2.0], "megabytes": [100.0, 200.0], **fields}
    measured = {LOAD: speeds, WHOLE: [speed / 2 for speed in speeds]}
    return ContenderResult(label, label == OWN, speeds=measured, **values)  # type: ignore[arg-type]


def _run(own: float = 95.0, engine: str = "Elasticsearch 9.5.0", kind: str = "amx") -> LoadRun:
    figures = {"texts": 10_000.0, "tokens": 20.4}
    return LoadRun(
        model=DEFAULT_MODEL,
        date="2026-01-01",
        commit="abc",
        rounds=2,
        threads=2,
        processor={"kind": kind, "name": "Some CPU", "features": ["avx2"], "cores": 2},
        python="3.11",
        load=0.1,
        sets={LOAD: figures, WHOLE: figures},
        contenders=[
            _result("slow", [20.0, 30.0], environment="slow", versions={"torch": "1"}),
            _result(OWN, [own, own], details="int8", versions={"es-sbert": "1"}),
            _result("fast & small", [50.0, 50.0], environment="fast"),
            ContenderResult("broken", False, reason="check: a | b"),
        ],
        engine=engine,
        index_type="hnsw",
        limits={EMBEDDING: [200.0, 200.0], BULK: [200.0, 200.0]},
        settings={"slow": "one call"},
    )


def test_limit_is_harmonic() -> None:
    assert harmonic_limit(200, 200) == 100
    assert harmonic_limit(100, 300) == pytest.approx(75)
    assert limit_share(_run(own=95.0)) == pytest.approx(0.95)
    run = _run()
    run.limits[BULK] = [200.0, 50.0]
    assert limit_share(run) == pytest.approx((95 / 100 + 95 / 40) / 2)


def test_goal_is_met_missed_or_not_measured() -> None:
    assert [(goal.met, str(goal)) for goal in goals(_run())] == [
        (True, "es-sbert: 95% of the limit, goal ≥ 90%: met"),
    ]
    assert [goal.met for goal in goals(_run(own=89.0))] == [False]
    peers = [one for one in _run().contenders if not one.ours]
    for alone in (replace(_run(), contenders=peers), replace(_run(), limits={EMBEDDING: [], BULK: []})):
        assert [str(goal) for goal in goals(alone)] == ["es-sbert ≥ 90% of the limit: not measured"]


def test_table_has_every_contender_the_fastest_first() -> None:
    lines = run_table(_run()).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {OWN} (int8)", "| fast & small", "| slow", "| broken"]
    assert "| 1.90 |" in lines[2]
    assert "**1.00**" in lines[3]
    assert "failed: check: a \\| b" in lines[-1]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_page_shows_limits_settings_and_versions() -> None:
    text = run_text(_run())
    assert "| limit: 1 / (1 / embedding + 1 / bulk) | 100 (100–100) |" in limit_table(_run())
    for part in (limit_table(_run()), "- slow: one call", "- slow: torch 1", "10,000 documents of 20 tokens", "hnsw"):
        assert part in text
    nothing = run_text(replace(_run(), contenders=[_run().contenders[-1]], limits={EMBEDDING: [], BULK: []}))
    assert "failed: check" in nothing
    assert "images/" not in nothing


def test_run_replaces_only_its_own_kind_and_engine(tmp_path: Path) -> None:
    keep(_run(kind="avx2"), tmp_path)
    keep(_run(engine="OpenSearch 3.6.0"), tmp_path)
    keep(_run(engine="Elasticsearch 8.19.8"), tmp_path)
    keep(_run(), tmp_path)
    before = (tmp_path / "avx2.json").read_bytes()
    keep(_run(engine="Elasticsearch 9.6.1"), tmp_path)
    assert (tmp_path / "avx2.json").read_bytes() == before
    runs = kept(tmp_path)
    assert list(runs) == ["amx", "avx2"]
    assert [run.engine for run in runs["amx"]] == ["Elasticsearch 8.19.8", "Elasticsearch 9.6.1", "OpenSearch 3.6.0"]
    assert runs["avx2"] == [_run(kind="avx2")]
    text = section(runs)
    assert "### OpenSearch 3.6.0, x86 with AMX" in text
    assert "images/ingest-amx-opensearch-3.svg" in text
    assert section(kept(tmp_path / "missing")) == "No engine has been measured yet."


def test_plot_is_well_formed() -> None:
    root = ElementTree.fromstring(command.plot(_run()))
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert names.count("fast & small") == 2
    assert any(name and name.startswith("Documents a second into Elasticsearch 9.5.0") for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data and --url are needed"),
        (["--data", "."], "--data and --url are needed"),
        (["--data", ".", "--url", "http://localhost:1", "--write", "--limit", "5"], "--write is for whole runs"),
    ],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command.main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_command_shows_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, images = tmp_path / "results.md", tmp_path / "images"
    page.write_text(
        f"before\n<!-- {results.NAME}: made by {results.MAKER} -->\n<!-- end of {results.NAME} -->\nafter\n"
    )
    images.mkdir()
    monkeypatch.setattr(results, "PAGE", page)
    monkeypatch.setattr(results, "IMAGES", images)
    monkeypatch.setattr(results, "kept", lambda: {"amx": [_run()]})
    result = CliRunner().invoke(command.main, ["--kept", "--write"])
    assert result.exit_code == 0, result.output
    assert run_text(_run()) in page.read_text()
    assert ElementTree.parse(images / "ingest-amx-elasticsearch-9.svg")
