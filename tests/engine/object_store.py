"""A real S3 server for the tests of remote sources: S3Proxy, objects in memory, run by the JDK that the engines use."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from es_sbert.engines.local import server_process
from es_sbert.engines.local.jdk import find_jdk
from es_sbert.io.maven import Artifact, find_maven
from tests.conftest import free_port

S3PROXY = Artifact("org.gaul", "s3proxy", "2.6.0", 41, "jar", "jar-with-dependencies")
ACCESS_KEY, SECRET_KEY = "test-access-key", "s3cret-of-the-tests"
BUCKET = "documents"


@dataclass(frozen=True)
class ObjectStore:
    """The server, with the bucket `documents`."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        """What an S3 client reads of its environment."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def filesystem(self) -> Any:
        """An fsspec filesystem to put objects with."""
        return fsspec.filesystem(
            "s3",
            key=ACCESS_KEY,
            secret=SECRET_KEY,
            endpoint_url=f"http://127.0.0.1:{self.port}",
            client_kwargs={"region_name": "us-east-1"},
        )

    def put(self, key: str, data: bytes) -> str:
        """Store an object; its address."""
        self.filesystem.pipe_file(f"{BUCKET}/{key}", data)
        return f"s3://{BUCKET}/{key}"

    def remove(self, key: str) -> None:
        self.filesystem.rm_file(f"{BUCKET}/{key}")


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Start the server, and stop it at the end.

    Args:
        folder: For its program and its settings.
    """
    program = find_maven(os.environ, print).fetch(S3PROXY, folder)
    store = ObjectStore(free_port())
    settings = {
        "s3proxy.endpoint": f"http://127.0.0.1:{store.port}", "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": ACCESS_KEY, "s3proxy.credential": SECRET_KEY, "s3proxy.ignore-unknown-headers": "true",
        "jclouds.provider": "transient-nio2", "jclouds.identity": "unused", "jclouds.credential": "unused",
    }  # fmt: skip
    properties = folder / "s3proxy.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = find_jdk(21, os.environ, None).home / "bin" / "java"
    console = folder / "s3proxy.log"
    command = [str(java), "-Xmx192m", "-XX:TieredStopAtLevel=1", "-jar", str(program), "--properties", str(properties)]
    pid = server_process.start_process(
        command, folder=folder, environment={"HOME": str(folder)}, console=console, account=None
    )
    started = server_process.process_identity(pid)
    try:
        _wait(store, pid, console)
        store.filesystem.call_s3("create_bucket", Bucket=BUCKET)
        yield store
    finally:
        if started is not None:
            server_process.stop_process(pid, started, grace=10.0)


def _wait(store: ObjectStore, pid: int, console: Path) -> None:
    """Wait until the server listens."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and server_process.process_exit_code(pid) is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", store.port), timeout=5):
            return
        time.sleep(0.1)
    raise AssertionError(f"the server did not start:\n{console.read_text()[-3000:]}")
