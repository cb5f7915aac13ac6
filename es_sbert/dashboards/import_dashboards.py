"""Import saved objects into Kibana or OpenSearch Dashboards through their HTTP API (extra `serve`: httpx)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
}
_SERVER_REMEDY = "The message above comes from the server; its log has details."
# Every response has one of these headers with the server's name, even a refusal.
_SERVER_NAME_HEADERS = {DashboardProduct.KIBANA: "kbn-name", DashboardProduct.DASHBOARDS: "osd-name"}
# A request that changes something must have this header, which a page of another origin cannot set.
_XSRF_HEADERS = {DashboardProduct.KIBANA: "kbn-xsrf", DashboardProduct.DASHBOARDS: "osd-xsrf"}
_TENANT_HEADER = "securitytenant"
_FILE_NAME = "es-sbert.ndjson"  # both refuse a file with another extension
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# The paths to read and to set the default data view, and the member of its id in the request.
_DEFAULT_VIEW_APIS = {
    DashboardProduct.KIBANA: ("/api/data_views/default", "/api/data_views/default", "data_view_id"),
    DashboardProduct.DASHBOARDS: (
        "/api/opensearch-dashboards/settings",
        "/api/opensearch-dashboards/settings/defaultIndex",
        "value",
    ),
}


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


@dataclass(frozen=True)
class DashboardServer:
    """The server that imports the objects.

    Attributes:
        address: The server.
        product: The product that the objects are made for.
        space: Kibana's space; None for the default space.
        tenant: Tenant of the security plugin of OpenSearch Dashboards; None for the user's default tenant.

    Raises:
        UsageError: a space or a tenant is set, but the product does not have them.
    """

    address: Address
    product: DashboardProduct
    space: str | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        if self.space is not None and self.product is not DashboardProduct.KIBANA:
            raise UsageError("OpenSearch Dashboards has no spaces", "Omit `space`; choose a tenant with `tenant`.")
        if self.tenant is not None and self.product is not DashboardProduct.DASHBOARDS:
            raise UsageError("Kibana has no tenants", "Omit `tenant`; choose a space with `space`.")

    @property
    def url(self) -> str:
        """Address of the space, without credentials."""
        return self.address.url + (f"/s/{quote(self.space, safe='')}" if self.space else "")

    def import_objects(
        self, objects: Sequence[SavedObject], *, default_view: SavedObject | None = None
    ) -> ImportResult:
        """Import saved objects; those of an earlier import are replaced.

        Args:
            objects: The objects, including all objects that they need.
            default_view: The data view to make the default if there is no default; None to leave it unset. Discover and
                the list of data views open with the default. If it cannot be set, the result has a note.

        Raises:
            EngineUnreachable: the server does not respond.
            AccessDenied: the server returns 401, 403 or a login page.
            UnsupportedEngine: the server is not of this product.
            RequestFailed: the import or some of the objects were refused.
        """
        headers = self.address.headers | {_XSRF_HEADERS[self.product]: "true"}
        if self.tenant is not None:
            headers[_TENANT_HEADER] = self.tenant
        verify = self.address.ssl_context if self.address.ssl_context is not None else True
        with httpx.Client(headers=headers, verify=verify, timeout=self.address.timeout, trust_env=False) as client:
            self._check_product(client)
            file = (_FILE_NAME, to_ndjson(objects, self.product), "application/ndjson")
            path, params = "/api/saved_objects/_import", {"overwrite": "true"}
            answer = self._send(client, "POST", path, params=params, files={"file": file})
            body = _response_body(answer)
            if answer.status_code != 200:
                raise self._refusal(answer)
            if not isinstance(body, dict) or "success" not in body:
                remedy = f"Check that {self.product.label} itself responds at this address, not a proxy."
                raise UnsupportedEngine(f"{self.url} did not return the result of an import", remedy)
            if not body["success"]:
                raise self._object_error(body, objects)
            # Kibana gives an object a new id if its id is taken in another space.
            moved = {result["id"]: result.get("destinationId") for result in body.get("successResults", [])}
            notes = () if default_view is None else self._set_default_view(client, default_view, moved)
        # Name the tenant: otherwise, the dashboard is looked up in the tenant that the user selected last.
        tenant = "" if self.tenant is None else f"?security_tenant={quote(self.tenant, safe='')}"
        boards = {
            saved.title: f"{self.url}/app/dashboards{tenant}#/view/{moved.get(saved.id) or saved.id}"
            for saved in objects
            if saved.type == "dashboard"
        }
        return ImportResult(int(body["successCount"]), boards, notes)

    def _check_product(self, client: httpx.Client) -> None:
        """Check that the right server responds before anything is sent to it."""
        answer = self._send(client, "GET", "/api/status")
        found = next((product for product, name in _SERVER_NAME_HEADERS.items() if name in answer.headers), None)
        if found is None and answer.status_code not in (401, 403):
            raise UnsupportedEngine(
                f"the server at {self.address.url} is neither Kibana nor OpenSearch Dashboards",
                "Check host, port (5601) and base path of `kibana_url`; the engine itself (9200) does not take "
                "dashboards.",
            )
        if found not in (None, self.product):
            reason = f"{self.address.url} is {found.label}, but the engine of the index works with {self.product.label}"
            raise UnsupportedEngine(reason, "Set `url` and `kibana_url` to addresses of the same installation.")
        if answer.status_code in (401, 403):
            raise self._refusal(answer)

    def _set_default_view(
        self, client: httpx.Client, view: SavedObject, moved: Mapping[str, str | None]
    ) -> tuple[str, ...]:
        """Make a data view the default if there is none; return notes about it."""
        read_path, write_path, member = _DEFAULT_VIEW_APIS[self.product]
        try:
            answer = self._send(client, "GET", read_path)
            body = _response_body(answer)
            if answer.status_code == 200 and isinstance(body, dict):
                # OpenSearch Dashboards returns all settings that were changed.
                if body.get(member) or body.get("settings", {}).get("defaultIndex", {}).get("userValue"):
                    return ()
                answer = self._send(client, "POST", write_path, json={member: moved.get(view.id) or view.id})
                if answer.status_code == 200:
                    return (f"“{view.title}” is now the default data view",)
            reason = f"{answer.status_code}: {_reason(answer)}"
        except EsSbertError as error:
            reason = error.message
        return (
            f"the default data view was not set ({reason}): choose one under Stack Management (Dashboards "
            "Management), otherwise Discover asks for it",
        )

    def _send(self, client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = client.request(method, self.url + path, **options)
        except httpx.HTTPError as error:
            remedy = "Start Kibana or OpenSearch Dashboards, or set `kibana_url` to its address (both use port 5601)."
            raise connection_error(self.address.url, error, self.address.timeout, refused_remedy=remedy) from error
        if answer.status_code in _REDIRECTS:
            raise AccessDenied(
                f"{self.url} redirects {method} {path} to {answer.headers.get('location', 'another page')}",
                "Set credentials, and the address with its base path (server.basePath), as a browser shows it after "
                "signing in.",
            )
        if answer.status_code in (502, 504):
            reason = f"a proxy at {self.address.url} cannot reach its server ({answer.status_code})"
            raise EngineUnreachable(reason, "Check that Kibana or OpenSearch Dashboards is running.")
        return answer

    def _refusal(self, answer: httpx.Response) -> EsSbertError:
        """Make the error for a response other than 200."""
        status, server = answer.status_code, f"{self.product.label} at {self.url}"
        if status == 401:
            return AccessDenied(
                f"{server} refused the credentials (401)",
                "Check ES_SBERT_KIBANA_USERNAME and ES_SBERT_KIBANA_PASSWORD, or ES_SBERT_KIBANA_API_KEY. If they are "
                "not set, the credentials of the engine are sent.",
            )
        if status == 403:
            rights = (
                "all of Saved Objects Management, Dashboard, Discover and Visualize in that space"
                if self.product is DashboardProduct.KIBANA
                else "a role that may write to the tenant, e.g. kibana_user and a tenant permission kibana_all_write"
            )
            return AccessDenied(f"{server} does not allow the import: {_reason(answer)}", f"Give the user {rights}.")
        remedy = _STATUS_REMEDIES.get(status, _SERVER_REMEDY)
        return RequestFailed(f"{server} responded to the import with {status}: {_reason(answer)}", remedy, status)

    def _object_error(self, body: Json, objects: Sequence[SavedObject]) -> RequestFailed:
        """Make the error for an import that failed completely or in part.

        Args:
            body: The response: `success` is false and `errors` names each object with its error.
        """
        titles, errors = {(saved.type, saved.id): saved.title for saved in objects}, body.get("errors", [])
        lines = [_object_error_line(error, titles) for error in errors[:_MAX_ERRORS_SHOWN]]
        if len(errors) > _MAX_ERRORS_SHOWN:
            lines.append(f"and {len(errors) - _MAX_ERRORS_SHOWN} more")
        return RequestFailed(
            f"{self.product.label} at {self.url} imported {body.get('successCount', 0)} of "
            f"{pluralize(len(objects), 'object')}: {'; '.join(lines) or 'no reason given'}",
            _SERVER_REMEDY,
            200,
        )


def _object_error_line(error: Json, titles: Mapping[tuple[str, str], str]) -> str:
    kind, identity, why = error.get("type", "object"), error.get("id", ""), error.get("error", {})
    needed = ", ".join(f"{r.get('type')} {r.get('id')}" for r in why.get("references", []))
    reason = why.get("message") or (f"needs {needed}" if needed else why.get("type", "unknown"))
    return f"{kind} “{titles.get((kind, identity)) or identity}”: {reason}"


def _response_body(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text[:1000]


def _reason(answer: httpx.Response) -> str:
    """The message of a response on one line."""
    body = _response_body(answer)
    message = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(message or "no reason given").split())[:1000]
