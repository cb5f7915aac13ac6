"""Indices that refuse every document of a file, told before any is sent."""

from __future__ import annotations

import pytest

from es_sbert.engines.protocol import IndexState
from es_sbert.errors import VectorIndexError
from es_sbert.ingest.plan import check_takes_files

ROUTED = {"_routing": {"required": True}}


def test_a_data_stream_takes_no_files() -> None:
    with pytest.raises(VectorIndexError, match=r"logs is a data stream \(\.ds-logs-1\)"):
        check_takes_files(IndexState(".ds-logs-1", {}, {}, data_stream="logs"), "logs")


def test_a_routing_that_is_wanted_must_be_the_alias_own() -> None:
    aliases = {"plain": {}, "one": {"index_routing": "1", "search_routing": "1"}}
    index = IndexState("docs", ROUTED, {}, aliases)
    check_takes_files(index, "one")
    for name in ("docs", "plain"):
        with pytest.raises(VectorIndexError, match="wants a routing"):
            check_takes_files(index, name)
    check_takes_files(IndexState("docs", {}, {}, aliases), "docs")
