"""What works with the clients that es-sbert itself installs: elasticsearch-py 9 and opensearch-py."""

from __future__ import annotations

import re

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.frameworks.articles import EXAMPLES, QUESTION, Fill, RunExample, expected_lines, same_lines

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FOREIGN = {"haystack_pipeline", "langchain_on_elasticsearch", "langchain_on_opensearch"}
OWN = {"elasticsearch_py", "opensearch_py", "vectorstore_of_elasticsearch_py"}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == OWN | FOREIGN
    inside = "".join(path.read_text() for path in EXAMPLES.parents[1].glob("tests/frameworks/inside/check_*.py"))
    assert all(f'"{name}"' in inside for name in FOREIGN)


def test_code_on_page_matches_examples() -> None:
    """So what the page shows is what runs."""
    page = (EXAMPLES.parents[1] / "docs/integrations.md").read_text()
    examples = [_stripped(path.read_text()) for path in EXAMPLES.glob("*.py")]
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert any(_stripped(block) in example for example in examples), block


def _stripped(code: str) -> str:
    return "\n".join(line.strip() for line in code.strip().splitlines())


@pytest.mark.parametrize(
    ("example", "engine"),
    [("elasticsearch_py", "es9"), ("vectorstore_of_elasticsearch_py", "es9"), ("opensearch_py", "opensearch")],
)
def test_examples(
    example: str, engine: str, request: pytest.FixtureRequest, encoder: Encoder, fill: Fill, run_example: RunExample
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    index = fill(url)
    printed = run_example(example, QUESTION, "--index", index, "--url", url)
    assert same_lines(printed, expected_lines(url, index, encoder))
