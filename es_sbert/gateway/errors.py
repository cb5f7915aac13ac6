"""Gateway errors as responses in the engine's own error format, so that every client can show them."""

from __future__ import annotations

import orjson

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.errors import (
    AccessDenied,
    EngineError,
    EngineUnreachable,
    EsSbertError,
    IndexMismatch,
    IndexMissing,
    ModelError,
    Overloaded,
    RequestFailed,
    RequestTooLarge,
    UsageError,
)

_JSON_TYPE = b"application/json"


class BadRequest(UsageError):
    """A request that the gateway cannot carry out as it stands."""


class RequestTimeout(UsageError):
    """The body of a request comes too slowly."""


class UpstreamTimeout(EngineUnreachable):
    """The engine did not answer in time."""


# First match wins: more special kinds stand before what they are kinds of.
_ERROR_TYPES: tuple[tuple[type[EsSbertError], int, str], ...] = (
    (RequestTooLarge, 413, "es_sbert_body_too_large"),
    (RequestTimeout, 408, "es_sbert_request_timeout"),
    (Overloaded, 429, "es_rejected_execution_exception"),
    (UpstreamTimeout, 504, "es_sbert_upstream_timeout"),
    (EngineUnreachable, 502, "es_sbert_upstream_unreachable"),
    (AccessDenied, 403, "security_exception"),
    (IndexMissing, 404, "index_not_found_exception"),
    (IndexMismatch, 400, "es_sbert_index_mismatch"),
    (UsageError, 400, "illegal_argument_exception"),
    (ModelError, 503, "es_sbert_model_unavailable"),
)


def http_status(error: EsSbertError) -> int:
    """The HTTP status that says what kind of error it is."""
    if isinstance(error, RequestFailed):
        return error.status if 400 <= error.status <= 599 else 502
    return next((status for kind, status, _ in _ERROR_TYPES if isinstance(error, kind)), 500)


def error_object(error: EsSbertError) -> Json:
    """An error as engines write it, also within the answer of one item of `_msearch` or `_bulk`."""
    name = next((name for kind, _, name in _ERROR_TYPES if isinstance(error, kind)), "es_sbert_exception")
    reason = f"{error.message}. {error.remedy}"
    cause = {"type": name, "reason": reason}
    return {"root_cause": [cause], **cause}


def error_body(error: EsSbertError) -> bytes:
    """The body of an answer that is this error."""
    return orjson.dumps({"error": error_object(error), "status": http_status(error)})


def response_headers(engine_type: EngineType | None, length: int) -> list[tuple[bytes, bytes]]:
    """Headers of an answer that the gateway itself makes.

    Args:
        engine_type: Of the engine. Elasticsearch's clients turn away from a server that does not sign its answers.
        length: Bytes of the body.
    """
    headers = [(b"content-type", _JSON_TYPE), (b"content-length", str(length).encode())]
    if engine_type is EngineType.ELASTICSEARCH:
        headers.append((b"x-elastic-product", b"Elasticsearch"))
    return headers


class UnknownTextError(ModelError):
    """The mapping does not say which text a vector field is made of."""

    def __init__(self) -> None:
        super().__init__(
            "the text of a vector field of the index is not known, so its vector cannot be made",
            "State the text by `es-sbert index create INDEX --text-field FIELD`, load documents once by `es-sbert "
            "ingest`, or send documents with their vectors.",
        )

    def __reduce__(self) -> tuple[type[UnknownTextError], tuple[()]]:  # type: ignore[override]
        return type(self), ()


def public_model_error(error: EsSbertError) -> EsSbertError:
    """What the caller is told of a model that cannot be used."""
    return _without_details(error, "the model of the vector field cannot be loaded by the gateway")


def public_mapping_error(error: EsSbertError) -> EsSbertError:
    """What the caller is told of a mapping that cannot be read."""
    return _without_details(error, "the mapping of the index does not describe its vector fields correctly")


def log_detail(error: EsSbertError) -> str:
    """The whole of an error for the log."""
    told = error.__cause__ if isinstance(error.__cause__, EsSbertError) else error
    return f"{told.message}. {told.remedy}"


def _without_details(error: EsSbertError, message: str) -> EsSbertError:
    # Clients send the same again after 429, 502 and 503: nothing is wrong with what they sent.
    if isinstance(error, Overloaded | EngineError):
        return error
    refusal = ModelError(message, "The gateway's log says why.")
    refusal.__cause__ = error
    return refusal
