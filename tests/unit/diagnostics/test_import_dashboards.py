"""The import API of Kibana and OpenSearch Dashboards: what is sent, what comes of it, and every way to be refused."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from es_sbert.config import EngineSettings
from es_sbert.diagnostics.import_dashboards import import_objects, kibana_address
from es_sbert.diagnostics.saved_objects import DashboardProduct, SavedObject, search_objects
from es_sbert.errors import AccessDenied, EngineUnreachable, RequestFailed, UnsupportedEngine, UsageError
from tests.dashboards import import_api
from tests.dashboards.import_api import ImportApi, serving

ENGINE = EngineSettings(_env_file=None)  # type: ignore[call-arg]


def _import(
    url: str,
    product: DashboardProduct,
    objects: list[SavedObject] | None = None,
    *,
    engine: EngineSettings = ENGINE,
    tenant: str | None = None,
) -> None:
    if objects is None:
        objects = _objects(product)
    import_objects(kibana_address(url, engine), product, objects, tenant=tenant)


def _objects(product: DashboardProduct) -> list[SavedObject]:
    return search_objects(product, "es-sbert-searches-*")


@pytest.fixture(params=DashboardProduct)
def api(request: pytest.FixtureRequest) -> ImportApi:
    return ImportApi(request.param)


@pytest.fixture
def url(api: ImportApi) -> Iterator[str]:
    with serving(api) as url:
        yield url


def test_import_creates_objects_and_a_second_one_replaces_them(api: ImportApi, url: str) -> None:
    for _ in range(2):
        _import(url, api.product)
        [stored] = api.objects.values()
        assert set(stored) == {(saved.type, saved.id) for saved in _objects(api.product)}
    assert api.requests[0] == "GET /api/status"
    assert api.requests[-1] == "POST /api/saved_objects/_import?overwrite=true"


@pytest.mark.parametrize("lists_fields", [True, False])
def test_views_of_opensearch_dashboards_have_the_fields_that_it_lists(lists_fields: bool) -> None:
    api = ImportApi(DashboardProduct.DASHBOARDS, lists_fields=lists_fields)
    with serving(api) as url:
        _import(url, api.product)
    [view] = [line for stored in api.objects.values() for key, line in stored.items() if key[0] == "index-pattern"]
    fields = orjson.loads(view["attributes"].get("fields", "[]"))
    assert [field["name"] for field in fields] == (["es-sbert-searches-*", "_id"] if lists_fields else [])


def test_import_into_spaces_and_tenants() -> None:
    kibana, other = ImportApi(DashboardProduct.KIBANA), ImportApi(DashboardProduct.DASHBOARDS)
    with serving(kibana) as url:
        _import(f"{url}/s/search", DashboardProduct.KIBANA)
        assert list(kibana.objects) == ["search"]
        with pytest.raises(RequestFailed, match="404") as caught:
            _import(f"{url}/s/none", DashboardProduct.KIBANA)
        assert "/s/SPACE" in caught.value.remedy
        with pytest.raises(UsageError, match="no tenants"):
            _import(url, DashboardProduct.KIBANA, tenant="global")
    with serving(other) as url:
        _import(url, DashboardProduct.DASHBOARDS, tenant="the team")
        assert list(other.objects) == ["the team"]


def test_import_under_a_base_path(api: ImportApi) -> None:
    api.base_path = "/kibana"
    with serving(api) as url:
        _import(url, api.product)
        with pytest.raises(RequestFailed, match="404"):
            _import(url.removesuffix("/kibana"), api.product)


def test_credentials_of_kibana_come_before_those_of_the_engine(api: ImportApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.password = "secret"
    engine = EngineSettings(username="user", password="secret")  # type: ignore[arg-type]
    with serving(api) as url:
        _import(url, api.product, engine=engine)
        monkeypatch.setenv("ES_SBERT_KIBANA_USERNAME", "user")
        monkeypatch.setenv("ES_SBERT_KIBANA_PASSWORD", "wrong")
        with pytest.raises(AccessDenied, match="401") as caught:
            _import(url, api.product, engine=engine)
        assert "ES_SBERT_KIBANA_PASSWORD" in caught.value.remedy
        assert "wrong" not in str(caught.value)
        monkeypatch.setenv("ES_SBERT_KIBANA_PASSWORD", "secret")
        _import(url, api.product)
        api.may_import = False
        with pytest.raises(AccessDenied, match="Unable to bulk_create") as caught:
            _import(url, api.product)
        assert "Give the user" in caught.value.remedy


def test_payload_too_large_error_has_remedy(api: ImportApi, url: str) -> None:
    api.largest = 100
    with pytest.raises(RequestFailed, match="413") as caught:
        _import(url, api.product)
    assert "maxImportPayloadBytes" in caught.value.remedy


def test_wrong_dashboard_product_is_rejected_before_import(api: ImportApi, url: str) -> None:
    [other] = set(DashboardProduct) - {api.product}
    with pytest.raises(UnsupportedEngine, match=f"is {api.product.label}"):
        _import(url, other)
    assert api.requests == ["GET /api/status"]


class _Other(BaseHTTPRequestHandler):
    """Some other web server."""

    status = 200

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("location", "/login?next=%2F")
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (200, UnsupportedEngine, "neither Kibana nor"),
        (302, AccessDenied, "redirects GET /api/status to /login"),
        (502, EngineUnreachable, "proxy"),
        (403, AccessDenied, "hello"),
    ],
)
def test_non_kibana_server_is_rejected(
    status: int, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Other, "status", status)
    monkeypatch.setattr(import_api, "_Handler", _Other)
    with serving(ImportApi(DashboardProduct.KIBANA)) as url, pytest.raises(kind, match=words):
        _import(url, DashboardProduct.KIBANA)


def test_unreachable_kibana_names_the_option(silent_port: int) -> None:
    with pytest.raises(EngineUnreachable, match="nothing listens.*\n.*`kibana`"):
        _import(f"http://127.0.0.1:{silent_port}", DashboardProduct.KIBANA)


def test_import_over_tls_requires_the_ca(api: ImportApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(api, context) as url:
        with pytest.raises(EngineUnreachable, match="TLS connection"):
            _import(url, api.product)
        monkeypatch.setenv("ES_SBERT_KIBANA_CA_CERTS", str(tmp_path / "ca.pem"))
        _import(url, api.product)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": ""}, "non-empty|too short"),
        ({"attributes": {"title": "x", "new": 1}}, "“x”: .*(is not valid|unexpected)"),
    ],
)
def test_rejected_objects_are_named(change: dict[str, Any], words: str, api: ImportApi, url: str) -> None:
    with pytest.raises(RequestFailed, match=words):
        _import(url, api.product, [replace(_objects(api.product)[-1], **change)])
    assert not any(api.objects.values())


def test_missing_references_are_reported(api: ImportApi, url: str) -> None:
    objects = _objects(api.product)
    with pytest.raises(RequestFailed, match=f"needs index-pattern {objects[0].id}"):
        _import(url, api.product, objects[1:])
