"""Indices that `es-sbert index create` made, and the documents that are written to them through the gateway."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.e2e.cli_support import Cli, cli_in_process
from tests.engine.ingest_support import contents
from tests.gateway.writes.support import assert_vector, passages


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return cli_in_process(capfd)


def test_first_document_gets_its_vector(
    cli: Cli, engine_url: str, client: httpx.Client, index_name: str, tiny: Path, tiny_encoder: Encoder
) -> None:
    done = cli("index", "create", index_name, "--model", tiny, "--text-field", "text", "--url", engine_url)
    assert done.code == 0, done.err
    assert client.put(f"/{index_name}/_doc/1", json={"text": "a cat"}).status_code == 201
    assert_vector(contents(engine_url, index_name)["1"], tiny_encoder, "a cat")


def test_passages_of_template_get_vectors(
    cli: Cli, engine_url: str, client: httpx.Client, index_name: str, tiny: Path
) -> None:
    done = cli(
        "index",
        "create",
        index_name,
        "--model",
        tiny,
        "--vector-field",
        "parts",
        "--passages",
        "16",
        "--text-template",
        "{title}. {text}",
        "--url",
        engine_url,
    )
    assert done.code == 0, done.err
    document = {"title": "a man plays guitar", "text": "a cat sits on the mat. " * 5}
    assert client.put(f"/{index_name}/_doc/1", json=document).status_code == 201
    found = passages(contents(engine_url, index_name)["1"])
    assert len(found) > 1
    assert found[0]["start"] == 0
    assert max(passage["end"] for passage in found) <= len("a man plays guitar. " + document["text"])


def test_vectors_are_added_once_text_field_is_set(
    cli: Cli, engine_url: str, client: httpx.Client, index_name: str, tiny: Path, tiny_encoder: Encoder
) -> None:
    done = cli("index", "create", index_name, "--model", tiny, "--url", engine_url)
    assert done.code == 0, done.err
    [given] = [line for line in done.err.splitlines() if "--text-field" in line]
    assert f"`es-sbert index create {index_name} --model {tiny} --text-field FIELD`" in given
    done = cli("index", "create", index_name, "--model", tiny, "--text-field", "text", "--url", engine_url)
    assert done.code == 0, done.err
    assert client.put(f"/{index_name}/_doc/1", json={"text": "a cat"}).status_code == 201
    assert_vector(contents(engine_url, index_name)["1"], tiny_encoder, "a cat")
