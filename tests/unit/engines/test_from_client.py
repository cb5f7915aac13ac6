"""A caller's client, without a server. Real servers: tests/engine/test_clients.py."""

from __future__ import annotations

from typing import Any

import pytest
from opensearchpy import OpenSearch

from es_sbert.engines.connect import open_engine
from es_sbert.errors import EngineUnreachable, UsageError


class Ours(OpenSearch):
    """A subclass is a client, too."""


@pytest.mark.parametrize("hosts", ["http://anna:secret@127.0.0.1:1/engine/", [{"host": "127.0.0.1", "port": 1}]])
def test_address_of_a_client_is_shown_without_credentials(hosts: Any) -> None:
    client = Ours(hosts)
    path = "/engine" if isinstance(hosts, str) else ""
    with pytest.raises(EngineUnreachable, match=f"nothing listens at http://127.0.0.1:1{path}\n") as caught:
        open_engine(client)
    assert "secret" not in str(caught.value)
    client.close()


@pytest.mark.parametrize("given", [5, object(), {"hosts": ["localhost"]}])
def test_non_client_is_rejected(given: Any) -> None:
    with pytest.raises(UsageError, match="is not a synchronous client") as caught:
        open_engine(given)
    assert "Pass an address" in caught.value.remedy
