"""Report errors: to clients as responses in the engine's format, to the operator as throttled log lines."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable

import orjson
from cachetools import LRUCache

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import (
    AccessDenied,
    EngineError,
    EngineTooOld,
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
from es_sbert.messages import escape_unprintable, shorten


class BadRequest(UsageError):
    """The gateway cannot handle the request as sent."""


class UnsupportedMediaType(BadRequest):
    """The body of a request is in a format or an encoding that engines read and the gateway does not."""


class RequestTimeout(UsageError):
    """The body of a request arrives too slowly."""


class UpstreamTimeout(EngineUnreachable):
    """The engine did not respond in time."""


class OwnCredentialsRefused(EngineError):
    """The engine refuses the gateway's own credentials."""


# The first match wins: subclasses come before their base classes.
_ERROR_TYPES: tuple[tuple[type[EsSbertError], int, str], ...] = (
    (RequestTooLarge, 413, "es_sbert_body_too_large"),
    (UnsupportedMediaType, 415, "es_sbert_unsupported_media_type"),
    (RequestTimeout, 408, "es_sbert_request_timeout"),
    (Overloaded, 429, "es_rejected_execution_exception"),
    (UpstreamTimeout, 504, "es_sbert_upstream_timeout"),
    (EngineUnreachable, 502, "es_sbert_upstream_unreachable"),
    (OwnCredentialsRefused, 503, "es_sbert_credentials_refused"),
    (EngineTooOld, 501, "es_sbert_engine_too_old"),
    (AccessDenied, 403, "security_exception"),
    (IndexMissing, 404, "index_not_found_exception"),
    (IndexMismatch, 400, "es_sbert_index_mismatch"),
    (UsageError, 400, "illegal_argument_exception"),
    (ModelError, 503, "es_sbert_model_unavailable"),
)


def http_status(error: EsSbertError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, RequestFailed):
        return error.status if 400 <= error.status <= 599 else 502
    return next((status for kind, status, _ in _ERROR_TYPES if isinstance(error, kind)), 500)


def error_object(error: EsSbertError) -> Json:
    """Convert an error to the engine's format, also for an item of an `_msearch` or `_bulk` response."""
    name = next((name for kind, _, name in _ERROR_TYPES if isinstance(error, kind)), "es_sbert_exception")
    return engine_error(name, error_text(error))


def engine_error(kind: str, reason: str) -> Json:
    """The member `error` of a response.

    Clients print `root_cause`. The dialogs of Kibana and OpenSearch Dashboards print `caused_by`; without it,
    OpenSearch Dashboards shows only the name of the status and a stack trace.
    """
    cause = {"type": kind, "reason": reason}
    return {"root_cause": [cause], **cause, "caused_by": cause}


def error_text(error: EsSbertError) -> str:
    """The message for the client, shortened: it may quote a large request."""
    return f"{shorten(error.message)}. {shorten(error.remedy)}"


def error_body(error: EsSbertError) -> bytes:
    """The body of an error response."""
    return orjson.dumps({"error": error_object(error), "status": http_status(error)})


def response_headers(engine_type: EngineType | None, length: int) -> list[tuple[bytes, bytes]]:
    """Headers of a response that the gateway creates.

    Args:
        engine_type: Type of the engine. Elasticsearch's clients reject a server that does not identify as
            Elasticsearch.
        length: Bytes of the body.
    """
    headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    if engine_type is EngineType.ELASTICSEARCH:
        headers.append((b"x-elastic-product", b"Elasticsearch"))
    return headers


def unknown_text_error() -> ModelError:
    """The error for a vector field whose mapping does not say which text it is made of."""
    return ModelError(
        "the mapping does not say which text a vector field is made of, so its vectors cannot be computed",
        "Set the text with `es-sbert index create INDEX --text-field FIELD`, load documents once with "
        "`es-sbert ingest`, or send documents with their vectors.",
    )


def log_detail(error: EsSbertError) -> str:
    """An error with all details, for the log."""
    detailed = error.__cause__ if isinstance(error.__cause__, EsSbertError) else error
    return f"{detailed.message}. {detailed.remedy}"


def without_details(error: EsSbertError, message: str) -> EsSbertError:
    """Return the caller's error for a model or a mapping that cannot be used; the log has the details."""
    # Keep the status of these errors: clients retry after 429, 502 and 503, since their request was valid.
    if isinstance(error, Overloaded | EngineError):
        return error
    refusal = ModelError(message, "The gateway's log says why.")
    refusal.__cause__ = error
    return refusal


_LOG_INTERVAL_SECONDS = 10.0
_MAX_LOG_KINDS = 1000


class ThrottledLog:
    """Logs each kind of warning at most once per interval, with the number of suppressed ones.

    Args:
        logger: Target of the warnings.
        clock: Returns the time in seconds.
        interval: In seconds; infinite to log each kind once.
    """

    def __init__(
        self,
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        interval: float = _LOG_INTERVAL_SECONDS,
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._interval = interval
        # Kind → time of its last line, and number of lines suppressed since.
        self._latest: LRUCache[str, tuple[float, int]] = LRUCache(_MAX_LOG_KINDS)

    def warning(self, message: str, *args: str, kind: str = "", error: BaseException | None = None) -> None:
        """Log a warning, unless one of its kind was logged within the interval.

        Args:
            message: Format string, as for `logging`.
            args: Arguments of the message; they may come from requests.
            kind: Kind of the warning; by default, its text.
            error: Logged with its traceback.
        """
        self._log(logging.WARNING, kind or shorten(message % args), message, args, error)

    def bug(self, error: Exception) -> None:
        """Log a bug with its traceback, unless the same one was logged within the interval."""
        position = "".join(
            f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-1:]
        )
        message = "the gateway failed to handle a request"
        self._log(logging.ERROR, f"{type(error).__name__} at {position}", message, (), error)

    def _log(self, level: int, kind: str, message: str, args: tuple[str, ...], error: BaseException | None) -> None:
        now = self._clock()
        at, left_out = self._latest.get(kind, (-math.inf, 0))
        if now - at < self._interval:
            self._latest[kind] = at, left_out + 1
            return
        self._latest[kind] = now, 0
        shown: tuple[object, ...] = tuple(escape_unprintable(shorten(arg)) for arg in args)
        if left_out:
            message, shown = f"{message} (and %d times more before)", (*shown, left_out)
        self._logger.log(level, message, *shown, exc_info=error)
