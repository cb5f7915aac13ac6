"""The recorded requests are answered through the gateway as the engine answers them itself."""

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.gateway.recorded import Request, request, scenarios
from tests.gateway.serving import gateway
from tests.gateway.wire import Answer, send

# What differs between two runs of one request against one engine. Each pattern's first group stays, the rest goes.
VOLATILE = tuple(
    re.compile(pattern.encode())
    for pattern in (
        # Times.
        r'("?took"?\s*:\s*)\d+',
        r'("(?:index\.)?creation_date"\s*:\s*)"\d{13}"',
        r'("(?:index\.)?creation_date_string"\s*:\s*)"[\d:.TZ-]{20,24}"',
        r'("(?:creation_time|created_date_millis|modified_date_millis)"\s*:\s*)\d{13}',
        # What the engine makes up: UUIDs of indices and copies of shards, numbers of scrolls.
        r'("(?:index\.)?(?:index_)?uuid"\s*:\s*)"[\w-]{22}"',
        r'("allocation_id"\s*:\s*)\{"id":"[\w-]{22}"\}',
        r"(\[rq[\w-]+/)[\w-]{22}(?=\])",
        r"(No search context found for id \[(?:\[[\w-]{22}\]\[)?)\d+",
    )
)
# OpenSearch tells how much processor time a search took.
VOLATILE_HEADERS = {"task_resource_usage"}
# Belong to one connection and not to the answer (RFC 9110, 7.6.1); Content-Length is compared with the body instead.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Comparable:
    """An answer without what differs from run to run.

    Attributes:
        headers: Sorted, with their names in lower case.
        has_length: Whether there is a Content-Length (which is then right).
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    has_length: bool
    body: bytes


def run(url: str, lines: Iterable[Mapping[str, Any]], prefix: str) -> list[tuple[Request, Comparable]]:
    """A scenario's requests in order, with what an engine that has nothing under `prefix` answers.

    Args:
        prefix: Begins with `rq`. Runs to be compared have the same, as engines order some answers by a hash of names.
    """
    values = {"prefix": prefix}
    exchanges = []
    for line in lines:
        asked = request(line, values)
        answer = send(url, asked)
        if asked.save and answer.status < 300:
            saved = json.loads(answer.body)
            values |= {name: saved[key] for name, key in asked.save.items()}
        exchanges.append((asked, comparable(asked.method, answer, values)))
    return exchanges


def comparable(method: str, answer: Answer, values: Mapping[str, str]) -> Comparable:
    """What must be the same in every run.

    Args:
        values: `prefix`, and what was saved in this run only.

    Raises:
        AssertionError: Content-Length is not the length of the body.
    """
    length = answer.header("content-length")
    if method != "HEAD" and length is not None:
        assert int(length) == len(answer.body)
    # 47: gzip or zlib, whichever it is.
    body = zlib.decompress(answer.body, wbits=47) if answer.header("content-encoding") and answer.body else answer.body
    for name, value in values.items():
        if name != "prefix":
            body = body.replace(value.encode(), f"{{{name}}}".encode())
    for pattern in VOLATILE:
        body = pattern.sub(rb"\1", body)
    headers = ((name.lower(), value) for name, value in answer.headers)
    kept = ((name, "" if name in VOLATILE_HEADERS else value) for name, value in headers if name not in HOP_BY_HOP)
    # The length of a HEAD's answer is that of a body nobody sees.
    return Comparable(answer.status, tuple(sorted(kept)), length is not None, body)


def clean(url: str, prefix: str) -> None:
    """Delete what a run has left: indices, templates, pipelines and scripts."""
    assert prefix.startswith("rq")
    indices = send(url, Request("GET", f"/_cat/indices/{prefix}*?h=index&expand_wildcards=all&format=json"))
    for row in json.loads(indices.body):
        deleted = send(url, Request("DELETE", "/" + quote(row["index"])))
        assert deleted.status == 200, deleted
    for target in (f"/_index_template/{prefix}*", f"/_template/{prefix}*", f"/_component_template/{prefix}*"):
        deleted = send(url, Request("DELETE", target))
        assert deleted.status in (200, 404), deleted


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
