"""Names from outside on their way into request lines, field names and scripts."""

from __future__ import annotations

import re
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import quote_index_expression, quote_index_name
from es_sbert.errors import UsageError
from es_sbert.filesystem import safe_file_name
from es_sbert.search.vector_query import SearchMethod, VectorQuery, search_body
from tests.raised import raises

HOSTILE = [
    "../x", "a/b", "a?b=c", "a#b", "_all", "_search", "*", "a*", "a,b", "-a", "+a", ".", "..", "", "a\\b", 'a"b', "<a>",
    "a|b", "a:b", "a b", "a\nb", "a\r", "a\x00b", "a\u202eb",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_path_like_index_names_are_rejected(name: str) -> None:
    with raises(UsageError, "index", name):
        quote_index_name(name)


@pytest.mark.parametrize("expression", ["a,_search", "a,b/c", "a,b?c", "a,,b", "*,-"])
def test_path_like_parts_of_index_expressions_are_rejected(expression: str) -> None:
    with raises(UsageError, "index", expression):
        quote_index_expression(expression)


@pytest.mark.parametrize("name", ["far:docs", "docs,far:docs", "*:docs", "-far:*"])
def test_names_of_remote_clusters_are_rejected_with_the_way_out(name: str) -> None:
    with raises(UsageError, "index", name):
        quote_index_name(name)


@given(st.text(max_size=30))
def test_index_name_is_one_path_segment_or_rejected(name: str) -> None:
    try:
        segment = quote_index_name(name)
    except UsageError:
        return
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]+", segment)
    assert segment not in (".", "..")
    assert unquote(segment) == name


@given(st.text(max_size=30))
def test_safe_file_name_stays_in_its_folder(name: str) -> None:
    made = safe_file_name(name)
    assert made
    assert not set(made) & set("/\\\0\n")
    assert not made.startswith(".")
    assert unquote(made) == name or made == "%", "no two indices share a file"


@given(st.text(min_size=1, max_size=20))
def test_field_name_cannot_end_the_script_string(name: str) -> None:
    body = search_body(EngineType.ELASTICSEARCH, SearchMethod.EXACT, VectorQuery(name, np.ones(2, dtype=np.float32)))
    source = body["query"]["script_score"]["script"]["source"]
    # One painless string: no bare quote inside, and every backslash has its partner.
    match = re.fullmatch(r"cosineSimilarity\(params\.q, '((?:[^'\\]|\\['\\])*)'\) \+ 1\.0", source, re.DOTALL)
    assert match is not None
    assert re.sub(r"\\(['\\])", r"\1", match[1]) == name
