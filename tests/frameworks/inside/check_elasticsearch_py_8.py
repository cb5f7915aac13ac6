"""elasticsearch-py 8, which speaks to Elasticsearch 8 and 9."""

from __future__ import annotations

from collections.abc import Callable

import elasticsearch
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.frameworks.articles import QUESTION, Fill, RunExample, expected_lines, same_lines
from tests.frameworks.inside.vector_store import check_async_store, check_store


@pytest.fixture(params=["es9", "es8"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def test_client_version_is_8() -> None:
    assert elasticsearch.__version__[0] == 8


def test_vector_store(url: str, encoder: Encoder, fresh_index: Callable[[str], str]) -> None:
    check_store(url, fresh_index(url), encoder)


def test_async_vector_store(url: str, encoder: Encoder, fresh_index: Callable[[str], str]) -> None:
    check_async_store(url, fresh_index(url), encoder)


@pytest.mark.parametrize("example", ["elasticsearch_py", "vectorstore_of_elasticsearch_py"])
def test_examples(example: str, url: str, encoder: Encoder, fill: Fill, run_example: RunExample) -> None:
    index = fill(url)
    printed = run_example(example, QUESTION, "--index", index, "--url", url)
    assert same_lines(printed, expected_lines(url, index, encoder))
