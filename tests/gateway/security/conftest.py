"""A gateway with narrow limits, the engine behind it, and a host that it may not reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.echo import Echo
from tests.gateway.security.support import MOST_BYTES, MOST_REQUESTS
from tests.gateway.serving import gateway


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Echo]:
    """A host that nothing may lead to."""
    with Echo() as server:
        yield server
        assert (server.received, server.refused) == ([], [])


@pytest.fixture(scope="session")
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture(scope="session")
def url(echo: Echo, tiny: Path) -> Iterator[str]:
    with gateway(echo.url, tiny, body_bytes=MOST_BYTES, concurrency=MOST_REQUESTS, answer_seconds=60.0) as address:
        yield address


@pytest.fixture(autouse=True)
def _a_new_start(echo: Echo) -> None:
    echo.start_anew()
