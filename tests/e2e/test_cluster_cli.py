"""`es-sbert cluster` on files and on indices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, open_engine, write_jsonl

pytestmark = pytest.mark.one_engine

# The words of the tiny model; equal texts have one vector with any model.
GROUPS = ["a man plays guitar", "the cat sleeps on the mat", "query passage"]
TEXTS = [GROUPS[number] for number in (0, 1, 0, 2, 1, 0, 1, 0, 2)]
DOCUMENTS = [{"id": f"d{9 - number}", "text": text} for number, text in enumerate(TEXTS)]
NAMES = ["guitar, man, plays", "cat, mat, sleeps", "passage, query"]


@pytest.fixture
def cluster(cli: Cli, model: Path) -> Callable[..., Done]:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)

    return partial(cli, "cluster", "--model", model, "--precision", "fp32", "--threads", "1")


def objects(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]


def test_texts_are_output_by_cluster_largest_first(cluster: Callable[..., Done]) -> None:
    done = cluster("docs.jsonl", "--id-field", "id", "--k", "3", "--json")
    assert done.code == 0
    found = objects(done.out)
    ids = (("d9", "d7", "d4", "d2"), ("d8", "d5", "d3"), ("d6", "d1"))
    expected = [(cluster, NAMES[cluster], name) for cluster, names in enumerate(ids) for name in names]
    assert [(one["cluster"], one["name"], one["id"]) for one in found] == expected
    assert {one["cosine"] for one in found} == {1.0}
    assert found[0] == {"cluster": 0, "name": NAMES[0], "id": "d9", "cosine": 1.0, "text": TEXTS[0]}
    assert "3 clusters of 9 texts by kmeans, silhouette 1.000, in" in done.err
    cluster("docs.jsonl", "--id-field", "id", "--k", "3", "-o", "out.jsonl")
    assert Path("out.jsonl").read_text() == done.out
    shown = cluster("docs.jsonl", "--k", "1").out.splitlines()[1:]
    assert {line.rpartition("  ")[2] for line in shown} == {*GROUPS}


def test_cluster_name_is_written_to_document_field(cli: Cli, model: Path, engine_url: str, index_name: str) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    options = ("--url", engine_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index_name, *options).code == 0
    arguments = ("cluster", "--index", index_name, "--url", engine_url, "--write-field", "cluster", "--k", "3")
    done = cli(*arguments)
    assert done.code == 0
    assert "cluster written to 9 documents and removed from 0\n" in done.err
    assert "cluster written to 0 documents and removed from 0\n" in cli(*arguments).err
    facet = {"size": 0, "aggs": {"clusters": {"terms": {"field": "cluster"}}}}
    with open_engine(engine_url) as engine:
        buckets = engine.search(index_name, facet)["aggregations"]["clusters"]["buckets"]
        # Another vector: the document is not clustered any more, and loses its value.
        change = b'{"update": {"_id": "d1"}}\n{"doc": {"embedding_meta": {"fingerprint": "another"}}}\n'
        assert engine.bulk(index_name, change)[0].ok
        engine.refresh(index_name)
    assert {bucket["key"]: bucket["doc_count"] for bucket in buckets} == dict(zip(NAMES, (4, 3, 2), strict=True))
    assert "cluster written to 0 documents and removed from 1\n" in cli(*arguments).err
    assert not contents(engine_url, index_name)["d1"].get("cluster")
