"""`es-sbert duplicates` on files and on indices, with bad input."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, open_engine, write_jsonl

pytestmark = pytest.mark.one_engine

# The words of the tiny model; equal texts are near-duplicates of any model.
TEXTS = ["a man plays guitar", "the cat sleeps", "a man plays guitar", "query passage", "the cat  sleeps ."]
DOCUMENTS = [{"id": f"d{9 - number}", "text": text} for number, text in enumerate(TEXTS)]
THRESHOLD = ("--min-cosine", "0.9999")


@pytest.fixture
def duplicates(cli: Cli, model: Path) -> Callable[..., Done]:
    return partial(cli, "duplicates", "--model", model, "--precision", "fp32", "--threads", "1")


def groups(text: str) -> dict[int, list[tuple[str, bool, float]]]:
    found: dict[int, list[tuple[str, bool, float]]] = {}
    for line in text.splitlines():
        one = orjson.loads(line)
        found.setdefault(one["group"], []).append((one["id"], one["kept"], one["cosine"]))
    return found


def test_first_of_duplicates_in_a_file_is_kept(duplicates: Callable[..., Done]) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    done = duplicates("docs.jsonl", "--id-field", "id", "--json", *THRESHOLD)
    assert done.code == 0
    assert groups(done.out) == {1: [("d9", True, 1.0), ("d7", False, 1.0)]}
    assert "1 near-duplicate of 1 text among 5" in done.err
    duplicates("docs.jsonl", "--id-field", "id", *THRESHOLD, "-o", "out.jsonl")
    assert Path("out.jsonl").read_text() == done.out
    assert duplicates("docs.jsonl", *THRESHOLD).out.splitlines() == [
        "group 1: 2 texts",
        "  kept     docs.jsonl:1  a man plays guitar",
        "  1.00000  docs.jsonl:3  a man plays guitar",
    ]


def test_html_report_replaces_stdout(duplicates: Callable[..., Done]) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    done = duplicates("docs.jsonl", "--id-field", "id", *THRESHOLD, "--html", "page.html")
    assert (done.code, done.out) == (0, "")
    page = Path("page.html").read_text()
    assert "<title>Near-duplicates of docs.jsonl</title>" in page
    assert "a man plays guitar" in page
    done = duplicates("docs.jsonl", "--id-field", "id", *THRESHOLD, "--html", "page.html", "--json")
    assert groups(done.out) == {1: [("d9", True, 1.0), ("d7", False, 1.0)]}


@pytest.fixture
def index(cli: Cli, model: Path, engine_url: str, index_name: str) -> str:
    """An index of the documents: d7 and d9 have one text."""
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    load = ("--url", engine_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index_name, *load).code == 0
    return index_name


@pytest.mark.parametrize("search", [(), ("--num-candidates", "100")], ids=["exact", "knn"])
def test_collapse_on_written_group_shows_one_hit_a_group_and_every_other_document(
    cli: Cli, engine_url: str, index: str, search: tuple[str, ...]
) -> None:
    with open_engine(engine_url) as engine:
        # Without text and vector: no analysis compares it, and a search with `collapse` must still find it.
        assert engine.bulk(index, b'{"index": {"_id": "empty"}}\n{"date": "2026-01-06"}\n')[0].ok
        engine.refresh(index)
        before = contents(engine_url, index)
        arguments = ("--index", index, "--url", engine_url, *search, *THRESHOLD, "--write-field", "group")
        done = cli("duplicates", *arguments[:-2], "--json")
        assert groups(done.out) == {1: [("d7", True, 1.0), ("d9", False, 1.0)]}
        assert (done.code, contents(engine_url, index)) == (0, before)
        assert "1 left out: it has no vector in embedding (first: empty)" in done.err
        assert ("a higher --num-candidates finds more" in done.err) == bool(search)
        done = cli("duplicates", *arguments)
        assert done.code == 0, done.err
        assert "group written to 6 documents and removed from 0\n" in done.err
        found = {name: source["group"] for name, source in contents(engine_url, index).items()}
        assert found == {name: name for name in before} | {"d9": "d7"}
        body = {"query": {"match_all": {}}, "collapse": {"field": "group"}, "size": 10}
        hits = [hit["_id"] for hit in engine.search(index, body)["hits"]["hits"]]
        assert sorted(hits) == sorted({*before} - {"d9"})
    assert "group written to 0 documents and removed from 0\n" in cli("duplicates", *arguments).err


def test_two_commands_that_write_fields_at_once_both_own_theirs(cli: Cli, engine_url: str, index: str) -> None:
    commands = {"group": ("duplicates", *THRESHOLD), "cluster": ("cluster", "--k", "2")}
    where = ("--index", index, "--url", engine_url, "--write-field")
    both = [
        subprocess.Popen([sys.executable, "-m", "es_sbert", *command, *where, field], stdout=subprocess.DEVNULL)
        for field, command in commands.items()
    ]
    assert [process.wait(300) for process in both] == [0, 0]
    for field, command in commands.items():
        assert f"{field} written to 0 documents" in cli(*command, *where, field).err


def test_a_single_text_is_refused(duplicates: Callable[..., Done]) -> None:
    Path("one.txt").write_text("the cat\n")
    done = duplicates("one.txt")
    assert (done.code, done.out) == (2, "")
    assert "a comparison needs two texts, but there is one" in done.err
