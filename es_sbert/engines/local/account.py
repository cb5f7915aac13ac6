"""Which user a server runs as: both engines refuse root.

Started by root, a server becomes `nobody`, who must be able to reach everything the server reads. Started by
anyone else, it stays that user.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from es_sbert.errors import LocalEngineError

UNPRIVILEGED_USER = "nobody"


@dataclass(frozen=True)
class Account:
    """A user other than the one who calls."""

    name: str
    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Whether the user may pass through a folder and every folder above it.

        Only the classic permission bits are read: access-control lists and further groups are not looked at.
        """
        resolved = folder.resolve()
        return all(self._has(each.stat(), stat.S_IXOTH) for each in (resolved, *resolved.parents))

    def _has(self, status: os.stat_result, permission_of_others: int) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & permission_of_others << 6)
        if status.st_gid == self.gid:
            return bool(status.st_mode & permission_of_others << 3)
        return bool(status.st_mode & permission_of_others)


def server_account(user: str = UNPRIVILEGED_USER) -> Account | None:
    """The account to start servers with; None means the calling user's own.

    Raises:
        LocalEngineError: root calls, and the machine has no user of that name.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise LocalEngineError(
            f"search engines refuse to run as root, and this machine has no user {user!r} to run them as",
            f"Call es-sbert as an ordinary user, or create the user: useradd --system {user}",
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
