"""Load documents from Python: an iterable of dicts instead of files, and deletion by id."""

from __future__ import annotations

import reprlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from es_sbert.batched import batched
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import multi_get
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryPolicy, make_retrier
from es_sbert.errors import SourceError, WrongArgument
from es_sbert.ingest.dead_letters import read_dead_letters
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.ingest.reconcile import delete_hits
from es_sbert.ingest.sources.document_source import (
    METADATA_ID,
    DocumentSource,
    InvalidId,
    Origin,
    ReadContext,
    ReadSettings,
    Record,
    RejectedRecord,
    RequiredColumns,
    document_id,
    metadata_id_field,
)
from es_sbert.ingest.sources.table_rows import (
    PYTHON_ROWS,
    UnserializableValue,
    object_to_json,
    row_record,
    row_to_json,
)
from es_sbert.messages import setting

_DELETE_PAGE = 1000


@dataclass(frozen=True)
class IterableSource(DocumentSource):
    """Documents from an iterable of dicts. An iterator is consumed once, from another thread.

    Values that JSON lacks are converted, see `table_rows`. A field `_id` is the id of its document, as for
    elasticsearch-py's helpers, and not a part of it.

    Attributes:
        documents: The documents.
        takes_id: Whether `_id` is the id; False if a different field is.
    """

    documents: Iterable[object]
    takes_id: bool = True
    name: str = "documents"
    path: None = None
    size: None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        """Check nothing: the load reads the first documents itself."""

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        iterator = enumerate(self.documents, 1)
        number = 0
        while not context.stop.is_set():
            try:
                number, document = next(iterator)
            except StopIteration:
                return
            except OSError as error:
                # Converted here, because the reader of sources would take it for a file that cannot be opened.
                raise SourceError(
                    f"the iterator of the documents failed after {number:,} of them: {error}",
                    "Fix the iterator and add the documents again: those that have an embedding are left alone.",
                ) from error
            origin = Origin(self.name, number)
            if isinstance(document, Mapping):
                yield self._record(document, origin, context.settings)
            else:
                reason = f"`documents[{number - 1}]` is {type(document).__name__}, not a dict"
                yield RejectedRecord.of_bytes(origin, reason, repr(document).encode())

    def _record(self, document: Mapping[Any, Any], origin: Origin, settings: ReadSettings) -> Record | RejectedRecord:
        try:
            row = object_to_json(document)
        except RecursionError:
            row = UnserializableValue("it is nested too deeply, or contains itself")
        if isinstance(row, UnserializableValue):
            shown = reprlib.repr(document).encode(errors="backslashreplace")
            return RejectedRecord.of_bytes(origin, f"the document cannot be written as JSON: {row}", shown)
        if not self.takes_id or METADATA_ID not in row:
            return row_record(row, origin, settings, PYTHON_ROWS)
        whole = row_record(row, origin, replace(settings, key_fields=(*settings.key_fields, METADATA_ID)), PYTHON_ROWS)
        if isinstance(whole, RejectedRecord):
            return whole
        try:
            identity = document_id(whole, METADATA_ID)
        except InvalidId as error:
            field = metadata_id_field(whole.fields[METADATA_ID])
            advice = "" if field == METADATA_ID else f": set {setting('id_field', field)}"
            return RejectedRecord(origin, f"{error}{advice}", document=whole.source)
        del row[METADATA_ID], whole.fields[METADATA_ID]
        return whole._replace(source=row_to_json(row), id=identity)


def load_documents(
    engine: Engine,
    encoder: Encoder,
    settings: IngestSettings,
    documents: Iterable[Mapping[str, Any]] | None,
) -> LoadReport:
    """Run the ingest pipeline over documents from Python, or over the documents of the index.

    Nothing is written to the working folder. Unless a dead-letter file is named, the dead letters are in the report.

    Args:
        documents: Documents to load; None embeds documents of the index that lack a current
            embedding.

    Raises:
        WrongArgument: the documents are not an iterable of dicts, or options conflict.
        SourceError: no document can be loaded, or the documents lack a field of the text; nothing was written then.
        IndexMismatch: the index holds embeddings of another model, or was deleted during the load.
        EngineError: the engine failed before the first document was sent.
        OutputError: the dead-letter file cannot be written.
    """
    control = LoadControl()
    is_single = isinstance(documents, str | bytes | Mapping) or hasattr(documents, "to_dict")
    if documents is not None and (is_single or not isinstance(documents, Iterable)):
        remedy = (
            "Pass a list or an iterator of dicts; for a single document: [document], for a pandas DataFrame: "
            'frame.to_dict("records").'
        )
        message = f"the documents are {type(documents).__name__}, not an iterable of dicts"
        raise WrongArgument(message, remedy).about("documents", documents)
    with tempfile.TemporaryDirectory(prefix="es-sbert-load-") as folder:
        # The checkpoint detects repeated ids within the load. It is not kept: an iterator cannot be resumed.
        changed: dict[str, Any] = {"state": Path(folder) / "load-state"}
        letters = Path(folder) / "dead-letters.jsonl"
        if settings.dead_letters is None:
            changed |= {"dead_letters": letters, "returns_dead_letters": True}
        settings = settings.model_copy(update=changed)
        sources = [] if documents is None else [IterableSource(documents, takes_id=settings.id_field is None)]
        plan = plan_load(engine, settings, sources)
        report = run_load(engine, encoder, plan, control, ProgressMeter())
        if letters.exists():
            rejected = tuple(letter for _, letter in read_dead_letters(letters))
            report = report.model_copy(update={"dead_letters": None, "rejected": rejected})
    if documents is None or report.stopped is None:
        return report
    reason = control.reason or "interrupted"
    remedy = "add the documents again: those that have an embedding are left alone"
    return report.model_copy(update={"stopped": f"{reason}; {remedy}"})


def delete_documents(engine: Engine, index: str, ids: Iterable[str], retry_seconds: float) -> int:
    """Delete documents by id, with any routing, and refresh the index.

    Args:
        index: Index or alias; all of its indices are searched for the documents.
        retry_seconds: Time limit for retries of transient failures.

    Returns:
        Number of deleted documents; ids without a document do not count.

    Raises:
        EngineError: the engine failed, or refused to delete a document.
    """
    policy = RetryPolicy(retry_seconds)
    retry = make_retrier(policy, lambda reason: None)
    retry(partial(engine.refresh, index))
    states = retry(partial(engine.get_indices, index))
    # Each index of an alias is named, because a deletion by the alias affects only its write index.
    is_alias = len(states) > 1
    deleted = 0
    for page in batched(list(dict.fromkeys(ids)), _DELETE_PAGE):
        for state in states:
            place, query = (state.name, state.alias(index).get("filter")) if is_alias else (index, None)
            hits = retry(partial(multi_get, engine, place, page, query=query)).values()
            # The version is not passed on: a document that another writer changes at the same time is deleted too.
            targets: list[Json] = [{name: hit[name] for name in ("_id", "_routing") if name in hit} for hit in hits]
            deleted += delete_hits(engine, state, targets, policy)
    retry(partial(engine.refresh, index))
    return deleted
