"""Addresses of a caller's client, as messages show them. Real servers: tests/engine/test_clients.py."""

from __future__ import annotations

from typing import Any

import pytest
from opensearchpy import OpenSearch

from es_sbert.engines.connect import _opensearch_url, is_async_client, is_engine_client, open_engine
from es_sbert.errors import UsageError


@pytest.mark.parametrize(
    ("hosts", "url"),
    [
        ("https://anna:secret@search.example:9443/engine/", "https://search.example:9443/engine"),
        ([{"host": "a", "port": 9201, "use_ssl": True}], "https://a:9201"),
        ("http://localhost:19200", "http://localhost:19200"),
        (None, "http://localhost:9200"),
    ],
)
def test_client_url_has_no_credentials(hosts: Any, url: str) -> None:
    client = OpenSearch(hosts)
    assert _opensearch_url(client.transport.hosts[0]) == url
    assert is_engine_client(client)
    assert not is_async_client(client)
    client.close()


def test_client_subclass_is_a_client() -> None:
    class Ours(OpenSearch):
        pass

    client = Ours()
    assert is_engine_client(client)
    client.close()


@pytest.mark.parametrize("given", [5, object(), {"hosts": ["localhost"]}])
def test_non_client_is_rejected(given: Any) -> None:
    with pytest.raises(UsageError, match="is not an Elasticsearch or OpenSearch client") as caught:
        open_engine(given)
    assert "Pass an address" in caught.value.remedy
