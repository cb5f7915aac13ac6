"""The gateway's process."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from es_sbert.gateway.server import freeze_objects


def test_freeze_objects_excludes_existing_objects_from_gc() -> None:
    before = gc.get_freeze_count()
    try:
        freeze_objects()
        assert gc.get_freeze_count() > before
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_tune_interpreter_shortens_switch_interval_and_eases_gc() -> None:
    """Runs in a subprocess, because it changes settings of the interpreter."""
    code = (
        "import gc, sys; from es_sbert.gateway.server import tune_interpreter; before = sys.getswitchinterval(); "
        "tune_interpreter(); print(sys.getswitchinterval() < before / 2, gc.get_threshold()[2] > 100)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "True True\n"


def test_tls_key_with_a_password_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    """Runs in a subprocess without a terminal, where OpenSSL would read the password from stdin."""
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*form, locked))
    code = (
        "from es_sbert.config import EngineSettings; from es_sbert.gateway.server import create_server; "
        "from es_sbert.gateway.settings import GatewaySettings, ListenSettings; "
        "listen = ListenSettings(certificate='cert.pem', key='key.pem'); "
        "create_server(GatewaySettings(upstream=EngineSettings(url='http://127.0.0.1:9'), listen=listen))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], input="secret\n", cwd=tmp_path, capture_output=True, text=True,
        start_new_session=True, check=False, timeout=120,
    )  # fmt: skip
    assert "not have a password" in told.stderr
    assert "PEM pass phrase" not in told.stderr
