"""`/v1/embeddings` as OpenAI's own client and plain HTTP see it."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from pydantic import SecretStr

from es_sbert.encoder.encoder import Encoder
from es_sbert.gateway.settings import Limits
from tests.gateway import patient
from tests.gateway.conftest import tiny_settings
from tests.gateway.embedding_app import embedding_app
from tests.gateway.serving import served
from tests.gateway.wire import talk
from tests.unit.gateway.encoders import TellingEncoder

TEXTS = ["A man plays guitar.", "The cat sleeps on the mat.", "cat"]
LIMITS = Limits(embeddings_texts=3, embeddings_characters=100, embeddings_bytes=1000)


@pytest.fixture(scope="module")
def client(embeddings_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embeddings_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Iterator[Encoder]:
    with Encoder(str(tiny), device="cpu", precision="fp32") as encoder:
        yield encoder


@pytest.fixture(scope="module")
def strict_url(tiny: Path) -> Iterator[str]:
    """An API with small limits and a key."""
    with served(embedding_app(tiny_settings(tiny), limits=LIMITS, key=SecretStr("the right key"))) as url:
        yield url


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_openai_client_embeddings_match_model(client: openai.OpenAI, reference: Encoder, encoding: str | None) -> None:
    options: dict[str, Any] = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="tiny", input=TEXTS, **options)
    expected = reference.encode_details(TEXTS)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    given = [entry.embedding for entry in answer.data]
    if encoding == "base64":  # asked for by the caller, the client hands it on as it came
        given = [np.frombuffer(base64.b64decode(str(vector)), "<f4").tolist() for vector in given]
    np.testing.assert_allclose(np.array(given), expected.vectors, atol=1e-6)
    assert answer.model == "tiny"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == expected.tokens.sum()


def test_single_text_and_native_dimensions(client: openai.OpenAI, reference: Encoder) -> None:
    answer = client.embeddings.create(model="tiny", input="cat", dimensions=16, user="somebody")
    np.testing.assert_allclose(answer.data[0].embedding, reference.encode(["cat"])[0], atol=1e-6)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_fewer_dimensions_are_the_first_values_scaled_to_length_1(
    client: openai.OpenAI, reference: Encoder, encoding: Any
) -> None:
    answer = client.embeddings.create(model="tiny", input=TEXTS, dimensions=6, encoding_format=encoding)
    given = [entry.embedding for entry in answer.data]
    if encoding == "base64":
        given = [np.frombuffer(base64.b64decode(str(vector)), "<f4").tolist() for vector in given]
    kept = reference.encode(TEXTS)[:, :6]
    np.testing.assert_allclose(np.array(given), kept / np.linalg.norm(kept, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ("input_type", "kind"),
    [("query", "query"), ("search_query", "query"), ("document", "document"), ("search_document", "document")],
)
def test_input_type_prepends_model_prompt(
    client: openai.OpenAI, reference: Encoder, input_type: str, kind: Any
) -> None:
    answer = client.embeddings.create(model="tiny", input=TEXTS, extra_body={"input_type": input_type})
    given = np.array([entry.embedding for entry in answer.data])
    np.testing.assert_allclose(given, reference.encode(TEXTS, kind), atol=1e-6)
    assert not np.allclose(given, reference.encode(TEXTS), atol=1e-3)


def test_truncated_text_is_flagged_and_usage_counts_tokens_read(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="tiny", input=["cat", "cat " * 100])
    assert [(entry.model_extra or {}).get("truncated") for entry in answer.data] == [None, True]
    assert answer.usage.prompt_tokens == 3 + 24


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "es-sbert"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_openapi_description_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="has no OpenAPI description"):
        client.get("/openapi.json", cast_to=object)


def test_unknown_model_raises_openai_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Use one of: tiny;") as caught:
        client.embeddings.create(model="other", input="cat")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"), (b"[1]", "the body"), (b"\xff", "not JSON"), (b'{"input": "\\ud800"}', "not JSON"),
        (b"[" * 5000, "not JSON"), ({}, "input: Field required"), ({"input": None}, "input"), ({"input": {}}, "input"),
        ({"input": []}, "is empty"), ({"input": ""}, "is empty"), ({"input": ["a", ""]}, "empty"),
        ({"input": ["a", 1]}, "input"), ({"input": [[1, 2], [3]]}, "check_embedding_ctx_length=False"),
        ({"input": [1, 2]}, "token ids"), ({"input": "a", "model": 1}, "model"), ({"input": "a", "user": []}, "user"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format: .*'float' or 'base64'"),
        ({"input": "a", "encoding_format": False}, "encoding_format"),
        ({"input": "a", "input_type": "image"}, "input_type"), ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 17}, "have 16 dimensions, not 17"),
        ({"input": "a", "dimensions": True}, "dimensions"), ({"input": "a", "dimensions": "16"}, "dimensions"),
        ({"input": "a", "inputs": "b"}, "inputs"),
    ],
)  # fmt: skip
def test_bad_requests_get_400_with_remedy(embeddings_url: str, body: Any, words: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = _post(embeddings_url, content)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert re.search(words, error["message"])


def _post(url: str, content: Any, **headers: Any) -> httpx.Response:
    given = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    return httpx.post(f"{url}/v1/embeddings", content=content, headers=given, timeout=60, trust_env=False)


@pytest.mark.parametrize(
    "headers", [{"content_type": "text/plain"}, {"content_type": ""}, {"content_encoding": "gzip"}]
)
def test_other_content_type_gets_415(embeddings_url: str, headers: dict[str, str]) -> None:
    answer = _post(embeddings_url, b'{"input": "a"}', **headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


KEY = {"authorization": "Bearer the right key"}


@pytest.mark.parametrize(
    "given", [None, b"Bearer wrong", b"Basic the right key", b"Bearer the right keys", b"Bearer \xe9", b""]
)
def test_missing_api_key_gets_401(strict_url: str, given: bytes | None) -> None:
    headers = {} if given is None else {"authorization": given}
    answer = _post(strict_url, b'{"input": "a"}', **headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert "the right key" not in answer.text
    listed = patient.get(f"{strict_url}/v1/models", headers=headers)
    assert listed.status_code == 401
    assert _post(strict_url, b'{"input": "a"}', **KEY).status_code == 200


def test_limits(strict_url: str) -> None:
    assert _post(strict_url, json.dumps({"input": ["a"] * 3}), **KEY).status_code == 200
    for body, status, words in [
        ({"input": ["a"] * 4}, 400, "Send at most 3"),
        ({"input": ["a" * 51, "b" * 50]}, 400, "and 100 characters"),
        ({"input": "a" * 1000}, 413, "larger than 1,000 bytes"),
    ]:
        answer = _post(strict_url, json.dumps(body), **KEY)
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]
    endless = (b'{"input": "' if number == 0 else b"a" * 100 for number in range(100))
    assert _post(strict_url, endless, **KEY).status_code == 413


def test_endless_body_gets_408(tiny: Path) -> None:
    with served(embedding_app(tiny_settings(tiny), limits=Limits(body_seconds=0.1))) as url:
        head = [
            "POST /v1/embeddings HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            "Content-Length: 9",
            "Connection: close",
        ]
        answer = talk(url, "\r\n".join([*head, "", "{"]).encode())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"take 0.1 seconds" in answer


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> TellingEncoder:
    """In place of every model: runs when the test lets it."""
    encoder = TellingEncoder()
    encoder.may_run.clear()
    monkeypatch.setattr("es_sbert.gateway.model_registry.Encoder", lambda model, **options: encoder)
    return encoder


def test_overload_gets_429_with_retry_after(tiny: Path, telling: TellingEncoder) -> None:
    few = Limits(waiting_texts=30, batch_tokens=1, cached_vectors=0)
    body = json.dumps({"input": ["cat"] * 20})
    with served(embedding_app(tiny_settings(tiny), limits=few)) as url, ThreadPoolExecutor(1) as pool:
        first = pool.submit(_post, url, body)
        assert telling.started.wait(60)
        refused = _post(url, body)
        telling.may_run.set()
        assert refused.status_code == 429
        assert first.result().status_code == 200
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        # OpenAI's client tries again by itself.
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            assert len(client.embeddings.create(model="tiny", input="cat").data) == 1
        assert "es_sbert_gateway_texts_waiting 0.0" in patient.get(f"{url}/metrics").text


def test_concurrent_requests_get_their_own_vectors(client: openai.OpenAI, reference: Encoder) -> None:
    def one(number: int) -> None:
        texts = ["cat " * (number % 5 + 1), "a man"][: number % 2 + 1]
        answer = client.embeddings.create(model="tiny", input=texts, extra_body={"input_type": "query"})
        given = np.array([entry.embedding for entry in answer.data])
        np.testing.assert_allclose(given, reference.encode(texts, "query"), atol=1e-6)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(64)))


def test_unloadable_model_gets_503(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path / "missing")
    with served(embedding_app(settings, load=False)) as url:
        answer = _post(url, b'{"input": "a"}')
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "server_error"
        ready = patient.get(f"{url}/readyz")
        assert "cannot be loaded" in ready.json()["model"]
        assert str(tmp_path) not in answer.text + ready.text  # where models lie is nobody's business


def _until_shown(url: str, metric: str) -> str:
    """The metrics, once one of them is as it should be."""
    end = time.monotonic() + 120
    while metric not in (shown := patient.get(f"{url}/metrics").text):
        assert time.monotonic() < end, shown
    return shown


def test_texts_of_disconnected_client_are_not_embedded(tiny: Path, telling: TellingEncoder) -> None:
    in_flight = telling.parallel_batches + 1
    with served(embedding_app(tiny_settings(tiny))) as url, ThreadPoolExecutor(in_flight) as pool:
        busy = []
        for number in range(in_flight):
            busy.append(pool.submit(_post, url, b'{"input": "busy %d"}' % number))
            _until_shown(url, f"es_sbert_gateway_texts_waiting {len(busy)}.0")
        body = json.dumps({"input": ["gone"] * 7})
        head = [
            "POST /v1/embeddings HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port or 80), timeout=60) as connection:
            connection.sendall("\r\n".join([*head, "", body]).encode())
            _until_shown(url, f"es_sbert_gateway_texts_waiting {in_flight + 7}.0")
        shown = _until_shown(url, 'requests_total{kind="embeddings",status="499"} 1.0')
        assert f"es_sbert_gateway_texts_waiting {in_flight}.0" in shown
        telling.may_run.set()
        assert all(request.result().status_code == 200 for request in busy)
        assert _post(url, b'{"input": "last"}').status_code == 200
    assert telling.batches == [1] * (in_flight + 1)
