"""`es-sbert index create` and `show`, as a user types them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import open_engine

pytestmark = pytest.mark.one_engine

Run = Callable[..., Done]


@pytest.fixture
def run(cli: Cli) -> Run:
    """`es-sbert ARGUMENTS… --url URL`."""
    return lambda *arguments, url: cli(*arguments, "--url", url)


def assert_refused(done: Done, message: str, remedy: str) -> None:
    """Exit code 2, the error and its remedy on stderr, nothing on stdout."""
    assert (done.code, done.out) == (2, "")
    # A model that is used for the first time is exported, which is reported before.
    assert done.err.startswith(("Error: ", "Exporting "))
    assert "Error: " in done.err
    assert message in done.err
    assert remedy in done.err


def test_create_show_and_reuse_index(run: Run, engine_url: str, index_name: str) -> None:
    done = run("index", "create", index_name, "--index-type", "int8_hnsw", "--shards", "2", url=engine_url)
    assert (done.code, done.out) == (0, "")
    created, text = done.err.splitlines()
    assert created == (
        f"created {index_name} with the vector field embedding: 384 dimensions, int8_hnsw, all-MiniLM-L6-v2"
    )
    assert text.startswith("The text of embedding is not known yet, so the gateway refuses documents that are written")
    assert f"`es-sbert index create {index_name} --text-field FIELD`" in text
    assert "already has the vector field embedding" in run("index", "create", index_name, url=engine_url).err
    added = run("index", "create", index_name, "--vector-field", "second", url=engine_url)
    assert added.err.startswith(f"added the vector field second to {index_name}")

    shown = run("index", "show", index_name, url=engine_url)
    assert shown.code == 0
    assert shown.out.startswith(f"{index_name} (")
    assert "vectors      0 documents, 0 of this model, 0 truncated" in shown.out
    summary = orjson.loads(run("index", "show", index_name, "--json", url=engine_url).out)
    types = {field["name"]: field["index_type"] for field in summary["fields"]}
    assert types == {"embedding": "int8_hnsw", "second": "hnsw"}
    assert summary["documents"] == 0

    conflict = run("index", "create", index_name, "--index-type", "flat", url=engine_url)
    assert_refused(conflict, f"the index type of {index_name}.embedding is int8_hnsw, not flat", "omit --index-type")


@pytest.fixture
def rolled(run: Run, engine_url: str, index_name: str, model: Path) -> Iterator[tuple[str, str, str]]:
    """An alias after a rollover without a template: its name, the old index with a vector field, the new one."""
    alias = f"{index_name}-logs"
    old, new = f"{alias}-000001", f"{alias}-000002"
    created = run(
        "index", "create", old, "--model", model, "--text-field", "text", "--index-type", "flat", url=engine_url
    )
    assert created.code == 0
    with open_engine(engine_url) as engine:
        engine.update_aliases([{"add": {"index": old, "alias": alias, "is_write_index": True}}])
        httpx.post(f"{engine_url}/{alias}/_rollover", timeout=60, trust_env=False).raise_for_status()
        yield alias, old, new
        for index in (old, new, f"{alias}-000003"):
            engine.delete_index(index)


def test_show_lists_every_index_of_an_expression(run: Run, engine_url: str, rolled: tuple[str, str, str]) -> None:
    alias, old, new = rolled
    for name in (alias, f"{old},{new}", f"{alias}-*"):
        shown = run("index", "show", name, url=engine_url)
        assert [line.partition(" ")[0] for line in shown.out.splitlines() if line and line[0] != " "] == [old, new]
        rows = [orjson.loads(line) for line in run("index", "show", name, "--json", url=engine_url).out.splitlines()]
        assert [(row["name"], len(row["fields"])) for row in rows] == [(old, 1), (new, 0)]
    assert_refused(run("index", "show", f"{alias}-none*", url=engine_url), "not match any index", "GET _cat/indices")
    for command in (("search", "x", "--index"), ("ingest", "--index"), ("index", "show")):
        refused = run(*command, alias.replace("logs", "lgos"), url=engine_url)
        assert_refused(refused, f"no index '{alias.replace('logs', 'lgos')}'", "Did you mean ")


def test_calibrate_recommends_min_cosine(
    run: Run, es9_url: str, fresh_index: Callable[[str], str], tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    subjects = ["guitar", "storm", "bread", "engine", "doctor", "violin", "forest", "planet", "ticket", "museum"]
    documents = [
        {"id": f"d{number}", "text": f"This is about a {subject}. The {subject} is well known to people of the town."}
        for number, subject in enumerate(subjects)
    ]
    file = tmp_path / "docs.jsonl"
    file.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    assert run("ingest", "--index", index, file, "--id-field", "id", url=es9_url).code == 0

    done = run("index", "calibrate", index, "--keep", "0.8", url=es9_url)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == f"{index}.embedding: 10 documents with vectors of all-MiniLM-L6-v2"
    value = lines[-1].partition("`es-sbert serve --min-cosine ")[2].partition("`")[0]
    report = orjson.loads(run("index", "calibrate", index, "--keep", "0.8", "--json", url=es9_url).out)
    assert report["recommended"]["row"]["min_cosine"] == float(value)
    saved = run("index", "calibrate", index, "--keep", "0.8", "--save", url=es9_url)
    assert (saved.code, saved.out) == (0, done.out)
    assert run("ingest", "--index", index, file, "--id-field", "id", url=es9_url).code == 0
    shown = orjson.loads(run("index", "show", index, "--json", url=es9_url).out)
    assert shown["fields"][0]["min_cosine"] == float(value)

    # Queries that have nothing to do with their documents: most other documents are as near.
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(f'{{"query": "the moon is {n} years old", "ids": ["d{n}"]}}\n' for n in range(9)))
    command = ("index", "calibrate", index, "--queries", labels, "--save", "--json")
    refused = run(*command, url=es9_url)
    found = orjson.loads(refused.out)["recommended"]
    assert refused.code == 2
    assert f"{found['row']['min_cosine']:.2f} was not stored: {found['row']['unrelated']['mean']:.2%}" in refused.err
    shown = orjson.loads(run("index", "show", index, "--json", url=es9_url).out)
    assert shown["fields"][0]["min_cosine"] == float(value)
    assert run(*command, "--max-unrelated", "0.99", url=es9_url).code == 0
