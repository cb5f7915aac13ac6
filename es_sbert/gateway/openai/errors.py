"""Errors in the shape that OpenAI's clients understand."""

from __future__ import annotations

import logging

from starlette.responses import JSONResponse, Response

from es_sbert.errors import EsSbertError, ModelNotFound, Overloaded, RequestTooLarge, UsageError
from es_sbert.gateway.failures import RequestTimeout

logger = logging.getLogger(__name__)

_RETRY_SECONDS = "1"


def error_response(status: int, message: str, *, kind: str, code: str | None = None) -> Response:
    """An error.

    Args:
        message: What is wrong, and what to do.
        kind: `type` of OpenAI's error.
        code: Its `code`.
    """
    headers = {}
    if status == 429:
        headers["retry-after"] = _RETRY_SECONDS
    if status == 408:
        headers["connection"] = "close"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status, headers=headers)


def describe(error: Exception) -> Response:
    """The answer to a request that failed.

    What is not the caller's to mend is logged, a mistake of ours with its traceback, and only named to the caller.
    """
    if not isinstance(error, EsSbertError):
        logger.error("an embeddings request failed", exc_info=error)
        return error_response(500, "The gateway failed; its log says why.", kind="server_error")
    message = f"{error.message}. {error.remedy}"
    match error:
        case RequestTooLarge():
            return error_response(413, message, kind="invalid_request_error")
        case RequestTimeout():
            return error_response(408, message, kind="invalid_request_error")
        case UsageError():
            return error_response(400, message, kind="invalid_request_error")
        case Overloaded():
            return error_response(429, message, kind="requests", code="rate_limit_exceeded")
        case _:
            logger.error("an embeddings request failed: %s", message)
            # Not the message: it may say where a model lies, or what the hub answered.
            return error_response(503, "The model cannot be used; the gateway's log says why.", kind="server_error")


def model_not_found(error: ModelNotFound) -> Response:
    """The answer to a request for a model that is not served; where a served one is missing, that is no such error."""
    return error_response(404, f"{error.message}. {error.remedy}", kind="invalid_request_error", code="model_not_found")
