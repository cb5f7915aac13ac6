"""`es-sbert duplicates` on files and on indices, with bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, write_jsonl

# The words of the tiny model; equal texts are near-duplicates of any model.
TEXTS = ["a man plays guitar", "the cat sleeps", "a man plays guitar", "query passage", "the cat  sleeps ."]
DOCUMENTS = [{"id": f"d{9 - number}", "text": text} for number, text in enumerate(TEXTS)]
THRESHOLD = ("--min-cosine", "0.9999")


@pytest.fixture
def duplicates(cli: Cli, model: Path) -> Callable[..., Done]:
    def call(*arguments: str | Path) -> Done:
        return cli("duplicates", "--model", model, "--precision", "fp32", "--threads", "1", *arguments)

    return call


def groups(text: str) -> dict[int, list[tuple[str, bool, float]]]:
    found: dict[int, list[tuple[str, bool, float]]] = {}
    for line in text.splitlines():
        one = orjson.loads(line)
        found.setdefault(one["group"], []).append((one["id"], one["kept"], one["cosine"]))
    return found


def test_the_first_of_a_file_is_kept(duplicates: Callable[..., Done]) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    done = duplicates("docs.jsonl", "--id-field", "id", "--json", *THRESHOLD)
    assert done.code == 0
    assert groups(done.out) == {1: [("d9", True, 1.0), ("d7", False, 1.0)]}
    assert "1 near-duplicates of 1 texts among 5" in done.err
    duplicates("docs.jsonl", "--id-field", "id", *THRESHOLD, "-o", "out.jsonl")
    assert Path("out.jsonl").read_text() == done.out
    assert duplicates("docs.jsonl", *THRESHOLD).out.splitlines() == [
        "group 1: 2 texts",
        "  kept     docs.jsonl:1  a man plays guitar",
        "  1.00000  docs.jsonl:3  a man plays guitar",
    ]


def test_the_longest_is_kept_where_it_is_asked_for(duplicates: Callable[..., Done]) -> None:
    # White space is nothing to the model, so the two have one vector.
    write_jsonl(Path("docs.jsonl"), [{"text": "the cat sleeps"}, {"text": "the  cat   sleeps"}, {"text": "a man"}])
    done = duplicates("docs.jsonl", "--json", "--keep", "longest", *THRESHOLD)
    assert groups(done.out) == {1: [("docs.jsonl:1", False, 1.0), ("docs.jsonl:2", True, 1.0)]}


def test_texts_without_near_duplicates_are_in_no_group(duplicates: Callable[..., Done]) -> None:
    write_jsonl(Path("docs.jsonl"), [{"text": "the cat sleeps"}, {"text": "a man plays guitar"}])
    done = duplicates("docs.jsonl", "--json", *THRESHOLD)
    assert (done.code, done.out) == (0, "")
    assert "0 near-duplicates of 0 texts among 2" in done.err


def test_an_index_keeps_the_document_with_the_lowest_id_and_stays_as_it_is(
    cli: Cli, model: Path, engine_url: str, index_name: str
) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    load = ("--url", engine_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index_name, *load).code == 0
    before = contents(engine_url, index_name)
    done = cli("duplicates", "--index", index_name, "--url", engine_url, "--json", *THRESHOLD)
    assert groups(done.out) == {1: [("d7", True, 1.0), ("d9", False, 1.0)]}
    assert contents(engine_url, index_name) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "neither is given"),
        (("t.txt", "--index", "i"), "both are given"),
        (("--index", "i", "--id-field", "x"), "Leave --text-field"),
        (("one.txt",), "a comparison needs two texts, and there is one"),
        (("t.txt", "--min-cosine", "-2"), "not in the range -1<=x<=1"),
        (("t.txt", "--keep", "newest"), "'newest' is not one of"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_the_way_out(
    duplicates: Callable[..., Done], cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    Path("t.txt").write_text("the cat\na man\n")
    Path("one.txt").write_text("the cat\n")
    done = cli("duplicates", *arguments) if "--index" in arguments else duplicates(*arguments)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
