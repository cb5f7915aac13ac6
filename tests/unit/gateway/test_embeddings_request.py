"""Bodies of `POST /v1/embeddings`: their limits apply before anything else is done with them."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from es_sbert.errors import ModelError, UsageError
from es_sbert.gateway.openai_api import exception_response, parse_embeddings_request
from es_sbert.gateway.settings import Limits


@pytest.mark.parametrize(
    ("body", "message", "remedy"),
    [
        ({"input": list(range(300_000))}, "'input' holds token ids", "Send the texts themselves"),
        ({"input": [[7]] * 300_000}, "'input' holds token ids", "Send the texts themselves"),
        ({"input": [None] * 300_000}, "'input' holds 300,000 texts", "Send at most 2,048 texts"),
        ({"input": ["a"] * 2049}, "'input' holds 2,049 texts", "Send at most 2,048 texts"),
        ({"input": "a"} | {f"x{number}": 1 for number in range(300_000)}, "x0: Extra inputs", 'such as {"input"'),
    ],
)
def test_large_wrong_request_is_refused_at_once(body: Any, message: str, remedy: str) -> None:
    content = orjson.dumps(body)
    start = time.process_time()
    with pytest.raises(UsageError) as caught:
        parse_embeddings_request(content, Limits())
    assert time.process_time() - start < 2
    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_logged_error_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    assert exception_response(ModelError("no model", "Get one.")).status_code == 503
    assert caplog.messages == ["an embeddings request failed: no model. Get one."]


def test_as_many_texts_as_the_limit_are_accepted() -> None:
    request = parse_embeddings_request(orjson.dumps({"input": ["a"] * 2048}), Limits())
    assert len(request.texts) == 2048
