"""`make compat` deletes indices only of servers that it may wipe."""

from __future__ import annotations

import httpx
import pytest

from benchmarks.compat.cluster import Cluster
from es_sbert.errors import UsageError


def test_server_with_indices_is_refused_without_wipe(engine_url: str, index_name: str) -> None:
    httpx.put(f"{engine_url}/{index_name}", trust_env=False).raise_for_status()
    with pytest.raises(UsageError, match="would delete") as refused:
        Cluster(engine_url, may_wipe=False)
    assert "--wipe" in refused.value.remedy
    assert httpx.head(f"{engine_url}/{index_name}", trust_env=False).status_code == 200
