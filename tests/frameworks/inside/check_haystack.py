"""The example of a Haystack pipeline.

Its ElasticsearchDocumentStore asks for `GET /` first, which the es9 of these tests lacks.
"""

from __future__ import annotations

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.frameworks.articles import QUESTION, Fill, RunExample, expected_lines, same_lines


@pytest.mark.parametrize(("engine", "options"), [("es8", ()), ("opensearch", ("--opensearch",))])
def test_example(
    engine: str,
    options: tuple[str, ...],
    request: pytest.FixtureRequest,
    encoder: Encoder,
    fill: Fill,
    run_example: RunExample,
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    index = fill(url, text_field="content")
    printed = run_example("haystack_pipeline", QUESTION, "--index", index, "--url", url, *options)
    assert same_lines(printed, expected_lines(url, index, encoder, text_field="content"))
