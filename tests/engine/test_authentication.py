"""TLS, users and missing rights, against a real server that has them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.errors import AccessDenied, EngineUnreachable
from tests.engine.secured import PASSWORD, Secured
from tests.raised import raises_as_recorded

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def settings(
    server: Secured, username: str | None = "elastic", password: str | None = PASSWORD, **more: Any
) -> EngineSettings:
    given: dict[str, Any] = {"url": server.url, "ca_certs": server.ca_certs, "username": username}
    return EngineSettings(**(given | {"password": None if password is None else SecretStr(password)} | more))


def test_correct_password_authenticates(secured_es9: Secured) -> None:
    with closing(connect(settings(secured_es9))) as engine:
        assert engine.info.version >= (9, 0, 0)
        assert engine.get_index("docs") is None
    url = f"https://elastic:{PASSWORD}@localhost:{secured_es9.port}"
    with closing(connect(settings(secured_es9, None, None, url=url))) as engine:
        assert engine.get_index("docs") is None
        assert PASSWORD not in engine.info.url


@pytest.mark.parametrize(
    "wrong",
    [{"password": "wrong-battery"}, {"username": None, "password": None},
     {"username": None, "password": None, "api_key": SecretStr("bm90OmFrZXk=")}],
    ids=["password", "none", "api-key"],
)  # fmt: skip
def test_wrong_or_missing_credentials_raise_access_denied(secured_es9: Secured, wrong: dict[str, Any]) -> None:
    with raises_as_recorded(AccessDenied) as caught:
        connect(settings(secured_es9, **wrong))
    assert "wrong-battery" not in str(caught.value)


def test_missing_privileges_are_named(secured_es9: Secured) -> None:
    with closing(connect(settings(secured_es9, "anna"))) as anna:
        anna.create_index("mine-signed-in", {})
        assert anna.count("mine-signed-in") == 0
        with raises_as_recorded(AccessDenied):
            anna.create_index("theirs", {})
        with raises_as_recorded(AccessDenied):
            anna.bulk("mine-signed-in", b'{"index":{"_id":"1"}}\n{}\n')


def test_self_signed_certificate_is_rejected(secured_es9: Secured) -> None:
    with raises_as_recorded(EngineUnreachable):
        connect(settings(secured_es9, ca_certs=None))
