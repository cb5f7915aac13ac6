"""What happens to the disk that state and dead letters lie on, and to the state itself."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.faults.bench import Bench, Load, WrongEnd

_NAMESPACE = ("unshare", "--mount")


def can_mount() -> bool:
    """Whether this user may mount a disk that nobody else sees."""
    with suppress(FileNotFoundError):
        tried = [*_NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        return subprocess.run(tried, capture_output=True).returncode == 0
    return False


class SmallDisk:
    """A tmpfs of its own size, in a mount namespace of its own."""

    def __init__(self, folder: Path, size: str) -> None:
        self._folder = folder
        folder.mkdir()
        script = 'mount -t tmpfs -o "size=$1" tmpfs "$0" && echo ready && exec sleep infinity'
        self._holder = subprocess.Popen([*_NAMESPACE, "sh", "-c", script, str(folder), size], stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            raise OSError(f"{folder} cannot be mounted")
        self.inside = ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--wd={folder.parent}")
        self.seen = Path(f"/proc/{self._holder.pid}/root{folder}")

    def grow(self, size: str) -> None:
        """Make room."""
        command = [*self.inside, "mount", "-o", f"remount,size={size}", str(self._folder)]
        subprocess.run(command, check=True, capture_output=True)

    def close(self) -> None:
        """Give it up, with all that is on it."""
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """A disk for the time of a fault."""
    disk = SmallDisk(folder, size)
    try:
        yield disk
    finally:
        disk.close()


def full_for_letters(bench: Bench) -> dict[str, Any]:
    """The disk of the dead letters is full, in the middle of a letter; then there is room again."""
    with small_disk(bench.folder / "disk", "4k") as disk:
        letters, bench.letters = bench.letters, bench.folder / "disk" / "dead-letters.jsonl"
        _stopped_by_disk(bench.start(prefix=disk.inside), "the dead-letter file")
        disk.grow("100m")
        summary = bench.ended(bench.start(prefix=disk.inside))
        whole = [
            line
            for line in (disk.seen / bench.letters.name).read_bytes().splitlines(keepends=True)
            if line.endswith(b"}\n")
        ]
        bench.letters = letters
        letters.write_bytes(b"".join(whole))
        return summary


def quota(bench: Bench) -> dict[str, Any]:
    """No file of the process may grow beyond a size; then there is no such limit any more."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))

    # Without the measurement of coverage, whose file would exceed the limit too.
    unmeasured = {"COVERAGE_PROCESS_CONFIG": "", "COVERAGE_PROCESS_START": ""}
    _stopped_by_disk(bench.start(preexec=limit, environment=unmeasured), "cannot be written")
    return bench.finish()


def _stopped_by_disk(load: Load, words: str) -> None:
    said = load.end(2)
    if words not in said or "run the same command again" not in said:
        raise WrongEnd(f"it does not say what to do: {said}")


def state_of_noise(bench: Bench) -> dict[str, Any]:
    """The state file is overwritten with noise between SIGKILL and the next command."""
    bench.kill_in_the_middle()
    for path in (bench.state, bench.state.with_name(f"{bench.state.name}-wal")):
        if path.exists():
            path.write_bytes(os.urandom(path.stat().st_size + 5000))
    summary = bench.finish()
    # A load that was begun anew writes its own letters beside those of the one that was killed.
    bench.letters.unlink()
    again = bench.finish()
    if again["indexed"] or again["updated"]:
        raise WrongEnd(f"the load before was not whole: {again}")
    return summary
