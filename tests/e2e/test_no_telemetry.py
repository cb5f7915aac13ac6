"""Commands of a user without `CI`: they write to the folders of es-sbert only, and connect to the engine only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.tiny import write_tiny_bert
from tests.unit.test_telemetry import environment_of_a_user

# The folders that docs/security.md lists, below the home folder.
OWN_FOLDERS = (".cache/es-sbert", ".config/es-sbert", ".local/share/es-sbert")
# Datagrams need no `connect`: their address is in the call that sends them.
_ADDRESS = re.compile(
    r'(?:connect|sendto|sendmsg|sendmmsg)\(.*?sin6?_port=htons\((\d+)\).*?"([0-9a-f.:]+)"', re.IGNORECASE
)


def addresses_of(trace: str) -> set[tuple[str, int]]:
    """The internet addresses, name servers included, that a traced process and its children contacted."""
    return {(host.removeprefix("::ffff:"), int(port)) for port, host in _ADDRESS.findall(trace)}


def can_trace() -> bool:
    """Whether strace is installed and allowed, which it is not in every container."""
    return shutil.which("strace") is not None and (
        subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.fixture
def user(es9_url: str, tmp_path: Path) -> Callable[..., tuple[list[str], set[tuple[str, int]]]]:
    """Run a command as a user with an empty home."""
    if not can_trace():
        pytest.skip("needs strace and the permission to trace a process")
    environment = environment_of_a_user(tmp_path / "home") | {"ES_SBERT_URL": es9_url}
    for name in ("ES_SBERT_CACHE", "ES_SBERT_REGISTRY"):
        environment.pop(name, None)

    def run(*arguments: str) -> tuple[list[str], set[tuple[str, int]]]:
        trace = tmp_path / "trace"
        command = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(trace)]
        command += [sys.executable, "-m", "es_sbert", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        files = (path.relative_to(tmp_path / "home") for path in (tmp_path / "home").rglob("*") if path.is_file())
        return [str(path) for path in files if not str(path).startswith(OWN_FOLDERS)], addresses_of(trace.read_text())

    return run


def test_commands_contact_the_engine_only_and_write_to_own_folders_only(
    user: Callable[..., tuple[list[str], set[tuple[str, int]]]],
    es9_url: str,
    fresh_index: Callable[[str], str],
    tmp_path: Path,
) -> None:
    write_tiny_bert(tmp_path / "tiny")
    (tmp_path / "docs.jsonl").write_text('{"text": "a man plays guitar"}\n{"text": "the cat sleeps"}\n')
    index = fresh_index(es9_url)
    port = urlsplit(es9_url).port

    assert user("encode", "--model", "tiny", "docs.jsonl", "-o", "vectors.npy") == ([], set())
    for command in (
        ("ingest", "--index", index, "--model", "tiny", "docs.jsonl"),
        ("search", "--index", index, "--model", "tiny", "a cat"),
    ):
        files, addresses = user(*command)
        assert files == []
        assert {number for _, number in addresses} == {port}, addresses


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="needs strace and the permission to trace a process")
def test_process_that_stays_looks_up_no_name(tmp_path: Path) -> None:
    """onnxruntime first asks for its collector some seconds after its import, in a thread of its own."""
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(trace), sys.executable]
    code = "import es_sbert.encoder.encoder, time; time.sleep(12)"
    subprocess.run([*command, "-c", code], env=environment_of_a_user(tmp_path / "home"), check=True, timeout=240)
    assert addresses_of(trace.read_text()) == set()
