"""Bad input through the command line: nothing ends in a traceback, and nothing is lost silently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done, ingest_into

GOOD = [{"id": "a", "text": "a man plays guitar"}, {"id": "b", "text": "the cat sleeps on the mat"}]


@pytest.fixture
def ingest(cli: Cli, model: Path, es9_url: str, fresh_index: Callable[[str], str]) -> Callable[..., Done]:
    """`es-sbert ingest` into an index of this test's own."""
    return ingest_into(cli, model, es9_url, fresh_index(es9_url))


def jsonl(*documents: Any) -> bytes:
    return b"".join(orjson.dumps(document) + b"\n" for document in documents)


def letters() -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Path("dead.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b'{"id": "x", "text": ', "malformed JSON", id="malformed JSON"),
        pytest.param(b'{"id": "x", "text": "' + b"x" * 50_000_000 + b'"}', "50,000,023 bytes", id="a 50 MB line"),
        pytest.param(b'{"id": "a", "text": "x"}', "read before, in docs.jsonl:1", id="duplicate id"),
    ],
)  # fmt: skip
def test_bad_document_is_dead_lettered_and_others_indexed(
    ingest: Callable[..., Done], line: bytes, reason: str
) -> None:
    first, second = jsonl(GOOD[0]), jsonl(GOOD[1])
    Path("docs.jsonl").write_bytes(first + line + b"\n" + second)
    done = ingest("docs.jsonl", "--id-field", "id")
    assert done.code == 1
    assert (done.summary["read"], done.summary["indexed"], done.summary["dead"]) == (3, 2, 1)
    [letter] = letters()
    assert reason in letter["reason"]
    assert (letter["source"], letter["line"]) == ("docs.jsonl", 2)
    assert "not loaded: see dead.jsonl" in done.err
    if len(line) > 1 << 20:
        assert letter["bytes"] == len(line)
        assert Path("dead.jsonl").stat().st_size < 1 << 20
    elif "document" in letter:
        assert letter["document"] == orjson.loads(line)
