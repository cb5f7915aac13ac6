"""Import saved objects into Kibana or OpenSearch Dashboards through their HTTP API (extra `serve`: httpx)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
from pydantic_settings import SettingsConfigDict

from es_sbert.config import EngineSettings
from es_sbert.diagnostics.saved_objects import DashboardProduct, SavedObject, to_ndjson
from es_sbert.engines.address import Address, parse_address
from es_sbert.engines.error_mapping import connection_error
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, EngineUnreachable, EsSbertError, RequestFailed, UnsupportedEngine, UsageError
from es_sbert.messages import pluralize, setting

_CREDENTIAL_SETTINGS = ("username", "password", "api_key", "token")
_MAX_ERRORS_SHOWN = 5
_REMEDIES = {
    400: "The message above comes from the server. Versions before Kibana 8.9 reject these objects.",
    401: "Check ES_SBERT_KIBANA_USERNAME and ES_SBERT_KIBANA_PASSWORD, or ES_SBERT_KIBANA_API_KEY. If they are not "
    "set, the credentials of the engine are sent.",
    403: "Give the user all of Saved Objects Management, Dashboard, Discover and Visualize in the space of Kibana; in "
    "OpenSearch Dashboards a role that may write to the tenant, e.g. kibana_user and a tenant permission "
    "kibana_all_write.",
    404: "Check the address: its base path, and `/s/SPACE` for a space of Kibana.",
    413: "Raise savedObjects.maxImportPayloadBytes, or the limit of the proxy in front of the server.",
}
_SERVER_REMEDY = "The message above comes from the server; its log has details."
# A response has a header with this prefix and the server's name, even a refusal. A request that changes something
# must have another one, which a page of another origin cannot set.
_HEADER_PREFIXES = {DashboardProduct.KIBANA: "kbn", DashboardProduct.DASHBOARDS: "osd"}


class KibanaSettings(EngineSettings):
    """Settings like those of an engine, from `ES_SBERT_KIBANA_API_KEY`, `ES_SBERT_KIBANA_CA_CERTS`, ….

    Both products check credentials with their engine, so the engine's credentials are used if no others are given.
    """

    model_config = SettingsConfigDict(
        env_prefix="ES_SBERT_KIBANA_", frozen=True, extra="ignore", hide_input_in_errors=True
    )


def kibana_address(url: str, engine: EngineSettings) -> Address:
    """Build the address of Kibana or OpenSearch Dashboards, with credentials and TLS settings.

    Args:
        url: The address, with its base path and, in Kibana, the path of the space.
        engine: Settings of the engine, for its credentials and its timeout.

    Raises:
        UsageError: the URL is missing, there are two kinds of credentials, or the CA file cannot be read.
    """
    settings = KibanaSettings(url=url)
    if all(getattr(settings, name) is None for name in _CREDENTIAL_SETTINGS):
        lent = {name: getattr(engine, name) for name in _CREDENTIAL_SETTINGS}
        settings = settings.model_copy(update={"timeout": engine.timeout, **lent})
    return parse_address(settings)


def import_objects(
    address: Address,
    product: DashboardProduct,
    objects: Sequence[SavedObject],
    *,
    tenant: str | None = None,
    replace_view: bool = False,
) -> list[str]:
    """Import saved objects; those of an earlier import are replaced.

    A data view of the same title and time field that somebody else made is used instead of a second one.

    Args:
        address: The server.
        product: The product that the objects are made for.
        objects: The objects, including all objects that they need.
        tenant: Tenant of the security plugin of OpenSearch Dashboards; None for the user's default tenant.
        replace_view: Whether to replace the settings of such a data view. It keeps its id, so other objects still find
            it.

    Returns:
        Notes about data views that are used with their own settings.

    Raises:
        UsageError: a tenant is set for Kibana.
        EngineUnreachable: the server does not respond.
        AccessDenied: the server returns 401, 403 or a login page.
        UnsupportedEngine: the server is not of this product.
        RequestFailed: the import or some of the objects were refused.
    """
    if tenant is not None and product is DashboardProduct.KIBANA:
        remedy = f"Omit {setting('tenant')}; a space is a part of the address."
        raise UsageError("Kibana has no tenants", remedy).about("tenant")
    headers = address.headers | {f"{_HEADER_PREFIXES[product]}-xsrf": "true"}
    headers |= {} if tenant is None else {"securitytenant": tenant}
    verify = True if address.ssl_context is None else address.ssl_context
    server = f"{product.label} at {address.url}"
    with httpx.Client(headers=headers, verify=verify, timeout=address.timeout, trust_env=False) as client:
        # Check that the right server responds before anything is sent to it.
        _check_product(_send(client, address, "GET", "/api/status"), address, product)
        objects, notes = _use_existing_views(_list_views(client, address, server), objects, replace_view=replace_view)
        if product is DashboardProduct.DASHBOARDS:
            objects = [_with_fields(client, address, saved) for saved in objects]
        # Both refuse a file with another extension.
        file = {"file": ("es-sbert.ndjson", to_ndjson(objects, product), "application/ndjson")}
        path = "/api/saved_objects/_import"
        answer = _send(client, address, "POST", path, params={"overwrite": "true"}, files=file)
    if answer.status_code != 200:
        raise _refusal(answer, server)
    body = _response_body(answer)
    if not isinstance(body, dict) or "success" not in body:
        remedy = f"Check that {product.label} itself responds at this address, not a proxy."
        raise UnsupportedEngine(f"{address.url} did not return the result of an import", remedy)
    if not body["success"]:
        errors = body.get("errors", [])
        lines = [_object_error(error) for error in errors[:_MAX_ERRORS_SHOWN]]
        if len(errors) > _MAX_ERRORS_SHOWN:
            lines.append(f"and {len(errors) - _MAX_ERRORS_SHOWN} more")
        raise RequestFailed(
            f"{server} imported {body.get('successCount', 0)} of {pluralize(len(objects), 'object')}: "
            f"{'; '.join(lines) or 'no reason given'}",
            _SERVER_REMEDY,
            200,
        )
    return notes


def _list_views(client: httpx.Client, address: Address, server: str) -> list[Json]:
    """List the data views as saved objects; empty if this version has no such API.

    Raises:
        AccessDenied, RequestFailed: the server does not list them.
    """
    query = {"type": "index-pattern", "per_page": 10_000, "fields": ["title", "timeFieldName"]}
    answer = _send(client, address, "GET", "/api/saved_objects/_find", params=query)
    body = _response_body(answer)
    if answer.status_code == 404:
        return []
    if answer.status_code != 200 or not isinstance(body, dict):
        raise _refusal(answer, server)
    return list(body.get("saved_objects", []))


def _use_existing_views(
    existing: Sequence[Json], objects: Sequence[SavedObject], *, replace_view: bool
) -> tuple[list[SavedObject], list[str]]:
    """Let the objects refer to data views of the same title and time field that are there already.

    Returns:
        The objects to import, and notes.
    """
    imported, notes = [], []
    ids: dict[str, str] = {}  # id of a view of ours → id of the existing one
    present = {view["id"] for view in existing}
    for saved in objects:
        is_new_view = saved.type == "index-pattern" and saved.id not in present
        title, time_field = saved.attributes["title"], saved.attributes.get("timeFieldName")
        alike = [view for view in existing if is_new_view and view["attributes"].get("title") == title]
        same = [view for view in alike if (view["attributes"].get("timeFieldName") or None) == time_field]
        if not same:
            if alike and time_field is None:
                notes.append(
                    f"There is a second data view {title} now: the other one would show only the documents of a time "
                    f"range, by {alike[0]['attributes']['timeFieldName']}."
                )
            references = tuple(each | {"id": ids.get(each["id"], each["id"])} for each in saved.references)
            imported.append(replace(saved, references=references))
            continue
        ids[saved.id] = same[0]["id"]
        if replace_view:
            imported.append(replace(saved, id=same[0]["id"]))
            continue
        hidden = ", ".join(each["value"] for each in json.loads(saved.attributes["sourceFilters"]))
        filters = f" Add {hidden} to its field filters, so that vectors are not fetched." if hidden else ""
        notes.append(
            f"The data view {title} exists, with its own settings.{filters} {setting('replace_view')} replaces them."
        )
    return imported, notes


def _with_fields(client: httpx.Client, address: Address, saved: SavedObject) -> SavedObject:
    """Add the fields to a data view of OpenSearch Dashboards, as it lists them itself.

    Without them, each panel of a dashboard asks for the fields and saves them in the data view when it is opened.
    Saving fails for all but one of the panels (409), and for users who may only read.

    Returns:
        The view, without fields if this version of Dashboards has no such API; any other object unchanged.

    Raises:
        AccessDenied, RequestFailed: the server does not list the fields.
    """
    if saved.type != "index-pattern":
        return saved
    query = {"pattern": saved.attributes["title"], "meta_fields": ["_source", "_id", "_type", "_index", "_score"]}
    answer = _send(client, address, "GET", "/api/index_patterns/_fields_for_wildcard", params=query)
    body = _response_body(answer)
    if answer.status_code == 404:
        return saved
    if answer.status_code != 200 or not isinstance(body, dict):
        raise _refusal(answer, f"{DashboardProduct.DASHBOARDS.label} at {address.url}")
    return replace(saved, attributes=saved.attributes | {"fields": json.dumps(body.get("fields", []))})


def _check_product(answer: httpx.Response, address: Address, product: DashboardProduct) -> None:
    found = next((each for each, prefix in _HEADER_PREFIXES.items() if f"{prefix}-name" in answer.headers), None)
    if found not in (None, product):
        reason = f"{address.url} is {found.label}, but the engine of the index works with {product.label}"
        raise UnsupportedEngine(reason, f"{setting('url')} and {setting('kibana')} must belong together.")
    if answer.status_code in (401, 403):
        raise _refusal(answer, f"{product.label} at {address.url}")
    if found is None:
        raise UnsupportedEngine(
            f"the server at {address.url} is neither Kibana nor OpenSearch Dashboards",
            f"Check host, port (5601) and base path of {setting('kibana')}; the engine (9200) takes no dashboards.",
        )


def _send(client: httpx.Client, address: Address, method: str, path: str, **options: Any) -> httpx.Response:
    try:
        answer = client.request(method, address.url + path, **options)
    except httpx.HTTPError as error:
        remedy = f"Start Kibana or OpenSearch Dashboards, or set {setting('kibana')} to its address (port 5601)."
        raise connection_error(address.url, error, address.timeout, refused_remedy=remedy) from error
    if answer.is_redirect:
        raise AccessDenied(
            f"{address.url} redirects {method} {path} to {answer.headers.get('location', 'another page')}",
            "Set credentials, and the address with its base path (server.basePath), as a browser shows it after "
            "signing in.",
        )
    if answer.status_code in (502, 504):
        reason = f"a proxy at {address.url} cannot reach its server ({answer.status_code})"
        raise EngineUnreachable(reason, "Check that Kibana or OpenSearch Dashboards is running.")
    return answer


def _refusal(answer: httpx.Response, server: str) -> EsSbertError:
    """Make the error for a response other than 200."""
    status, body = answer.status_code, _response_body(answer)
    message = body.get("message") if isinstance(body, dict) else body
    reason = " ".join(str(message or "no reason given").split())[:1000]
    text, remedy = f"{server} refused the import ({status}): {reason}", _REMEDIES.get(status, _SERVER_REMEDY)
    return AccessDenied(text, remedy) if status in (401, 403) else RequestFailed(text, remedy, status)


def _object_error(error: Json) -> str:
    why = error.get("error", {})
    needed = ", ".join(f"{r.get('type')} {r.get('id')}" for r in why.get("references", []))
    reason = why.get("message") or (f"needs {needed}" if needed else why.get("type", "unknown"))
    return f"{error.get('type', 'object')} “{error.get('meta', {}).get('title') or error.get('id', '')}”: {reason}"


def _response_body(answer: httpx.Response) -> Any:
    """The body of a response: JSON, or the beginning of another text, unchanged."""
    try:
        return answer.json()
    except ValueError:
        return answer.text[:1000]
