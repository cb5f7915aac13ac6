"""`/v1/embeddings` as OpenAI's own client and plain HTTP see it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.gateway import patient
from tests.gateway.echo import Echo
from tests.gateway.serving import gateway

TEXTS = ["A man plays guitar.", "The cat sleeps on the mat.", "cat"]
KEY = {"authorization": "Bearer the right key"}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with Echo() as server:
        yield server.url


@pytest.fixture(scope="module")
def url(engine: str, tiny: Path) -> Iterator[str]:
    with gateway(engine, tiny) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def strict_url(engine: str, tiny: Path) -> Iterator[str]:
    limits = {"embeddings_texts": 3, "embeddings_characters": 100, "embeddings_bytes": 1000}
    with gateway(engine, tiny, embeddings_key="the right key", **limits) as url:
        yield url


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
@pytest.mark.parametrize("dimensions", [16, 6])
def test_openai_client_embeddings_match_model(
    client: openai.OpenAI, tiny_encoder: Encoder, encoding: str | None, dimensions: int
) -> None:
    options: dict[str, Any] = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="tiny", input=TEXTS, dimensions=dimensions, user="somebody", **options)
    expected = tiny_encoder.pipeline.encode_details(TEXTS)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    given = [entry.embedding for entry in answer.data]
    if encoding == "base64":  # asked for by the caller, the client hands it on as it came
        given = [np.frombuffer(base64.b64decode(str(vector)), "<f4").tolist() for vector in given]
    kept = expected.vectors[:, :dimensions]
    np.testing.assert_allclose(np.array(given), kept / np.linalg.norm(kept, axis=1, keepdims=True), atol=1e-6)
    assert answer.model == "tiny"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == expected.tokens.sum()


@pytest.mark.parametrize(("input_type", "kind"), [("query", "query"), ("search_document", "document")])
def test_input_type_prepends_model_prompt(
    client: openai.OpenAI, tiny_encoder: Encoder, input_type: str, kind: Any
) -> None:
    answer = client.embeddings.create(model="tiny", input="cat", extra_body={"input_type": input_type})
    np.testing.assert_allclose(answer.data[0].embedding, tiny_encoder.encode(["cat"], kind)[0], atol=1e-6)


def test_truncated_text_is_flagged_and_usage_counts_tokens_read(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="tiny", input=["cat", "cat " * 100])
    assert [(entry.model_extra or {}).get("truncated") for entry in answer.data] == [None, True]
    assert answer.usage.prompt_tokens == 3 + 24


def test_models_are_listed_and_others_not_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "es-sbert"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")
    with pytest.raises(openai.NotFoundError, match="Use one of: tiny;") as caught:
        client.embeddings.create(model="other", input="cat")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "member", "words"),
    [
        (b"", None, "not JSON"), (b'{"input": ["\\ud800"]}', "input", "Unicode"), (b"[" * 5000, None, "not JSON"),
        ({}, "input", "Field required"), ({"input": []}, "input", "is empty"), ({"input": ["a", ""]}, "input", "empty"),
        ({"input": [[1, 2], [3]]}, "input", "check_embedding_ctx_length=False"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "dimensions": 17}, "dimensions", "16 dimensions"), ({"input": "a", "x": "b"}, "x", "Extra"),
    ],
)  # fmt: skip
def test_bad_requests_get_400_with_remedy(url: str, body: Any, member: str | None, words: str) -> None:
    answer = _post(url, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", member)
    assert words in error["message"]


def _post(url: str, content: Any, **headers: Any) -> httpx.Response:
    given = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    return patient.post(f"{url}/v1/embeddings", content=content, headers=given)


@pytest.mark.parametrize("headers", [{"content_type": "text/plain"}, {"content_encoding": "gzip"}])
def test_other_content_type_gets_415(url: str, headers: dict[str, str]) -> None:
    assert _post(url, b'{"input": "a"}', **headers).status_code == 415


@pytest.mark.parametrize("given", [None, b"Bearer wrong", b"Basic the right key", b"Bearer \xe9"])
def test_missing_api_key_gets_401(strict_url: str, given: bytes | None) -> None:
    headers = {} if given is None else {"authorization": given}
    answer = _post(strict_url, b'{"input": "a"}', **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "the right key" not in answer.text
    assert patient.get(f"{strict_url}/v1/models", headers=headers).status_code == 401
    assert _post(strict_url, b'{"input": "a"}', **KEY).status_code == 200


def test_limits(strict_url: str) -> None:
    assert _post(strict_url, json.dumps({"input": ["a"] * 3}), **KEY).status_code == 200
    for body, status, words in [
        ({"input": ["a"] * 4}, 400, "Send at most 3"),
        ({"input": ["a" * 51, "b" * 50]}, 400, "and 100 characters"),
        ({"input": "a" * 1000}, 413, "larger than 1,000 bytes"),
    ]:
        answer = _post(strict_url, json.dumps(body), **KEY)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True)
    endless = (b'{"input": "' if number == 0 else b"a" * 100 for number in range(100))
    assert _post(strict_url, endless, **KEY).status_code == 413


def test_unloadable_model_gets_503(engine: str, tmp_path: Path) -> None:
    with gateway(engine, tmp_path / "missing") as url:
        answer = _post(url, b'{"input": "a"}')
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        ready = patient.get(f"{url}/readyz")
        assert "cannot be loaded" in ready.json()["model"]
        assert str(tmp_path) not in answer.text + ready.text
