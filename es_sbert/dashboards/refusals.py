"""What an import that failed says, as errors of our tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from es_sbert.dashboards.saved_objects import Product, SavedObject
from es_sbert.engines.protocol import Json
from es_sbert.errors import AccessDenied, EsSbertError, RequestFailed

_SHOWN = 5
_STATUS_REMEDIES = {
    400: "The message above is the server's own; a version that is too old (before Kibana 8.9) refuses these objects.",
    404: "Check the base path of --kibana-url, and the name of the --space.",
    413: "Raise savedObjects.maxImportPayloadBytes, or the limit of the proxy before it.",
    429: "The server is overloaded: try again later.",
    503: "The server is not ready yet: try again in a moment.",
}
# Kinds of errors of single objects, as both products name them.
_OBJECT_REMEDIES = {
    "conflict": "Objects of these ids are there: replace them (--if-exists replace) or make copies (--if-exists copy).",
    "ambiguous_conflict": "Several objects come from the same origin: delete those that are not needed, or --if-exists "
    "copy.",
    "missing_references": "Something that these objects need is missing: install all of them, from a fresh export.",
    "unsupported_type": "The server does not know this kind of object: enable its plugin, or let the user have it.",
    "missing_data_source": "Install into a workspace that the data source is assigned to.",
}


def failed_import(status: int, body: Any, *, product: Product, url: str) -> EsSbertError:
    """An answer other than 200.

    Args:
        body: The answer, parsed where it was JSON.
    """
    reason = _reason(body)
    if status == 401:
        return AccessDenied(
            f"{product.label} at {url} refused the credentials (401)",
            "Check ES_SBERT_KIBANA_USERNAME and ES_SBERT_KIBANA_PASSWORD, or ES_SBERT_KIBANA_API_KEY; without them "
            "those of the engine are sent.",
        )
    if status == 403:
        rights = (
            "all of Saved Objects Management, Dashboard, Discover and Visualize in that space"
            if product is Product.KIBANA
            else "a role that may write to the tenant, e.g. kibana_user and a tenant permission kibana_all_write"
        )
        return AccessDenied(f"{product.label} at {url} does not allow the import: {reason}", f"Give the user {rights}.")
    remedy = _STATUS_REMEDIES.get(status, "The server's log says more; the message above is its own.")
    return RequestFailed(f"{product.label} at {url} answered the import with {status}: {reason}", remedy, status)


def not_imported(body: Json, objects: Sequence[SavedObject], *, product: Product, url: str) -> RequestFailed:
    """An import that took place in part, or not at all.

    Args:
        body: The answer: `success` is false and `errors` names each object with its error.
        objects: What was sent, for their titles.
    """
    titles = {(saved.type, saved.id): saved.title for saved in objects}
    errors = body.get("errors", [])
    kinds = dict.fromkeys(str(error.get("error", {}).get("type", "unknown")) for error in errors)
    lines = [_line(error, titles) for error in errors[:_SHOWN]]
    more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
    remedies = [_OBJECT_REMEDIES[kind] for kind in kinds if kind in _OBJECT_REMEDIES]
    return RequestFailed(
        f"{product.label} at {url} imported {body.get('successCount', 0)} of {len(objects)} objects: "
        f"{'; '.join(lines) or 'it does not say why'}{more}",
        " ".join(remedies) or "The message above is the server's own; its log says more.",
        200,
    )


def _line(error: Json, titles: dict[tuple[str, str], str]) -> str:
    kind, identity, why = error.get("type", "object"), error.get("id", ""), error.get("error", {})
    title = titles.get((kind, identity)) or identity
    needed = ", ".join(f"{r.get('type')} {r.get('id')}" for r in why.get("references", []))
    reason = why.get("message") or (f"needs {needed}" if needed else why.get("type", "unknown"))
    return f"{kind} “{title}”: {reason}"


def _reason(body: Any) -> str:
    message = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(message or "no reason given").split())[:1000]
