"""Installing by the import API: what is sent, what comes of it, and every way to be refused."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import trustme

from es_sbert.config import EngineSettings
from es_sbert.dashboards import saved_objects
from es_sbert.dashboards.build_dashboards import search_dashboard_objects
from es_sbert.dashboards.import_dashboards import (
    DashboardServer,
    ImportResult,
    KibanaSettings,
    kibana_address,
)
from es_sbert.dashboards.saved_objects import DashboardProduct, SavedObject
from es_sbert.engines.address import Address
from es_sbert.errors import AccessDenied, EngineUnreachable, RequestFailed, UnsupportedEngine, UsageError
from tests.dashboards import import_api
from tests.dashboards.import_api import ImportApi, serving

ENGINE = EngineSettings(_env_file=None)  # type: ignore[call-arg]


def _address(url: str, engine: EngineSettings = ENGINE, **given: Any) -> Address:
    return kibana_address(KibanaSettings.with_engine_credentials(engine, url=url, **given))


def _install(
    address: Address | str,
    product: DashboardProduct,
    objects: list[SavedObject],
    *,
    space: str | None = None,
    tenant: str | None = None,
    default_view: SavedObject | None = None,
) -> ImportResult:
    place = DashboardServer(_address(address) if isinstance(address, str) else address, product, space, tenant)
    return place.import_objects(objects, default_view=default_view)


def _objects(product: DashboardProduct) -> list[SavedObject]:
    return search_dashboard_objects(product, "es-sbert-searches-*")


@pytest.fixture(params=DashboardProduct)
def api(request: pytest.FixtureRequest) -> ImportApi:
    return ImportApi(request.param)


@pytest.fixture
def url(api: ImportApi) -> Iterator[str]:
    with serving(api) as url:
        yield url


def test_import_creates_objects_and_reinstall_replaces_them(api: ImportApi, url: str) -> None:
    objects = _objects(api.product)
    first = _install(url, api.product, objects)
    assert first.objects == len(objects)
    [board] = [saved for saved in objects if saved.type == "dashboard"]
    assert first.dashboards == {"Searches": f"{url}/app/dashboards#/view/{board.id}"}
    assert _install(url, api.product, objects) == first
    [stored] = api.objects.values()
    assert set(stored) == {(saved.type, saved.id) for saved in objects}
    assert api.requests[:2] == ["GET /api/status", "POST /api/saved_objects/_import?overwrite=true"]


def test_missing_references_are_reported(api: ImportApi, url: str) -> None:
    objects = _objects(api.product)
    with pytest.raises(RequestFailed, match=f"needs index-pattern {objects[0].id}"):
        _install(url, api.product, objects[1:])


def test_import_into_spaces_and_tenants() -> None:
    kibana, other = ImportApi(DashboardProduct.KIBANA), ImportApi(DashboardProduct.DASHBOARDS)
    with serving(kibana) as url:
        done = _install(url, DashboardProduct.KIBANA, _objects(DashboardProduct.KIBANA), space="search")
        assert list(kibana.objects) == ["search"]
        assert "/s/search/app/dashboards#/view/" in done.dashboards["Searches"]
        with pytest.raises(RequestFailed, match="404") as caught:
            _install(url, DashboardProduct.KIBANA, _objects(DashboardProduct.KIBANA), space="no such/space")
        assert "`space`" in caught.value.remedy
        with pytest.raises(UsageError, match="no tenants"):
            _install(url, DashboardProduct.KIBANA, [], tenant="global")
    with serving(other) as url:
        done = _install(url, DashboardProduct.DASHBOARDS, _objects(DashboardProduct.DASHBOARDS), tenant="the team")
        assert list(other.objects) == ["the team"]
        assert "/app/dashboards?security_tenant=the%20team#/view/" in done.dashboards["Searches"]
        with pytest.raises(UsageError, match="no spaces"):
            _install(url, DashboardProduct.DASHBOARDS, [], space="search")


def test_import_under_a_base_path(api: ImportApi) -> None:
    api.base_path = "/kibana"
    with serving(api) as url:
        done = _install(url, api.product, _objects(api.product))
        assert done.dashboards["Searches"].startswith(f"{url}/app/")
        with pytest.raises(RequestFailed, match="404"):
            _install(url.removesuffix("/kibana"), api.product, _objects(api.product))


def test_wrong_credentials_raise_access_denied(api: ImportApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.password = "secret"
    with serving(api) as url:
        for wrong in ({}, {"username": "user", "password": "wrong"}):
            with pytest.raises(AccessDenied, match="401") as caught:
                _install(_address(url, **wrong), api.product, _objects(api.product))
            assert "ES_SBERT_KIBANA_PASSWORD" in caught.value.remedy
            assert "wrong" not in str(caught.value)
        monkeypatch.setenv("ES_SBERT_KIBANA_PASSWORD", "secret")
        _install(_address(url, username="user"), api.product, _objects(api.product))
        monkeypatch.delenv("ES_SBERT_KIBANA_PASSWORD")
        # The engine's own, where there are no others.
        engine = EngineSettings(username="user", password="secret")  # type: ignore[arg-type]
        address = _address(url, engine)
        _install(address, api.product, _objects(api.product))
        api.may_import = False
        with pytest.raises(AccessDenied, match="Unable to bulk_create") as caught:
            _install(address, api.product, _objects(api.product))
        assert "Give the user" in caught.value.remedy


def test_payload_too_large_error_has_remedy(api: ImportApi, url: str) -> None:
    api.largest = 100
    with pytest.raises(RequestFailed, match="413.*maximum allowed: 100") as caught:
        _install(url, api.product, _objects(api.product))
    assert "maxImportPayloadBytes" in caught.value.remedy


def test_wrong_dashboard_product_is_rejected_before_import(api: ImportApi, url: str) -> None:
    [other] = set(DashboardProduct) - {api.product}
    with pytest.raises(UnsupportedEngine, match=f"is {api.product.label}"):
        _install(url, other, _objects(other))
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
        (404, UnsupportedEngine, "neither Kibana nor"),
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
        _install(url, DashboardProduct.KIBANA, _objects(DashboardProduct.KIBANA))


def test_unreachable_kibana_names_the_url_option(silent_port: int) -> None:
    with pytest.raises(EngineUnreachable, match="nothing listens.*\n.*`kibana_url`"):
        _install(f"http://127.0.0.1:{silent_port}", DashboardProduct.KIBANA, [])


def test_import_over_tls_requires_the_ca(api: ImportApi, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(api, context) as url:
        done = _install(_address(url, ca_certs=tmp_path / "ca.pem"), api.product, _objects(api.product))
        assert done.objects > 0
        with pytest.raises(EngineUnreachable, match="TLS connection"):
            _install(url, api.product, _objects(api.product))
    with pytest.raises(UsageError, match="fingerprint"):
        _address(url, fingerprint="00" * 32)


def _view(objects: list[SavedObject]) -> SavedObject:
    return next(saved for saved in objects if saved.type == "index-pattern")


def test_default_data_view_is_set_if_there_is_none(api: ImportApi, url: str) -> None:
    objects = _objects(api.product)
    view = _view(objects)
    done = _install(url, api.product, objects, default_view=view)
    assert api.default_view == view.id
    assert done.notes == (f"“{view.title}” is now the default data view",)
    api.default_view = "another"
    assert _install(url, api.product, objects, default_view=view).notes == ()
    assert api.default_view == "another"


def test_objects_whose_ids_are_taken_in_another_space_have_new_ids(api: ImportApi, url: str) -> None:
    api.ids_are_taken = True
    objects = _objects(api.product)
    done = _install(url, api.product, objects, default_view=_view(objects))
    [stored] = api.objects.values()
    assert ("dashboard", done.dashboards["Searches"].rpartition("/")[2]) in stored
    assert api.default_view != _view(objects).id
    assert ("index-pattern", api.default_view) in stored


def test_default_data_view_that_cannot_be_set_is_a_note(api: ImportApi, url: str) -> None:
    api.may_set_default = False
    objects = _objects(api.product)
    done = _install(url, api.product, objects, default_view=_view(objects))
    assert done.objects == len(objects)
    [note] = done.notes
    assert "403: Unable to update config" in note
    assert "Stack Management" in note


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "canvas"}, "unsupported_type"),
        ({"id": ""}, "non-empty|too short"),
        ({"attributes": {"title": "x", "new": 1}}, "is not valid|unexpected"),
    ],
)
def test_rejected_objects_are_named(
    change: dict[str, Any], words: str, api: ImportApi, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = saved_objects._KIBANA_TYPE_VERSIONS, saved_objects._DASHBOARDS_TYPE_VERSIONS
    for known in versions:
        monkeypatch.setitem(known, "canvas", "8.0.0")
    with pytest.raises(RequestFailed, match=words):
        _install(url, api.product, [replace(_objects(api.product)[0], **change)])
    assert not any(api.objects.values())
