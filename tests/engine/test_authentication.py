"""TLS, users and missing rights, against a real server that has them."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.errors import AccessDenied, EngineUnreachable
from tests.e2e.cli_support import cli_in_process
from tests.engine.secured import PASSWORD, Secured

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def secured(secured_es9: Secured) -> Secured:
    return secured_es9


def settings(
    server: Secured, username: str | None = "elastic", password: str | None = PASSWORD, **more: Any
) -> EngineSettings:
    given: dict[str, Any] = {"url": server.url, "ca_certs": server.ca_certs, "username": username}
    return EngineSettings(**(given | {"password": None if password is None else SecretStr(password)} | more))


def test_correct_password_authenticates(secured: Secured) -> None:
    with closing(connect(settings(secured))) as engine:
        assert engine.info.version >= (9, 0, 0)
        assert engine.get_index("docs") is None
    url = f"https://elastic:{PASSWORD}@localhost:{secured.port}"
    with closing(connect(settings(secured, None, None, url=url))) as engine:
        assert engine.get_index("docs") is None
        assert PASSWORD not in engine.info.url


@pytest.mark.parametrize(
    "wrong",
    [{"password": "wrong-battery"}, {"username": None, "password": None},
     {"username": None, "password": None, "api_key": SecretStr("bm90OmFrZXk=")}],
    ids=["password", "none", "api-key"],
)  # fmt: skip
def test_wrong_or_missing_credentials_raise_access_denied(secured: Secured, wrong: dict[str, Any]) -> None:
    with pytest.raises(AccessDenied, match="refused the credentials") as caught:
        connect(settings(secured, **wrong))
    assert "ES_SBERT_PASSWORD" in caught.value.remedy
    assert "wrong-battery" not in str(caught.value)


def test_missing_privileges_are_named(secured: Secured) -> None:
    with closing(connect(settings(secured, "anna"))) as anna:
        anna.create_index("mine-signed-in", {})
        assert anna.count("mine-signed-in") == 0
        with pytest.raises(AccessDenied, match=r"does not allow PUT /theirs.*unauthorized.*anna") as caught:
            anna.create_index("theirs", {})
        assert "the index privilege create_index on theirs" in caught.value.remedy
        with pytest.raises(AccessDenied, match="does not allow POST /mine-signed-in/_bulk") as caught:
            anna.bulk("mine-signed-in", b'{"index":{"_id":"1"}}\n{}\n')


def test_self_signed_certificate_is_rejected(secured: Secured) -> None:
    with pytest.raises(EngineUnreachable, match=r"TLS connection .* self[- ]signed certificate") as caught:
        connect(settings(secured, ca_certs=None))
    assert "`ca_certs`" in caught.value.remedy


def test_certificate_host_mismatch_is_rejected(secured: Secured) -> None:
    with pytest.raises(EngineUnreachable, match="TLS connection") as caught:
        connect(settings(secured, url=f"https://127.0.0.1:{secured.port}"))
    assert "host name in the certificate" in caught.value.remedy


def test_no_secret_in_output_logs_process_list_or_files(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    (tmp_path / "docs.jsonl").write_text('{"text": "a man plays guitar"}\n{"broken\n')
    command = [
        sys.executable, "-m", "es_sbert", "ingest", "--index", "loaded", "--url", secured.url, "--username", "elastic",
        "--password-file", "secret", "--ca-certs", str(secured.ca_certs), "docs.jsonl",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 1, out
    secrets = [PASSWORD, b64encode(f"elastic:{PASSWORD}".encode()).decode()]
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "secret"}
    assert len(written) == 2  # documents and dead letters
    for secret in secrets:
        assert secret not in out
        assert secret.encode() not in shown
        assert all(secret.encode() not in data for data in written.values())


def test_plain_http_to_tls_engine_suggests_https(secured: Secured) -> None:
    with pytest.raises(EngineUnreachable, match="broke") as caught:
        connect(settings(secured, url=f"http://localhost:{secured.port}"))
    assert "https://" in caught.value.remedy


def test_cli_reads_password_from_environment(
    secured: Secured, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = cli_in_process(capfd)
    given = {"USERNAME": "elastic", "PASSWORD": PASSWORD, "URL": secured.url, "CA_CERTS": str(secured.ca_certs)}
    for name, value in given.items():
        monkeypatch.setenv(f"ES_SBERT_{name}", value)
    assert "no index 'docs'" in cli("index", "show", "docs").err
    monkeypatch.setenv("ES_SBERT_PASSWORD", "wrong-battery")
    wrong = cli("index", "show", "docs")
    assert (wrong.code, wrong.out) == (2, "")
    assert "refused the credentials" in wrong.err
    assert "wrong-battery" not in wrong.err
    assert Path(secured.ca_certs).exists()
