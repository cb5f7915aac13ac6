"""The import API of Kibana and OpenSearch Dashboards: what is sent, what comes of it, and every way to be refused."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from es_sbert.config import EngineSettings
from es_sbert.diagnostics.import_dashboards import import_objects, kibana_address
from es_sbert.diagnostics.saved_objects import DashboardProduct, SavedObject, search_objects
from es_sbert.errors import AccessDenied, EngineUnreachable, EsSbertError, RequestFailed, UnsupportedEngine, UsageError
from tests.dashboards.import_api import ImportApi, serving
from tests.raised import raises, raises_as_recorded
from tests.unit.engines.web_server import served

ENGINE = EngineSettings(_env_file=None)  # type: ignore[call-arg]


def _import(url: str, product: DashboardProduct, objects: Any = None, engine: Any = ENGINE, **more: Any) -> None:
    import_objects(kibana_address(url, engine), product, objects or _objects(product), **more)


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


def test_a_data_view_of_the_same_title_is_used_and_replaced_on_request(api: ImportApi, url: str) -> None:
    view, panel, *_ = _objects(api.product)
    theirs = replace(view, id="theirs", attributes=view.attributes | {"fieldFormatMap": "{}"})
    other = replace(view, id="other", attributes=view.attributes | {"timeFieldName": "created"})
    _import(url, api.product, [other, theirs])
    address = kibana_address(url, ENGINE)
    [note] = import_objects(address, api.product, _objects(api.product))
    assert "data view es-sbert-searches-* exists" in note
    [stored] = api.objects.values()
    assert ("index-pattern", view.id) not in stored
    assert stored["index-pattern", "theirs"]["attributes"]["fieldFormatMap"] == "{}"
    assert stored["visualization", panel.id]["references"][0]["id"] == "theirs"
    assert not import_objects(address, api.product, _objects(api.product), replace_view=True)
    assert stored["index-pattern", "theirs"]["attributes"]["fieldFormatMap"] == view.attributes["fieldFormatMap"]
    # A view that was imported before is replaced, although another one exists.
    removed = stored.pop(("index-pattern", "theirs"))
    _import(url, api.product)
    stored["index-pattern", "theirs"] = removed
    assert not import_objects(address, api.product, _objects(api.product))
    assert stored["visualization", panel.id]["references"][0]["id"] == view.id


def test_import_into_spaces_and_tenants() -> None:
    kibana, other = ImportApi(DashboardProduct.KIBANA), ImportApi(DashboardProduct.DASHBOARDS)
    with serving(kibana) as url:
        _import(f"{url}/s/search", DashboardProduct.KIBANA)
        assert list(kibana.objects) == ["search"]
        with raises_as_recorded(RequestFailed):
            _import(f"{url}/s/none", DashboardProduct.KIBANA)
        with raises(UsageError, "tenant"):
            _import(url, DashboardProduct.KIBANA, tenant="global")
    with serving(other) as url:
        _import(url, DashboardProduct.DASHBOARDS, tenant="the team")
        assert list(other.objects) == ["the team"]


def test_credentials_of_kibana_come_before_those_of_the_engine(api: ImportApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.password = "secret"
    engine = EngineSettings(username="user", password="secret")  # type: ignore[arg-type]
    with serving(api) as url:
        _import(url, api.product, engine=engine)
        monkeypatch.setenv("ES_SBERT_KIBANA_USERNAME", "user")
        monkeypatch.setenv("ES_SBERT_KIBANA_PASSWORD", "wrong")
        with raises_as_recorded(AccessDenied) as caught:
            _import(url, api.product, engine=engine)
        assert "wrong" not in str(caught.value)
        monkeypatch.setenv("ES_SBERT_KIBANA_PASSWORD", "secret")
        _import(url, api.product)
        api.may_import = False
        with raises_as_recorded(AccessDenied):
            _import(url, api.product)


def test_wrong_dashboard_product_is_rejected_before_import(api: ImportApi, url: str) -> None:
    [other] = set(DashboardProduct) - {api.product}
    with raises_as_recorded(UnsupportedEngine):
        _import(url, other)
    assert api.requests == ["GET /api/status"]


def test_import_over_tls_requires_the_ca(api: ImportApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(api, context) as url:
        with pytest.raises(EngineUnreachable):
            _import(url, api.product)
        monkeypatch.setenv("ES_SBERT_KIBANA_CA_CERTS", str(tmp_path / "ca.pem"))
        _import(url, api.product)


@pytest.mark.parametrize(
    ("method", "answer", "kind"),
    [
        ("status", (302, {}), AccessDenied),
        ("status", (502, {}), EngineUnreachable),
        ("fields", (500, {"message": "out of memory"}), RequestFailed),
        ("import_file", (200, ["ok"]), UnsupportedEngine),
        ("import_file", (200, {"success": False, "errors": [{"id": f"o{n}"} for n in range(7)]}), RequestFailed),
    ],
)  # fmt: skip
def test_an_import_that_failed_is_an_error(
    method: str, answer: Any, kind: type[EsSbertError], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = ImportApi(DashboardProduct.DASHBOARDS)
    monkeypatch.setattr(api, method, lambda *asked: answer)
    with serving(api) as url, raises_as_recorded(kind):
        _import(url, api.product)


def test_other_servers_get_no_objects() -> None:
    with served(None) as other:
        with raises_as_recorded(UnsupportedEngine):
            _import(other.url, DashboardProduct.KIBANA)
        other.status, other.body = 401, b"<p>Sign in"
        with raises_as_recorded(AccessDenied):
            _import(other.url, DashboardProduct.KIBANA)
    assert other.requests == ["/api/status"] * 2


@pytest.mark.parametrize("change", [{"id": ""}, {"attributes": {"title": "x", "new": 1}}])
def test_rejected_objects_are_named(change: dict[str, Any], api: ImportApi, url: str) -> None:
    with raises_as_recorded(RequestFailed):
        _import(url, api.product, [replace(_objects(api.product)[-1], **change)])
    assert not any(api.objects.values())
