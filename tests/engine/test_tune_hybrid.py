"""Settings of hybrid search are measured as searches run, and the command recommends one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

import pytest

from es_sbert.cli.main import main
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.evaluation.fusion_scores import measure_fusions
from es_sbert.evaluation.fusion_tuning import fusion_settings
from es_sbert.evaluation.judgement_files import read_judgements
from es_sbert.evaluation.ranking_metrics import MAIN_METRIC, measure_ranking
from es_sbert.search import SemanticIndex
from es_sbert.search.hybrid_search import Fusion, supported_fusions
from es_sbert.search.search_scope import read_search_scope
from tests.engine.ingest_support import tiny_encoder
from tests.tiny import WORDS

_CONTENT = [word for word in WORDS if len(word) > 1 and word != "the"]
DOCUMENTS = {f"d{number}": " ".join(words) for number, words in enumerate(list(permutations(_CONTENT, 3))[::8])}
QUERIES = [" ".join(words) for words in list(permutations(_CONTENT, 2))[::6]]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    with tiny_encoder(tmp_path_factory.mktemp("model")) as encoder:
        yield encoder


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """Documents with both words of a query are relevant to it, and more so in the order of the query."""
    rows = [
        {"query": query, "document": document, "grade": 2 if query in text else 1}
        for query in QUERIES
        for document, text in DOCUMENTS.items()
        if set(query.split()) <= set(text.split())
    ]
    path = tmp_path / "judged.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_measured_scores_are_those_of_searches(engine: Engine, index_name: str, encoder: Encoder, judged: Path) -> None:
    with SemanticIndex.create(
        index_name, engine, encoder=encoder, text_template="{text}", index_type="hnsw", vector_field="v"
    ) as index:
        index.add([{"_id": id, "text": text} for id, text in DOCUMENTS.items()])
        engine_type = engine.info.engine_type
        data = read_judgements(judged)
        settings = fusion_settings(engine_type, supported_fusions(engine_type))
        scope = read_search_scope(engine, [index_name], ["v"])
        found = measure_fusions(engine, scope, encoder, data, settings)
        assert list(found.queries) == list(data.queries)
        assert list(found.hybrid) == settings
        weighted = next(each for each in settings if each.fusion is Fusion.WEIGHTED)
        for setting in (settings[0], settings[-1], weighted):
            for place, query in enumerate(found.queries):
                ranking = [hit.id for hit in index.hybrid(query, 10, **setting.options())]
                expected = measure_ranking(ranking, data.judgements[query])[MAIN_METRIC]
                assert found.hybrid[setting][place] == pytest.approx(expected), (setting, query)
        for place, query in enumerate(found.queries):
            ranking = [hit.id for hit in index.search(query, 10)]
            assert found.semantic[place] == pytest.approx(
                measure_ranking(ranking, data.judgements[query])[MAIN_METRIC], abs=1
            )
            body = {"query": {"match": {"text": query}}, "size": 10}
            ranking = [hit["_id"] for hit in engine.search(index_name, body)["hits"]["hits"]]
            assert found.lexical[place] == pytest.approx(measure_ranking(ranking, data.judgements[query])[MAIN_METRIC])
    # The words of a query decide what is relevant, and the vectors are random.
    assert found.lexical.mean() > found.semantic.mean() + 10


def test_command_recommends_a_setting(
    es9_url: str,
    fresh_index: Callable[[str], str],
    encoder: Encoder,
    judged: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = fresh_index(es9_url)
    with SemanticIndex.create(
        name, es9_url, encoder=encoder, text_template="{text}", index_type="hnsw", vector_field="v"
    ) as index:
        index.add([{"_id": id, "text": text} for id, text in DOCUMENTS.items()])
    model = str(encoder.info.model)
    how = ["--url", es9_url, "--vector-field", "v", "--model", model, "--judgements", str(judged), "--fusion", "rrf"]
    with pytest.raises(SystemExit) as ended:
        main(["index", "tune-hybrid", name, *how])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    lines = printed.out.splitlines()
    assert lines[0] == f"{name}: nDCG@10 of 12 judged queries"
    assert [line.split()[0] for line in lines[1:5]] == ["lexical", "semantic", "default", "tuned"]
    with pytest.raises(SystemExit) as ended:
        main(["index", "tune-hybrid", name, *how, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert (report["queries"], len(report["settings"])) == (12, 14)
    assert report["default"] == {"fusion": "rrf", "weights": [3.0, 1.0], "rank_constant": 60}
    with pytest.raises(SystemExit) as ended:
        main(["index", "tune-hybrid", name, *how, "--limit", "9"])
    assert ended.value.code == 2
    assert "only 9 queries have a relevant document" in capsys.readouterr().err
