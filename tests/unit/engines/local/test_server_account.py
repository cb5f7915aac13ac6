"""Who may enter which folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from es_sbert.engines.local.server_process import Account, server_account
from es_sbert.errors import LocalEngineError

STRANGER = Account("stranger", uid=os.getuid() + 4242, gid=os.getgid() + 4242)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose parents are open, whatever pytest's own folder allows."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    return inner


def opened(folder: Path) -> bool:
    """Whether the parents that this test did not make are open to strangers."""
    return STRANGER.can_enter(folder.parents[1])


def test_parent_folder_without_access_denies_entry(folder: Path) -> None:
    folder.parent.chmod(0o700)
    assert not STRANGER.can_enter(folder)
    folder.parent.chmod(0o755)
    assert STRANGER.can_enter(folder) == opened(folder)


def test_owner_uses_owner_permissions(folder: Path) -> None:
    me = Account("me", os.getuid(), os.getgid())
    folder.chmod(0o700)
    assert me.can_enter(folder)
    folder.chmod(0o077)
    assert not me.can_enter(folder)


def test_group_member_uses_group_permissions(folder: Path) -> None:
    colleague = Account("colleague", STRANGER.uid, folder.stat().st_gid)
    for each in (folder.parents[2], folder.parents[1]):
        each.chmod(0o755)
    folder.chmod(0o707)
    assert not colleague.can_enter(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_root_requires_an_unprivileged_user() -> None:
    account = server_account()
    assert account is not None
    assert account.uid != 0
    with pytest.raises(LocalEngineError, match="refuse to run as root") as caught:
        server_account("no-such-user-here")
    assert "useradd" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root changes its user")
def test_ordinary_user_needs_no_other_account() -> None:
    assert server_account() is None
