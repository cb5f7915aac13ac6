"""What the page may ask of the gateway beside the engine's own API, and what the engine says of who asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from es_sbert.config import EngineSettings
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.mapping import VectorFieldMeta, index_body
from tests.engine.secured import PASSWORD, Secured
from tests.gateway import patient, serving
from tests.gateway.ui.conftest import OpenPage
from tests.gateway.ui.search_page import SearchPage


def test_only_uncompressed_json_is_accepted(gateway: str) -> None:
    # Other pages may post text without being asked.
    answer = patient.post(f"{gateway}/ui/api/body", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 400
    assert "not uncompressed JSON" in answer.json()["error"]["reason"]


@pytest.mark.parametrize("path", ["facets?index=nowhere", "facets?index=..%2F_nodes"])
def test_missing_index_gets_engine_error(gateway: str, path: str) -> None:
    answer = patient.get(f"{gateway}/ui/api/{path}")
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["type"] in ("index_not_found_exception", "invalid_index_name_exception")


def test_other_ui_paths_and_methods_pass_through(gateway: str) -> None:
    # An index may be called `ui`, or begin so.
    for answer in (
        patient.get(f"{gateway}/ui/_search"),
        patient.get(f"{gateway}/ui-logs/_search"),
        patient.post(f"{gateway}/ui/_search", json={}),
    ):
        assert answer.json()["error"]["type"] == "index_not_found_exception"


@pytest.fixture(scope="module")
def secured_gateway(secured_es9: Secured) -> Iterator[str]:
    with serving.gateway(EngineSettings(url=secured_es9.url, ca_certs=secured_es9.ca_certs)) as url:
        yield url


@pytest.fixture
def empty(secured_es9: Secured) -> Iterator[Secured]:
    gone = "/mine,not-annas?ignore_unavailable=true"
    secured_es9.ask("DELETE", gone)
    yield secured_es9
    secured_es9.ask("DELETE", gone)


def test_signed_in_user_sees_only_permitted_indices(open_page: OpenPage, secured_gateway: str, empty: Secured) -> None:
    page = open_page(secured_gateway)
    page.open()
    expect(page.page.get_by_role("heading", name="Sign in to the engine")).to_be_visible()
    _sign_in(page, "anna", "wrong")
    expect(page.page.locator("#sign-in-reason")).to_contain_text("rejected this user name and password")
    expect(page.status).to_contain_text("rejected this user name and password")
    _sign_in(page, "anna", PASSWORD)
    expect(page.page.get_by_role("alert")).to_contain_text("No index that you can read has vectors yet")
    expect(page.page.get_by_role("alert")).to_contain_text("es-sbert ingest")

    meta = VectorFieldMeta(fingerprint="f" * 32, model="m", dimensions=3, index_type="hnsw", text="{text}")
    for name in ("mine", "not-annas"):
        empty.ask("PUT", f"/{name}", index_body(EngineType.ELASTICSEARCH, "embedding", meta))
    options = page.page.get_by_role("combobox", name="Index").get_by_role("option")
    for user, seen in (("anna", ["mine"]), ("elastic", ["mine", "not-annas"])):
        page.page.get_by_role("button", name="Sign out").click()
        _sign_in(page, user, PASSWORD)
        expect(options.filter(has_text=re.compile("^(mine|not-annas)$"))).to_have_text(seen)
    page.page.reload()
    expect(page.page.get_by_role("heading", name="Sign in to the engine")).to_be_visible()  # nothing was kept
    assert page.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.refused = True

    asked: dict[str, Any] = {"index": "not-annas", "body": {}}
    refused = patient.post(f"{secured_gateway}/ui/api/body", json=asked, auth=("anna", PASSWORD))
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "security_exception")


def _sign_in(page: SearchPage, name: str, password: str) -> None:
    page.page.get_by_label("User name").fill(name)
    page.page.get_by_label("Password", exact=True).fill(password)
    page.page.get_by_role("button", name="Sign in").click()
