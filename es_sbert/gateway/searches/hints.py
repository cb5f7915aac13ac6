"""Errors of the engine's that say what to do, where a query by meaning came to an index without vectors."""

from __future__ import annotations

from es_sbert.engines.protocol import Json
from es_sbert.gateway.wire.forward import Answer, Outgoing
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object, write_object

_ENGINES_OWN = (b'"query_vector_builder"', b'"neural"', b'"semantic"')


def may_need_hint(outgoing: Outgoing) -> bool:
    """Whether a search that is passed on as it came looks like one of the engine's own queries by meaning."""
    return outgoing.body is not None and any(mark in outgoing.body for mark in _ENGINES_OWN)


def hinted(answer: Answer, hint: str) -> Answer:
    """An answer with the hint in its reason if it is an error in the engine's shape."""
    if answer.status != 400:
        return answer  # not about the query
    try:
        body = parse_object(answer.body)
    except NotPlainJson:
        return answer
    error = body.get("error")
    if not isinstance(error, dict):
        return answer
    roots = error.get("root_cause")
    changed = _with(error, hint)
    if isinstance(roots, list) and all(isinstance(root, dict) for root in roots):
        changed["root_cause"] = [_with(root, hint) for root in roots]
    return Answer(answer.status, answer.headers, write_object(body | {"error": changed}))


def _with(error: Json, hint: str) -> Json:
    reason = str(error.get("reason") or error.get("type") or "").rstrip(".")
    return error | {"reason": f"{reason}. {hint}"}
