"""The recorded requests are answered through the gateway as the engine answers them itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.recorded import scenarios
from tests.gateway.replay import clean, run
from tests.gateway.serving import gateway


@pytest.fixture(scope="module")
def gateway_url(engine_url: str, tiny: Path) -> Iterator[str]:
    with gateway(engine_url, tiny) as url:
        yield url


# Some scenarios ask about the settings of the whole cluster.
@pytest.mark.usefixtures("alone_on_engines")
@pytest.mark.parametrize("name", scenarios())
def test_responses_match_the_engine(
    request: pytest.FixtureRequest, engine_url: str, gateway_url: str, name: str
) -> None:
    prefix = f"rq{uuid.uuid4().hex[:8]}"
    answers = []
    # OpenSearch warns of some things once in its life: a first run takes these warnings, and is compared with nothing.
    first = [engine_url] if request.node.callspec.params["engine_url"] == "opensearch" else []
    for url in (*first, engine_url, gateway_url):
        try:
            answers.append(run(url, scenarios()[name], prefix))
        finally:
            clean(engine_url, prefix)
    *_, directly, through = answers
    for (asked, expected), (_, got) in zip(directly, through, strict=True):
        if asked.refused:
            assert got.status in (400, 415), asked
        else:
            assert got == expected, asked
    # A scenario that only fails would show little.
    assert sum(expected.status < 300 for _, expected in directly) >= len(directly) // 8
