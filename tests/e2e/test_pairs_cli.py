"""`es-sbert pairs` on files and on indices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import open_engine, write_jsonl

TEXTS = ["a man plays guitar", "the cat sleeps", "a man plays the guitar", "the cat sleeps on the mat", "query passage"]
DOCUMENTS = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]


@pytest.fixture
def pairs(cli: Cli, model: Path) -> Callable[..., Done]:
    return partial(cli, "pairs", "--model", model, "--precision", "fp32", "--threads", "1")


def lines(out: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in out.splitlines()]


def brute_force(model: Path, texts: list[str]) -> list[tuple[float, int, int]]:
    with Encoder(str(model), precision="fp32", threads=1) as encoder:
        vectors = encoder.encode(texts, "document")
    cosines = vectors @ vectors.T
    found = [(float(cosines[i, j]), i, j) for i in range(len(texts)) for j in range(i + 1, len(texts))]
    return sorted(found, key=lambda pair: -pair[0])


def test_all_pairs_of_a_file_match_brute_force(pairs: Callable[..., Done], model: Path) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    done = pairs("docs.jsonl", "--id-field", "id", "--json", "-k", "1000")
    found, expected = lines(done.out), brute_force(model, TEXTS)
    assert done.code == 0
    assert len(found) == 10
    assert [(pair["first"]["id"], pair["second"]["id"]) for pair in found] == [
        (f"d{i}", f"d{j}") for _, i, j in expected
    ]
    assert [pair["cosine"] for pair in found] == pytest.approx([cosine for cosine, _, _ in expected], abs=2e-5)
    assert found[0]["first"]["text"] in TEXTS
    assert "10 pairs of 5 texts" in done.err
    least = found[3]["cosine"]
    assert lines(pairs("docs.jsonl", "--id-field", "id", "--json", "--min-cosine", str(least)).out) == [
        pair for pair in found if pair["cosine"] >= least
    ]
    pairs("docs.jsonl", "--id-field", "id", "-k", "2", "-o", "out.jsonl")
    assert lines(Path("out.jsonl").read_text()) == found[:2]


def test_index_gives_same_pairs_as_its_file(
    cli: Cli, model: Path, pairs: Callable[..., Done], engine_url: str, index_name: str
) -> None:
    write_jsonl(Path("docs.jsonl"), [*DOCUMENTS, {"id": "none", "text": " "}])
    load = ("--url", engine_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index_name, *load).code == 0
    with open_engine(engine_url) as engine:
        engine.bulk(index_name, b'{"index":{"_id":"plain"}}\n{"text":"no vector"}\n')
        engine.refresh(index_name)
    where = ("pairs", "--index", index_name, "--url", engine_url)
    done = cli(*where, "--json")
    expected = {(f"d{i}", f"d{j}"): cosine for cosine, i, j in brute_force(model, TEXTS)}
    found = {tuple(sorted((pair["first"]["id"], pair["second"]["id"]))): pair["cosine"] for pair in lines(done.out)}
    assert found == pytest.approx(expected, abs=2e-5)
    assert lines(done.out)[0]["first"]["text"] in TEXTS
    assert "left out: it has no vector in embedding (first: " in done.err
    assert len(lines(cli(*where, "--json", "--filter", '{"ids": {"values": ["d0", "d1", "d2"]}}').out)) == 3
    assert cli(*where, "--vector-field", "other").code == 2
