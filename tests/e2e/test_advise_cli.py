"""`es-sbert index advise` as a user types it, and the commands that it prints."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import orjson
import pytest

from es_sbert.index.vector_field import read_vector_field
from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import open_engine
from tests.tiny import write_tiny_bert

WORDS = ["a", "man", "plays", "guitar", "the", "cat", "sleeps", "on", "mat", "query"]
COUNT = 250


@pytest.fixture
def filled(cli: Cli, engine_url: str, index_name: str, registry: Path, tmp_path: Path) -> str:
    """An index of documents with random texts, of a registered model `tiny-advise`."""
    model = write_tiny_bert(tmp_path / "tiny-advise")
    cli("model", "add", model)
    chance = random.Random(0)
    file = tmp_path / "docs.jsonl"
    texts = (" ".join(chance.choices(WORDS, k=6)) for _ in range(COUNT))
    file.write_bytes(b"\n".join(orjson.dumps({"id": str(row), "text": text}) for row, text in enumerate(texts)))
    done = cli("ingest", "--index", index_name, "--id-field", "id", "--model", "tiny-advise", "--url", engine_url, file)
    assert done.code == 0, done.err
    return index_name


def test_printed_command_changes_the_index(
    cli: Cli, filled: str, engine_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for dead letters
    queries = tmp_path / "queries.txt"
    queries.write_text("the cat sleeps\na man plays\n" * 20)
    wanted = ["--dimensions", "8", "--min-recall", "0.01", "--queries", queries]
    done = cli("index", "advise", filled, "--url", engine_url, *wanted, "--json")
    assert done.code == 0, done.err
    report = done.summary
    assert (report["sampled"], report["queries"], report["from_file"]) == (COUNT, 40, True)
    assert [search["num_candidates"] for search in report["searches"]] == [10, 20, 50, 100, 200, 500, 1000]
    for content, words in ((None, "cannot be read"), (b"\n", "holds no queries"), (b"caf\xe9\n", "is not UTF-8 text")):
        queries.unlink() if content is None else queries.write_bytes(content)
        bad = cli("index", "advise", filled, "--url", engine_url, "--queries", queries)
        assert (bad.code, words in bad.err) == (2, True)
    best = report["recommended"]
    assert best["dimensions"] == 8

    command = shlex.split(best["command"])
    assert command[:3] == ["es-sbert", "index", "migrate"]
    done = cli(*command[1:], "--url", engine_url, "--yes", "--quiet")
    assert done.code == 0, done.err
    with open_engine(engine_url) as engine:
        meta = read_vector_field(engine, filled, "embedding").meta
        assert (meta.dimensions, meta.index_type) == (8, best["index_type"])
        assert meta.model == "tiny-advise@8"
        engine.refresh(filled)
        assert engine.count(filled, {"exists": {"field": "embedding"}}) == COUNT
        new = engine.get_index(filled)
    assert new is not None
    done = cli("search", "--index", filled, "--url", engine_url, "the cat sleeps", "--json")
    assert done.code == 0, done.err
    # The model of the index is cut further.
    done = cli("index", "migrate", filled, "--model", "tiny-advise@4", "--url", engine_url, "--quiet")
    assert done.code == 0, done.err
    with open_engine(engine_url) as engine:
        last = read_vector_field(engine, filled, "embedding")
        assert (last.meta.model, last.meta.dimensions) == ("tiny-advise@4", 4)
        engine.delete_index(new.name)
        engine.delete_index(last.index)
