"""How many documents may fail before a load stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.ingest.ledger import DEFAULT_LIMIT, NO_LIMIT, ErrorLimit
from es_sbert.ingest.load_plan import IngestSettings


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("0", ErrorLimit(count=0), "0"),
        ("1000", ErrorLimit(count=1000), "1,000"),
        ("5%", ErrorLimit(share=0.05), "5%"),
        (" 0.5 % ", ErrorLimit(share=0.005), "0.5%"),
        ("OFF", NO_LIMIT, "off"),
    ],
)
def test_parse_valid_limits(text: str, limit: ErrorLimit, shown: str) -> None:
    assert ErrorLimit.parse(text) == limit
    assert str(limit) == shown


@pytest.mark.parametrize(
    ("limit", "read", "failed", "exceeded"),
    [
        (DEFAULT_LIMIT, 999, 999, False),
        (DEFAULT_LIMIT, 1000, 100, False),
        (DEFAULT_LIMIT, 1000, 101, True),
        (ErrorLimit(count=3), 3, 3, False),
        (ErrorLimit(count=3), 4, 4, True),
        (ErrorLimit(count=0), 10, 1, True),
        (ErrorLimit(share=0.0), 1000, 1, True),
        (NO_LIMIT, 10**6, 10**6, False),
    ],
)
def test_is_exceeded(limit: ErrorLimit, read: int, failed: int, exceeded: bool) -> None:
    assert limit.is_exceeded(read, failed) == exceeded


def test_retries_watches_and_migrations_default_to_no_limit(tmp_path: Path) -> None:
    assert IngestSettings(index="docs").error_limit == DEFAULT_LIMIT
    kinds: list[dict[str, Any]] = [{"retry": tmp_path / "dead"}, {"watch_seconds": 1.0}, {"only_lacking": True}]
    for options in kinds:
        assert IngestSettings(index="docs", **options).error_limit == NO_LIMIT
        own = ErrorLimit(count=1)
        assert IngestSettings(index="docs", max_errors=own, **options).error_limit == own
