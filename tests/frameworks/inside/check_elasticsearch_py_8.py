"""elasticsearch-py 8, which speaks to Elasticsearch 8 and 9."""

from __future__ import annotations

import elasticsearch
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.frameworks.articles import QUESTION, Fill, RunExample, expected_lines, same_lines


@pytest.fixture(params=["es9", "es8"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def test_client_version_is_8() -> None:
    assert elasticsearch.__version__[0] == 8


@pytest.mark.parametrize("example", ["elasticsearch_py", "vectorstore_of_elasticsearch_py"])
def test_examples(example: str, url: str, encoder: Encoder, fill: Fill, run_example: RunExample) -> None:
    index = fill(url)
    printed = run_example(example, QUESTION, "--index", index, "--url", url)
    assert same_lines(printed, expected_lines(url, index, encoder))
