"""`es-sbert index create`, `show` and `repair`, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from es_sbert.index.load_settings import begin_load
from tests.conftest import free_port
from tests.engine.ingest_support import open_engine


def run(*args: str, url: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "es_sbert", *args, "--url", url]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, timeout=300)


def assert_refused(done: subprocess.CompletedProcess[str], message: str, remedy: str) -> None:
    """Exit code 2, the error and its remedy on stderr, nothing on stdout, no traceback."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


def test_an_index_is_created_shown_and_found_again(engine_url: str, index_name: str) -> None:
    done = run("index", "create", index_name, "--index-type", "int8_hnsw", "--shards", "2", url=engine_url)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.strip() == (
        f"created {index_name} with the vector field embedding: 384 dimensions, int8_hnsw, all-MiniLM-L6-v2"
    )
    assert "has the vector field embedding already" in run("index", "create", index_name, url=engine_url).stderr
    added = run("index", "create", index_name, "--vector-field", "second", url=engine_url)
    assert added.stderr.startswith(f"added the vector field second to {index_name}")

    shown = run("index", "show", index_name, url=engine_url)
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"{index_name} (")
    assert "vectors      0 documents, 0 of this model, 0 truncated" in shown.stdout
    summary = orjson.loads(run("index", "show", index_name, "--json", url=engine_url).stdout)
    assert {field["name"]: field["index_type"] for field in summary["fields"]} == {
        "embedding": "int8_hnsw",
        "second": "hnsw",
    }
    assert summary["documents"] == 0

    conflict = run("index", "create", index_name, "--index-type", "flat", url=engine_url)
    assert_refused(conflict, "has the index type int8_hnsw, not flat", "leave --index-type out")


def test_what_cannot_be_created_is_refused(es9_url: str, tmp_path: Path) -> None:
    def create(*args: str) -> subprocess.CompletedProcess[str]:
        return run("index", "create", *args, url=es9_url)

    assert_refused(create("docs", "--index-type", "bbq_disk"), "paid Elasticsearch licence", "bbq_hnsw")
    assert_refused(create("do cs"), "not the name of one index", "without wildcards")
    assert_refused(create("docs", "--vector-field", "a.b"), "no name for a vector field", "underscores")
    assert_refused(create("docs", "--model", str(tmp_path / "none")), "no folder", "hub id")
    assert_refused(create("UPPER"), "400", "")


def test_a_missing_index_is_named(es9_url: str) -> None:
    assert_refused(
        run("index", "show", "test-nowhere", url=es9_url), "no index 'test-nowhere'", "es-sbert index create"
    )


@pytest.mark.parametrize(
    "command", [["index", "show", "docs"], ["index", "create", "docs"], ["search", "--index", "docs", "x"]]
)
def test_an_address_where_nothing_listens(command: list[str]) -> None:
    done = run(*command, url=f"http://127.0.0.1:{free_port()}")
    assert_refused(done, "nothing listens at http://127.0.0.1", "es-sbert engine up")


def test_an_address_that_is_none() -> None:
    assert_refused(
        run("index", "show", "docs", url="localhost:9200"), "no http:// or https://", "http://localhost:9200"
    )


def test_settings_that_a_killed_load_has_left_are_put_back(es9_url: str, fresh_index: Callable[[str], str]) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"settings": {"index.number_of_replicas": "2"}})
        state = engine.get_index(index)
        assert state is not None
        begin_load(engine, state)
        done = run("index", "repair", index, url=es9_url)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.splitlines() == [
            "index.refresh_interval: the default again",
            "index.number_of_replicas: 2 again",
        ]
        state = engine.get_index(index)
        assert state is not None
        assert state.settings["index.number_of_replicas"] == "2"
    assert "no load has left its settings behind" in run("index", "repair", index, url=es9_url).stderr
    assert_refused(run("index", "repair", "no-such-index", url=es9_url), "there is no index", "Check the name")
