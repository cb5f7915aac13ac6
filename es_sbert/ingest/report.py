"""The end of a load as a document of an index, so that dashboards show loads and what failed in them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson

from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import EsSbertError, RequestFailed
from es_sbert.events import record
from es_sbert.ingest.summary import Summary
from es_sbert.mappings import read_body

_MAPPING = "common/loads"


def prepare_reports(engine: Engine, name: str) -> None:
    """Make the index of reports, before a load of hours finds out that it may not.

    Raises:
        UsageError: a name that is none.
        AccessDenied: it is missing and this user may not make it.
        EngineError: the engine failed.
    """
    if engine.get_index(name) is not None:
        return
    try:
        engine.create_index(name, read_body(_MAPPING))
    except RequestFailed:
        # Another load may have made it in the meantime.
        if engine.get_index(name) is None:
            raise


def report_document(summary: Summary, at: datetime) -> Json:
    """What the index's mapping has fields for.

    Args:
        at: The end of the load.
    """
    known = read_body(_MAPPING)["mappings"]["properties"]
    facts = summary.model_dump(mode="json", include=set(known), exclude_none=True)
    return {
        "@timestamp": at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "exit_code": summary.exit_code,
        **facts,
    }


def write_report(engine: Engine, name: str, summary: Summary) -> None:
    """Write the report. The load is over by then: where this fails, it is said and changes nothing."""
    document = report_document(summary, datetime.now(UTC))
    try:
        [result] = engine.bulk(name, b'{"create":{}}\n' + orjson.dumps(document) + b"\n")
        failure = None if result.ok else result.reason
    except EsSbertError as error:
        failure = f"{error.message}. {error.remedy}"
    if failure is not None:
        record("report_failed", f"the report of this load is not in {name}: {failure}", logging.WARNING, index=name)
