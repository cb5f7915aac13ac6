"""Documents that are written without a vector: counted by reason, and logged once per index and reason."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from enum import StrEnum

from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.metrics import GatewayMetrics

logger = logging.getLogger(__name__)


class NoVectorReason(StrEnum):
    """The reason why a written document lacks the vector of a vector field; a label of a metric."""

    NO_TEXT = "no_text"
    NOT_TEXT = "not_text"
    TEXT_UNKNOWN = "text_unknown"
    NO_FIELD = "no_field"
    PREVIOUS_UNKNOWN = "previous_unknown"
    NOT_IN_SOURCE = "not_in_source"
    SCRIPT = "script"
    MAPPING_UNREADABLE = "mapping_unreadable"


class UnreadReason(StrEnum):
    """The reason why a request that writes documents passes through unread; a label of a metric."""

    OFF = "off"
    NO_WRITES = "no_writes"
    BY_QUERY = "by_query"
    NEW_FIELD = "new_field"


_EXPLANATIONS = {
    NoVectorReason.NO_TEXT: "the fields of the text are missing, null or blank. If they should have a text, check the "
    "names of the fields: `es-sbert index show {index}`",
    NoVectorReason.NOT_TEXT: "a field of the text holds values that are not strings. Send a string or a list of "
    "strings, or name another field of the text",
    NoVectorReason.NO_FIELD: "the write index lacks a vector field that other indices of this name have, as after a "
    "rollover. `es-sbert doctor --index {index}` prints the commands that add it",
    NoVectorReason.PREVIOUS_UNKNOWN: "an update changes a part of the text, and the same request changes the rest in a "
    "way that the gateway cannot see. `es-sbert ingest --index {index}` embeds such documents",
    NoVectorReason.NOT_IN_SOURCE: "an update loses a vector that `_source` does not keep, and the text to embed again "
    "is not known. Send whole documents, or keep the vector field in `_source`",
    NoVectorReason.SCRIPT: "a script may create them (scripted_upsert). `es-sbert ingest --index {index}` embeds such "
    "documents",
}
# `NO_WRITES` is not logged: it is a setting of the operator.
_UNREAD_EXPLANATIONS = {
    UnreadReason.OFF: "they have the header X-Es-Sbert: off",
    UnreadReason.BY_QUERY: "the engine creates the documents",
    UnreadReason.NEW_FIELD: "a vector field was added in the second before",
}


class MissingVectors:
    """Counts and logs documents without a vector.

    Args:
        metrics: Counts documents and requests.
    """

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._log = ThrottledLog(logger, interval=math.inf)

    def record(self, index: str, reasons: Collection[NoVectorReason], count: int = 1, *, partly: bool = False) -> None:
        """Count documents, and log each reason once per index.

        Args:
            index: The index, as the request names it.
            reasons: Reasons why they lack a vector; all apply to the same documents.
            count: Number of documents.
            partly: Whether they get the vectors of other vector fields.
        """
        self.count(reasons, count, partly=partly)
        for reason in sorted(reasons):
            explanation = _EXPLANATIONS[reason].format(index=index)
            message = "documents for %s are written without a vector: %s (logged once; the metric's reason is %s)"
            self._log.warning(message, index, explanation, reason)

    def count(self, reasons: Collection[NoVectorReason], count: int = 1, *, partly: bool = False) -> None:
        """Count documents whose error is logged elsewhere; see `record`."""
        for reason in reasons:
            self._metrics.documents_without_vector.labels(reason).inc(count)
        if not partly:
            self._metrics.documents.labels("without").inc(count)

    def record_unread(self, index: str, reason: UnreadReason, count: int = 1) -> None:
        """Count requests that write documents and pass through unread, and log them once per index and reason.

        Args:
            index: The index in their path; empty if there is none.
            count: Number of requests.
        """
        self._metrics.unread_writes.labels(reason).inc(count)
        explanation = _UNREAD_EXPLANATIONS.get(reason)
        if explanation is not None:
            message = (
                "writes to %s pass through unread, because %s. If the index has vector fields, embed its documents: "
            )
            message += "`es-sbert ingest --index INDEX` (logged once; the metric's reason is %s)"
            self._log.warning(message, index or "indices that their bodies name", explanation, reason)
