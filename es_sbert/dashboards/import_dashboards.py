"""Import saved objects into Kibana or OpenSearch Dashboards through their HTTP API (extra `serve`: httpx)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import httpx
from pydantic_settings import SettingsConfigDict

from es_sbert.config import EngineSettings
from es_sbert.dashboards.saved_objects import DashboardProduct, SavedObject, to_ndjson
from es_sbert.engines.address import Address, parse_address
from es_sbert.engines.error_mapping import connection_error
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, EngineUnreachable, EsSbertError, RequestFailed, UnsupportedEngine, UsageError
from es_sbert.messages import pluralize

DEFAULT_KIBANA_URL = "http://localhost:5601"
_CREDENTIAL_SETTINGS = ("username", "password", "api_key", "token")


class KibanaSettings(EngineSettings):
    """Settings like those of an engine, by default from `ES_SBERT_KIBANA_URL`, `ES_SBERT_KIBANA_API_KEY`, ….

    Both products check credentials with their engine, so the engine's credentials are used if no others are given.
    """

    model_config = SettingsConfigDict(
        env_prefix="ES_SBERT_KIBANA_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    url: str = DEFAULT_KIBANA_URL

    @classmethod
    def with_engine_credentials(cls, engine: EngineSettings, **given: object) -> KibanaSettings:
        """Create the settings, with the engine's credentials if they have none of their own.

        Raises:
            UsageError: the credentials contradict each other, or the address has no scheme.
        """
        own = cls(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        if any(getattr(own, name) is not None for name in _CREDENTIAL_SETTINGS):
            return own
        lent = {name: getattr(engine, name) for name in _CREDENTIAL_SETTINGS}
        return own.model_copy(update={"timeout": engine.timeout, **lent})


def kibana_address(settings: KibanaSettings) -> Address:
    """Build the address of Kibana or OpenSearch Dashboards, with credentials and TLS settings.

    Raises:
        UsageError: the URL is missing, there are two kinds of credentials, the CA file cannot be read, or a certificate
            fingerprint is set.
    """
    if settings.fingerprint is not None:
        reason = "a certificate fingerprint is not supported for Kibana or OpenSearch Dashboards"
        raise UsageError(reason, "Set `kibana_ca_certs` to the file of the CA that signed its certificate.")
    return parse_address(settings)


_MAX_ERRORS_SHOWN = 5
_STATUS_REMEDIES = {
    400: "The message above comes from the server. Versions before Kibana 8.9 reject these objects.",
    404: "Check the base path of `kibana_url`, and the name of the `space`.",
    413: "Raise savedObjects.maxImportPayloadBytes, or the limit of the proxy in front of the server.",
    429: "The server is overloaded: try again later.",
    503: "The server is not ready yet: try again in a moment.",
}
# Kinds of errors of single objects, as both products name them.
_OBJECT_REMEDIES = {
    "conflict": 'Objects with these ids already exist: replace them (`if_exists="replace"`) or make copies '
    '(`if_exists="copy"`).',
    "ambiguous_conflict": "Several objects come from the same origin: delete those that are not needed, or use "
    '`if_exists="copy"`.',
    "missing_references": "Objects that these objects need are missing: install all of them from a fresh export.",
    "unsupported_type": "The server does not know this kind of object: enable its plugin, or give the user access.",
    "missing_data_source": "Install into a workspace that the data source is assigned to.",
}


def import_error(status: int, body: Any, *, product: DashboardProduct, url: str) -> EsSbertError:
    """Make the error for a response other than 200.

    Args:
        body: The response, parsed if it was JSON.
    """
    message = body.get("message") if isinstance(body, dict) else body
    reason = " ".join(str(message or "no reason given").split())[:1000]
    if status == 401:
        return AccessDenied(
            f"{product.label} at {url} refused the credentials (401)",
            "Check ES_SBERT_KIBANA_USERNAME and ES_SBERT_KIBANA_PASSWORD, or ES_SBERT_KIBANA_API_KEY. If they are not "
            "set, the credentials of the engine are sent.",
        )
    if status == 403:
        rights = (
            "all of Saved Objects Management, Dashboard, Discover and Visualize in that space"
            if product is DashboardProduct.KIBANA
            else "a role that may write to the tenant, e.g. kibana_user and a tenant permission kibana_all_write"
        )
        return AccessDenied(f"{product.label} at {url} does not allow the import: {reason}", f"Give the user {rights}.")
    remedy = _STATUS_REMEDIES.get(status, "The message above comes from the server; its log has details.")
    return RequestFailed(f"{product.label} at {url} responded to the import with {status}: {reason}", remedy, status)


def object_import_error(
    body: Json, objects: Sequence[SavedObject], *, product: DashboardProduct, url: str
) -> RequestFailed:
    """Make the error for an import that failed completely or in part.

    Args:
        body: The response: `success` is false and `errors` names each object with its error.
        objects: The objects that were sent, for their titles.
    """
    titles = {(saved.type, saved.id): saved.title for saved in objects}
    errors = body.get("errors", [])
    kinds = dict.fromkeys(str(error.get("error", {}).get("type", "unknown")) for error in errors)
    lines = [_object_error_line(error, titles) for error in errors[:_MAX_ERRORS_SHOWN]]
    more = f"; and {len(errors) - _MAX_ERRORS_SHOWN} more" if len(errors) > _MAX_ERRORS_SHOWN else ""
    remedies = [_OBJECT_REMEDIES[kind] for kind in kinds if kind in _OBJECT_REMEDIES]
    return RequestFailed(
        f"{product.label} at {url} imported {body.get('successCount', 0)} of {pluralize(len(objects), 'object')}: "
        f"{'; '.join(lines) or 'no reason given'}{more}",
        " ".join(remedies) or "The message above comes from the server; its log has details.",
        200,
    )


def _object_error_line(error: Json, titles: dict[tuple[str, str], str]) -> str:
    kind, identity, why = error.get("type", "object"), error.get("id", ""), error.get("error", {})
    title = titles.get((kind, identity)) or identity
    needed = ", ".join(f"{r.get('type')} {r.get('id')}" for r in why.get("references", []))
    reason = why.get("message") or (f"needs {needed}" if needed else why.get("type", "unknown"))
    return f"{kind} “{title}”: {reason}"


# Every response has one of these headers with the server's name, even a refusal.
_SERVER_NAME_HEADERS = {DashboardProduct.KIBANA: "kbn-name", DashboardProduct.DASHBOARDS: "osd-name"}
# A request that changes something must have this header, which a page of another origin cannot set.
_XSRF_HEADERS = {DashboardProduct.KIBANA: "kbn-xsrf", DashboardProduct.DASHBOARDS: "osd-xsrf"}
_TENANT_HEADER = "securitytenant"
_FILE_NAME = "es-sbert.ndjson"  # both refuse a file with another extension
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class IfExists(StrEnum):
    """Handling of objects that already exist."""

    REPLACE = "replace"
    FAIL = "fail"
    COPY = "copy"


@dataclass(frozen=True)
class DashboardServer:
    """The server that imports the objects.

    Attributes:
        address: The server.
        space: Kibana's space; None for the default space.
        tenant: Tenant of the security plugin of OpenSearch Dashboards; None for the user's default tenant.
    """

    address: Address
    space: str | None = None
    tenant: str | None = None

    @property
    def url(self) -> str:
        """Address of the space, without credentials."""
        return self.address.url + (f"/s/{quote(self.space, safe='')}" if self.space else "")


@dataclass(frozen=True)
class ImportResult:
    """The result of an import.

    Attributes:
        objects: Number of imported objects.
        dashboards: Title → address to open.
        notes: Other things that were done or could not be done.
    """

    objects: int
    dashboards: dict[str, str]
    notes: tuple[str, ...] = ()


def import_saved_objects(
    place: DashboardServer,
    product: DashboardProduct,
    objects: Sequence[SavedObject],
    if_there: IfExists = IfExists.REPLACE,
    *,
    default_view: SavedObject | None = None,
) -> ImportResult:
    """Import saved objects into Kibana or OpenSearch Dashboards.

    Args:
        place: The server.
        product: The product that the objects were made for; the server must be of this product.
        objects: The objects, including all objects that they need.
        if_there: Handling of existing objects that have the same ids.
        default_view: The data view to make the default if there is no default; None to leave it unset. Discover and the
            list of data views open with the default. If it cannot be set, the result has a note.

    Raises:
        UsageError: a space or a tenant is set, but the product does not have them.
        EngineUnreachable: the server does not respond.
        AccessDenied: the server returns 401, 403 or a login page.
        UnsupportedEngine: the server is not of this product.
        RequestFailed: the import or some of the objects were refused.
    """
    _check_space_and_tenant(place, product)
    headers = place.address.headers | {_XSRF_HEADERS[product]: "true"}
    if place.tenant is not None:
        headers[_TENANT_HEADER] = place.tenant
    verify = place.address.ssl_context if place.address.ssl_context is not None else True
    with httpx.Client(headers=headers, verify=verify, timeout=place.address.timeout, trust_env=False) as client:
        _check_product(client, place, product)
        params = {IfExists.REPLACE: {"overwrite": "true"}, IfExists.COPY: {"createNewCopies": "true"}}.get(if_there, {})
        file = (_FILE_NAME, to_ndjson(objects, product), "application/ndjson")
        answer = _send(client, place, "POST", "/api/saved_objects/_import", params=params, files={"file": file})
        body = _response_body(answer)
        if answer.status_code != 200:
            raise import_error(answer.status_code, body, product=product, url=place.url)
        if not isinstance(body, dict) or "success" not in body:
            remedy = f"Check that {product.label} itself responds at this address, not a proxy."
            raise UnsupportedEngine(f"{place.url} did not return the result of an import", remedy)
        if not body["success"]:
            raise object_import_error(body, objects, product=product, url=place.url)
        moved = {
            result["id"]: result["destinationId"]
            for result in body.get("successResults", [])
            if "destinationId" in result
        }
        notes = []
        if default_view is not None:
            identity = moved.get(default_view.id, default_view.id)
            notes = _set_default_view(client, place, product, default_view.title, identity)
    return ImportResult(int(body["successCount"]), _dashboard_urls(place, objects, moved), tuple(notes))


# The paths to read and to set the default data view, and the member of its id in the request.
_DEFAULT_VIEW_APIS = {
    DashboardProduct.KIBANA: ("/api/data_views/default", "/api/data_views/default", "data_view_id"),
    DashboardProduct.DASHBOARDS: (
        "/api/opensearch-dashboards/settings",
        "/api/opensearch-dashboards/settings/defaultIndex",
        "value",
    ),
}


def _set_default_view(
    client: httpx.Client, place: DashboardServer, product: DashboardProduct, title: str, identity: str
) -> list[str]:
    """Make a data view the default if there is none; return notes about it."""
    read_path, write_path, member = _DEFAULT_VIEW_APIS[product]
    try:
        answer = _send(client, place, "GET", read_path)
        body = _response_body(answer)
        if answer.status_code == 200 and isinstance(body, dict):
            # OpenSearch Dashboards returns all settings that were changed.
            if body.get(member) or body.get("settings", {}).get("defaultIndex", {}).get("userValue"):
                return []
            answer = _send(client, place, "POST", write_path, json={member: identity})
            if answer.status_code == 200:
                return [f"“{title}” is now the default data view"]
            body = _response_body(answer)
        message = body.get("message") if isinstance(body, dict) else body
        reason = f"{answer.status_code}: {' '.join(str(message or 'no reason given').split())[:1000]}"
    except EsSbertError as error:
        reason = error.message
    return [
        f"the default data view was not set ({reason}): choose one under Stack Management (Dashboards Management), "
        "otherwise Discover asks for it"
    ]


def _check_space_and_tenant(place: DashboardServer, product: DashboardProduct) -> None:
    if place.space is not None and product is not DashboardProduct.KIBANA:
        raise UsageError("OpenSearch Dashboards has no spaces", "Omit `space`; choose a tenant with `tenant`.")
    if place.tenant is not None and product is not DashboardProduct.DASHBOARDS:
        raise UsageError("Kibana has no tenants", "Omit `tenant`; choose a space with `space`.")


def _check_product(client: httpx.Client, place: DashboardServer, product: DashboardProduct) -> None:
    """Check that the right server responds before anything is sent to it."""
    answer = _send(client, place, "GET", "/api/status")
    names = {product for product, header in _SERVER_NAME_HEADERS.items() if header in answer.headers}
    if not names and answer.status_code not in (401, 403):
        raise UnsupportedEngine(
            f"the server at {place.address.url} is neither Kibana nor OpenSearch Dashboards",
            "Check host, port (5601) and base path of `kibana_url`; the engine itself (9200) does not take dashboards.",
        )
    if names and product not in names:
        [found] = names
        reason = f"{place.address.url} is {found.label}, but the engine of the index works with {product.label}"
        raise UnsupportedEngine(reason, "Set `url` and `kibana_url` to addresses of the same installation.")
    if answer.status_code in (401, 403):
        raise import_error(answer.status_code, _response_body(answer), product=product, url=place.url)


def _send(client: httpx.Client, place: DashboardServer, method: str, path: str, **options: Any) -> httpx.Response:
    try:
        answer = client.request(method, place.url + path, **options)
    except httpx.HTTPError as error:
        remedy = "Start Kibana or OpenSearch Dashboards, or set `kibana_url` to its address (both use port 5601)."
        raise connection_error(place.address.url, error, place.address.timeout, refused_remedy=remedy) from error
    if answer.status_code in _REDIRECTS:
        raise AccessDenied(
            f"{place.url} redirects {method} {path} to {answer.headers.get('location', 'another page')}",
            "Set credentials, and the address with its base path (server.basePath), as a browser shows it after "
            "signing in.",
        )
    if answer.status_code in (502, 504):
        reason = f"a proxy at {place.address.url} cannot reach its server ({answer.status_code})"
        raise EngineUnreachable(reason, "Check that Kibana or OpenSearch Dashboards is running.")
    return answer


def _response_body(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text[:1000]


def _dashboard_urls(place: DashboardServer, objects: Sequence[SavedObject], moved: Mapping[str, str]) -> dict[str, str]:
    # Name the tenant: otherwise, the dashboard is looked up in the tenant that the user selected last.
    tenant = "" if place.tenant is None else f"?security_tenant={quote(place.tenant, safe='')}"
    return {
        saved.title: f"{place.url}/app/dashboards{tenant}#/view/{moved.get(saved.id, saved.id)}"
        for saved in objects
        if saved.type == "dashboard"
    }
