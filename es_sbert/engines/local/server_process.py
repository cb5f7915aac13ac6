"""Start, identify and stop a server's process, and choose the user that it runs as.

A process is identified by its id and its start time, because ids are reused. Both engines refuse to run as root: if
root starts a server, it runs as `nobody`; otherwise it runs as the calling user.
"""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
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


class _ServerProcess(subprocess.Popen[bytes]):
    """A process that outlives this one."""

    def __del__(self) -> None:
        """Nothing: Popen warns of children that still run when this process ends, which is what they are for."""


# Our own children, to collect their exit status: one that nobody waits for stays in the process table.
_children: dict[int, _ServerProcess] = {}


def start_process(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], console: Path, account: Account | None
) -> int:
    """Start a process that outlives this one, in a session (and thus process group) of its own.

    Args:
        folder: Working directory.
        environment: All it gets of the environment.
        console: File that receives stdout and stderr.
        account: User to become; None keeps the caller's.

    Returns:
        Its process id.

    Raises:
        LocalEngineError: the system refuses to run the command.
    """
    with console.open("wb") as output:
        try:
            child = _ServerProcess(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                umask=0o077,
            )
        except OSError as error:
            raise LocalEngineError(
                f"the system refuses to run {command[0]}: {error.strerror}",
                "Its folder may lie on a disk mounted noexec; set ES_SBERT_ENGINE_HOME to one that is not.",
            ) from error
    _children[child.pid] = child
    return child.pid


def process_exit_code(pid: int) -> int | None:
    """Exit status of a process that ended; None while it runs, or if another process spawned it."""
    return _children[pid].poll() if pid in _children else None


def process_identity(pid: int) -> str | None:
    """What tells this process from any other that had or will have its id; None if there is none."""
    if Path("/proc/self/stat").exists():
        return _identity_from_proc(pid)
    return _identity_from_ps(pid)


def _identity_from_proc(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold blanks and parentheses itself.
    fields = text.rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), fields[19]
    # Dead, not yet collected by its parent. Where other threads are left, only the first one is: it counts as alive
    # until they let go of port and data.
    if state in "ZX" and threads <= 1:
        return None
    # The start is counted in clock ticks since boot, so the boot belongs to it.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{started}"


def _identity_from_ps(pid: int) -> str | None:
    try:
        said = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise LocalEngineError(
            "this system has neither /proc nor ps, so a server's process cannot be recognised",
            "Install ps (package procps).",
        ) from None
    state, _, started = said.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def stop_process(pid: int, started: str, *, grace: float) -> None:
    """End a process: SIGTERM, and after `grace` seconds SIGKILL to its whole group.

    Does nothing if the process is gone or its id belongs to another by now.

    Args:
        started: Its `identity`.

    Raises:
        LocalEngineError: it belongs to another user, or survives.
    """
    try:
        if process_identity(pid) == started:
            os.kill(pid, signal.SIGTERM)
            if not _wait_until_gone(pid, started, grace):
                # Elasticsearch's launcher has the server as a child: killing the launcher alone leaves it, and the
                # server may end later than the launcher while it still holds the lock of its data.
                group = _group_members(pid) | {pid: started}
                os.killpg(pid, signal.SIGKILL)
                for member, began in group.items():
                    if not _wait_until_gone(member, began, 10.0):
                        raise LocalEngineError(
                            f"process {member} does not end",
                            "It waits for the system, most likely for a disk; try later.",
                        )
    except ProcessLookupError:
        # It ended between the look and the signal, which is what was wanted.
        pass
    except PermissionError:
        raise LocalEngineError(
            f"process {pid} was started by another user", "Stop it as that user, or as root."
        ) from None
    if pid in _children:
        _children.pop(pid).wait()


def _group_members(leader: int) -> dict[int, str]:
    """Processes of a process group by id, with their identities."""
    members = {}
    for pid in _all_pids():
        try:
            started = process_identity(pid) if os.getpgid(pid) == leader else None
        except ProcessLookupError:  # ended since the list was made
            continue
        if started is not None:
            members[pid] = started
    return members


def _all_pids() -> list[int]:
    if Path("/proc/self/stat").exists():
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid in listed.stdout.split()]


def _wait_until_gone(pid: int, started: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process_identity(pid) == started:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True
