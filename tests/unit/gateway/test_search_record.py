"""Lines of the search log: what they say, and what they never say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.gateway.search_log import SearchKind, SearchRecord, log_document
from es_sbert.gateway.settings import QueryTextPolicy, check_index_name

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[1] / "golden/gateway/search_log.ndjson"
KEY = b"0123456789abcdef"
AT = datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)
SEARCHES = [
    SearchRecord(
        "docs",
        "_search",
        SearchKind.SEMANTIC,
        200,
        12.3456,
        embedding_milliseconds=4.0,
        upstream_milliseconds=7.25,
        texts=["How do plants make energy?"],
        rewrites=["virtual_field"],
        k=100,
        hits=0,
        at=AT,
    ),
    SearchRecord("docs,more-*", "_msearch", SearchKind.LEXICAL, 200, 3.0, upstream_milliseconds=2.5, hits=17, at=AT),
    SearchRecord("", "_search", SearchKind.HYBRID, 502, 1.0, texts=["a", "b"], at=AT + timedelta(seconds=2)),
]


def test_lines_match_golden_file() -> None:
    wording = QueryTextPolicy.from_options(queries=False, key=KEY)
    lines = [orjson.dumps(log_document(search, wording, "here")) + b"\n" for search in SEARCHES]
    assert b"".join(lines) == GOLDEN.read_bytes()


def _leaves(properties: dict[str, Any], prefix: str = "") -> set[str]:
    names: set[str] = set()
    for name, field in properties.items():
        inner = field.get("properties")
        names |= _leaves(inner, f"{prefix}{name}.") if inner else {prefix + name}
    return names


def _names(value: dict[str, Any], prefix: str = "") -> set[str]:
    names: set[str] = set()
    for name, inner in value.items():
        names |= _names(inner, f"{prefix}{name}.") if isinstance(inner, dict) else {prefix + name}
    return names


def test_lines_and_index_template_have_the_same_fields() -> None:
    template = orjson.loads((ROOT / "examples/search-log/index-template.json").read_bytes())
    mapped = _leaves(template["template"]["mappings"]["properties"])
    wording = QueryTextPolicy.from_options(queries=True)
    assert set().union(*(_names(log_document(search, wording, "here")) for search in SEARCHES)) == mapped


@given(st.text(min_size=1))
def test_query_text_is_logged_only_when_enabled(text: str) -> None:
    search = SearchRecord("docs", "_search", SearchKind.SEMANTIC, 200, 1.0, texts=[f"MARKER{text}"])
    told = log_document(search, QueryTextPolicy.from_options(queries=True, key=KEY), "here")
    assert told["query"] == [f"MARKER{text}"]
    kept = log_document(search, QueryTextPolicy.from_options(queries=False, key=KEY), "here")
    assert "query" not in kept
    assert "MARKER" not in repr(kept)
    assert kept["query_hash"] == told["query_hash"]


def test_equal_queries_have_one_hash_per_key() -> None:
    one, other = (
        QueryTextPolicy.from_options(queries=False, key=KEY),
        QueryTextPolicy.from_options(queries=False, key=KEY[::-1]),
    )
    [first] = one.of_texts(["Plants  and\tenergy "])["query_hash"]
    assert one.of_texts(["plants and energy"])["query_hash"] == [first]
    assert one.of_texts(["plants and energies"])["query_hash"] != [first]
    assert other.of_texts(["plants and energy"])["query_hash"] != [first]
    assert QueryTextPolicy.from_options(queries=False).key != QueryTextPolicy.from_options(queries=False).key
    assert "0123" not in repr(one)


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
def test_weak_hash_key_is_rejected(key: bytes) -> None:
    with pytest.raises(UsageError, match="16 to 64") as caught:
        QueryTextPolicy.from_options(queries=False, key=key)
    assert "openssl" in caught.value.remedy


@pytest.mark.parametrize("name", ["", "-a", "_a", "Upper", "a*", "a/b", "a b", "a" * 250, "a,b"])
def test_invalid_index_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="not a valid index name"):
        check_index_name(name)
