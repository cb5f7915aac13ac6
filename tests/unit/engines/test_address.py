"""Addresses and credentials of engines."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch

from es_sbert.config import EngineSettings
from es_sbert.engines.address import join_urls, parse_address, parse_addresses
from es_sbert.engines.connect import open_engine
from es_sbert.errors import EngineUnreachable, UsageError
from tests.raised import raises, raises_as_recorded


@pytest.fixture(autouse=True)
def no_connection_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EngineSettings.model_fields:
        monkeypatch.delenv(f"ES_SBERT_{name.upper()}", raising=False)


def settings(**given: Any) -> EngineSettings:
    return EngineSettings(**given)


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("http://localhost:9200", "http://localhost:9200"),
        ("https://search.example", "https://search.example:443"),
        ("http://search.example/engine/", "http://search.example:80/engine"),
        ("http://[::1]:9200", "http://[::1]:9200"),
        ("http://elastic:secret@localhost:9200", "http://localhost:9200"),
    ],
)
def test_url_is_read_and_printed_without_credentials(url: str, printed: str) -> None:
    assert parse_address(settings(url=url)).url == printed


@pytest.mark.parametrize(
    ("given", "scheme", "value"),
    [
        ({"url": "http://elastic:p%40ss@localhost:9200"}, "Basic", "elastic:p@ss"),
        ({"username": "ü", "password": "p"}, "Basic", "ü:p"),
        ({"api_key": "c2VjcmV0"}, "ApiKey", "secret"),
        ({"token": "c2VjcmV0"}, "Bearer", "secret"),
    ],
)
def test_credentials_become_a_header_that_is_not_shown(given: dict[str, str], scheme: str, value: str) -> None:
    address = parse_address(settings(**given))
    encoded = base64.b64encode(value.encode()).decode()
    assert address.headers == {"authorization": f"{scheme} {encoded}"}
    assert encoded not in repr(address)
    assert parse_address(settings()).headers == {}


def test_two_authentication_methods_are_rejected() -> None:
    for url in ("http://a:b@localhost:9200", "http://a:9200,http://u:p@b:9200"):
        with raises_as_recorded(UsageError):
            parse_addresses(settings(url=url, api_key="k"))


@pytest.mark.parametrize("secret", ["", "hunter2\n", "two words", "schlüssel", "k\x00"])
@pytest.mark.parametrize("kind", ["api_key", "token"])
def test_secrets_invalid_in_headers_are_rejected_without_echo(kind: str, secret: str) -> None:
    with raises_as_recorded(UsageError) as caught:
        parse_address(settings(**{kind: secret}))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://", "http://localhost:port", "http://localhost:99999", "http://[::1", "http://h/?q", "http://a..b:9200",
     "http://two words:9200", "http://h\x00:9200", f"http://{'x' * 64}:9200", "http://elastic:hunter2@localhost:port"],
)  # fmt: skip
def test_invalid_urls_are_rejected_without_echo(url: str) -> None:
    with raises(UsageError, "url") as caught:
        parse_address(settings(url=url))
    assert "hunter2" not in str(caught.value)


def test_certificates_are_verified(tmp_path: Path) -> None:
    context = parse_address(settings(url="https://localhost:9200")).ssl_context
    assert context is not None
    assert context.check_hostname
    assert parse_address(settings()).ssl_context is None


def test_missing_and_broken_ca_files_are_rejected(tmp_path: Path) -> None:
    with raises(UsageError, "ca_certs"):
        parse_address(settings(url="https://localhost:9200", ca_certs=tmp_path / "none.pem"))
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    with raises(UsageError, "ca_certs"):
        parse_address(settings(url="https://localhost:9200", ca_certs=broken))


def test_several_addresses_are_read_in_their_order_and_share_credentials() -> None:
    given = "http://a:9200, http://u:p,w@b:9200/engine ,https://c,http://a:9200/"
    addresses = parse_addresses(settings(url=given))
    assert join_urls(addresses) == "http://a:9200,http://b:9200/engine,https://c:443"
    basic = "Basic " + base64.b64encode(b"u:p,w").decode()
    assert {address.authorization for address in addresses} == {basic}
    assert [address.ssl_context is not None for address in addresses] == [False, False, True]
    with raises(UsageError, "url"):
        parse_address(settings(url=given))


@pytest.mark.parametrize(
    "url",
    [
        "http://a:9200,ftp://u:hunter2@b:9200",
        "http://a:9200,http://u:hunter2@b:port",
        "http://u:hunter2@a:9200,b:9200",
        "http://u:hunter2@a:9200,http://u:hunter3@b:9200",
    ],
)
def test_a_faulty_address_of_several_is_refused_without_its_password(url: str) -> None:
    with raises_as_recorded(UsageError) as caught:
        parse_addresses(settings(url=url))
    assert "hunter" not in str(caught.value)


class Ours(OpenSearch):
    """A subclass is a client, too."""


@pytest.mark.parametrize("hosts", ["http://anna:secret@127.0.0.1:1/engine/", [{"host": "127.0.0.1", "port": 1}]])
def test_address_of_a_client_is_shown_without_credentials(hosts: Any) -> None:
    client = Ours(hosts)
    with raises_as_recorded(EngineUnreachable) as caught:
        open_engine(client)
    assert "secret" not in str(caught.value)
    client.close()


@pytest.mark.parametrize("given", [5, object(), {"hosts": ["localhost"]}])
def test_non_client_is_rejected(given: Any) -> None:
    with raises(UsageError, "engine"):
        open_engine(given)
