"""Installing saved objects by the import API of Kibana and OpenSearch Dashboards (extra `serve`: httpx)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import httpx

from es_sbert.dashboards.refusals import failed_import, not_imported
from es_sbert.dashboards.saved_objects import Product, SavedObject, ndjson
from es_sbert.engines.address import Address
from es_sbert.engines.failures import unreachable
from es_sbert.engines.protocol import Json
from es_sbert.errors import AccessDenied, EngineUnreachable, UnsupportedEngine, UsageError

# Every answer carries the server's name under one of these, also one that refuses.
_NAME_HEADERS = {Product.KIBANA: "kbn-name", Product.DASHBOARDS: "osd-name"}
# A request that changes something must carry this one, which a page of another origin cannot set.
_XSRF_HEADERS = {Product.KIBANA: "kbn-xsrf", Product.DASHBOARDS: "osd-xsrf"}
_TENANT_HEADER = "securitytenant"
_FILE_NAME = "es-sbert.ndjson"  # both refuse a file of another ending
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class IfThere(StrEnum):
    """What becomes of objects that are there already."""

    REPLACE = "replace"
    FAIL = "fail"
    COPY = "copy"


@dataclass(frozen=True)
class Place:
    """Where the objects go.

    Attributes:
        address: The server.
        space: Kibana's space; None is the default one.
        tenant: Tenant of the security plugin of OpenSearch Dashboards; None is the user's own default.
    """

    address: Address
    space: str | None = None
    tenant: str | None = None

    @property
    def url(self) -> str:
        """Address of the space, without credentials."""
        return self.address.url + (f"/s/{quote(self.space, safe='')}" if self.space else "")


@dataclass(frozen=True)
class Installed:
    """What has been imported.

    Attributes:
        objects: How many.
        dashboards: Title → address to open.
    """

    objects: int
    dashboards: dict[str, str]


def install(place: Place, product: Product, objects: Sequence[SavedObject],
            if_there: IfThere = IfThere.REPLACE) -> Installed:  # fmt: skip
    """Import objects.

    Args:
        place: Where to.
        product: What the objects were made for; the server must be that.
        objects: Complete: what they need is among them.
        if_there: What to do with objects of the same ids.

    Raises:
        UsageError: a space or a tenant where the product has none.
        EngineUnreachable: no answer.
        AccessDenied: 401, 403 or a page to sign in.
        UnsupportedEngine: the server is something else.
        RequestFailed: the import was refused, or some objects were.
    """
    _check_place(place, product)
    headers = place.address.headers | {_XSRF_HEADERS[product]: "true"}
    if place.tenant is not None:
        headers[_TENANT_HEADER] = place.tenant
    verify = place.address.ssl_context if place.address.ssl_context is not None else True
    with httpx.Client(headers=headers, verify=verify, timeout=place.address.timeout, trust_env=False) as client:
        _check_product(client, place, product)
        params = {IfThere.REPLACE: {"overwrite": "true"}, IfThere.COPY: {"createNewCopies": "true"}}.get(if_there, {})
        file = (_FILE_NAME, ndjson(objects, product), "application/ndjson")
        answer = _send(client, place, "POST", "/api/saved_objects/_import", params=params, files={"file": file})
    body = _json(answer)
    if answer.status_code != 200:
        raise failed_import(answer.status_code, body, product=product, url=place.url)
    if not isinstance(body, dict) or "success" not in body:
        raise UnsupportedEngine(
            f"{place.url} gave no answer of an import",
            f"Check that {product.label} itself answers there, and no proxy.",
        )
    if not body["success"]:
        raise not_imported(body, objects, product=product, url=place.url)
    return Installed(int(body["successCount"]), _dashboards(place, objects, body))


def _check_place(place: Place, product: Product) -> None:
    if place.space is not None and product is not Product.KIBANA:
        raise UsageError("OpenSearch Dashboards has no spaces", "Leave out --space; its tenants are --tenant.")
    if place.tenant is not None and product is not Product.DASHBOARDS:
        raise UsageError("Kibana has no tenants", "Leave out --tenant; its spaces are --space.")


def _check_product(client: httpx.Client, place: Place, product: Product) -> None:
    """Make sure that the right server answers before anything is sent to it."""
    answer = _send(client, place, "GET", "/api/status")
    names = {product for product, header in _NAME_HEADERS.items() if header in answer.headers}
    if not names and answer.status_code not in (401, 403):
        raise UnsupportedEngine(
            f"what answers at {place.address.url} is neither Kibana nor OpenSearch Dashboards",
            "Check host, port (5601) and base path of --kibana-url; the engine itself (9200) takes no dashboards.",
        )
    if names and product not in names:
        [found] = names
        raise UnsupportedEngine(
            f"{place.address.url} is {found.label}, and the index is on an engine that goes with {product.label}",
            "Give the --url and the --kibana-url of one installation.",
        )
    if answer.status_code in (401, 403):
        raise failed_import(answer.status_code, _json(answer), product=product, url=place.url)


def _send(client: httpx.Client, place: Place, method: str, path: str, **options: Any) -> httpx.Response:
    try:
        answer = client.request(method, place.url + path, **options)
    except httpx.HTTPError as error:
        nobody = "Start Kibana or OpenSearch Dashboards, or give its address: --kibana-url (both use 5601)."
        raise unreachable(place.address.url, error, place.address.timeout, nobody=nobody) from error
    if answer.status_code in _REDIRECTS:
        raise AccessDenied(
            f"{place.url} sends {method} {path} on to {answer.headers.get('location', 'another page')}",
            "Give credentials, and the address with its base path (server.basePath), as a browser shows it after "
            "signing in.",
        )
    if answer.status_code in (502, 504):
        raise EngineUnreachable(
            f"a proxy at {place.address.url} cannot reach the server behind it ({answer.status_code})",
            "Check that Kibana or OpenSearch Dashboards runs.",
        )
    return answer


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text[:1000]


def _dashboards(place: Place, objects: Sequence[SavedObject], body: Json) -> dict[str, str]:
    moved = {result["id"]: result["destinationId"] for result in body.get("successResults", [])
             if "destinationId" in result}  # fmt: skip
    # Without it the dashboard is looked for in the tenant that the user was in last.
    tenant = "" if place.tenant is None else f"?security_tenant={quote(place.tenant, safe='')}"
    return {
        saved.title: f"{place.url}/app/dashboards{tenant}#/view/{moved.get(saved.id, saved.id)}"
        for saved in objects
        if saved.type == "dashboard"
    }
