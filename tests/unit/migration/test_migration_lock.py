"""The lock of a migration: one process at a time for an alias of a cluster, however the cluster is addressed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from es_sbert.errors import UsageError
from es_sbert.migration.migration_state import migration_lock


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "url", ["http://a:1,http://b:2", "http://b:2,http://a:1", "http://b:2", "http://c:3,http://a:1"]
)
def test_a_cluster_is_locked_by_any_of_its_addresses(url: str) -> None:
    with (
        migration_lock("http://a:1,http://b:2", "docs"),
        pytest.raises(UsageError, match="another process is migrating docs"),
        migration_lock(url, "docs"),
    ):
        pass


def test_other_aliases_and_other_clusters_are_not_locked() -> None:
    with (
        migration_lock("http://a:1,http://b:2", "docs"),
        migration_lock("http://a:1", "others"),
        migration_lock("http://c:3", "docs"),
    ):
        pass


def test_one_address_has_the_lock_file_it_always_had(cache: Path) -> None:
    name = hashlib.sha256(b"http://a:1 docs").hexdigest()[:32]
    with migration_lock("http://a:1", "docs"):
        assert (cache / f"migrate-{name}.lock").exists()
