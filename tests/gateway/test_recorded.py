"""The recorded set is what it says, and comparing answers finds every difference but those that mean nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gateway.replay import comparable
from tests.gateway.wire import Answer

FOUND = Answer(
    200,
    (("X-elastic-product", "Elasticsearch"), ("content-type", "application/json"), ("content-length", "21")),
    b'{"took":5,"hits":[1]}',
)


@pytest.mark.parametrize(
    "other",
    [
        replace(FOUND, body=b'{"took":9,"hits":[1]}'),
        replace(FOUND, headers=FOUND.headers[::-1]),
        replace(FOUND, headers=(*FOUND.headers, ("Connection", "close"))),
        replace(FOUND, headers=tuple((name.upper(), value) for name, value in FOUND.headers)),
    ],
    ids=["took", "order of headers", "hop-by-hop", "case of names"],
)
def test_insignificant_differences_are_ignored(other: Answer) -> None:
    assert comparable("GET", other, {}) == comparable("GET", FOUND, {})


@pytest.mark.parametrize(
    "other",
    [
        replace(FOUND, status=201),
        replace(FOUND, body=b'{"took":5,"hits":[2]}'),
        replace(FOUND, body=b'{"took":5,"hits":[1]}\n', headers=(*FOUND.headers[:2], ("content-length", "22"))),
        replace(FOUND, headers=FOUND.headers[1:]),
        replace(FOUND, headers=FOUND.headers[:2]),
        replace(FOUND, headers=(*FOUND.headers, ("server", "a proxy"))),
        replace(FOUND, headers=(*FOUND.headers, FOUND.headers[0])),
    ],
    ids=["status", "body", "newline", "header lost", "length lost", "header more", "header twice"],
)
def test_significant_differences_are_detected(other: Answer) -> None:
    assert comparable("GET", other, {}) != comparable("GET", FOUND, {})


def test_wrong_content_length_is_detected() -> None:
    with pytest.raises(AssertionError):
        comparable("GET", replace(FOUND, body=b"{}"), {})
