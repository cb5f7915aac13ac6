"""The report of a load: its summary as text and JSON, and its log events."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import BaseModel, Field

from es_sbert.encoder.encoder import preparation_text
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.index.document_vectors import targets_to_fill
from es_sbert.index.text_languages import language_warning
from es_sbert.ingest.ledger import Ledger
from es_sbert.ingest.load_plan import LoadContext
from es_sbert.messages import be, escape_unprintable, have, log_event, pluralize, setting

_ENCODER_FIELDS = (
    "model",
    "fingerprint",
    "variant",
    "precision",
    "provider",
    "device",
    "threads",
    "warnings",
    "prepared_seconds",
)


class SkippedCounts(BaseModel, frozen=True):
    """Documents left out on purpose.

    Usage:
        ```python
        report = index.add([{"_id": "1", "title": "Rain", "body": "Where it falls."}] * 2)
        print(report.skipped.duplicate)  # 1
        ```

    Attributes:
        empty: Without text, so without a vector.
        duplicate: Documents that were read before in the same load.
        superseded: Dead letters of which the index holds a newer version. In a watch, versions that another writer
            replaced while they were being embedded.
        deleted: Removed from the index while they were being embedded.
    """

    empty: int
    duplicate: int
    superseded: int
    deleted: int


class ConcurrentChanges(BaseModel, frozen=True):
    """Changes by other programs during a load, which another run of the load would undo.

    Usage:
        ```python
        report = index.embed_missing()
        print(report.concurrent.changed)
        ```

    Attributes:
        deleted: Documents that the load wrote or found unchanged and that have been deleted since then.
        changed: Documents that the load wrote or found unchanged and that have been written since then: they have no
            current vector or, in a load of files, content that differs from the source's.
        unseen: In a load of the index's own documents: other documents that were written during the load and have no
            current vector.
    """

    deleted: int = 0
    changed: int = 0
    unseen: int = 0


class LoadReport(BaseModel, frozen=True):
    """A load's result; `read` is the sum of indexed, updated, unchanged, skipped, dead and left.

    Usage:
        ```python
        report = index.add([{"_id": "1", "title": "Rain", "body": "Where it falls."}])
        print(report.indexed, report.unchanged, report.rejected, report.stopped)
        ```

    Attributes:
        index, engine: Target of the documents.
        source: `files` or `index`.
        read: Records read from the source.
        indexed: Embedded and written.
        updated: Written with the vector they had, since only other fields changed.
        unchanged: Not written, because the index already holds them unchanged.
        skipped: Left out on purpose.
        dead: Could not be loaded: in the dead-letter file, or in `rejected`.
        left: Read but not sent, because the engine was unreachable or the user stopped the load: the same command loads
            them.
        dead_letters: The dead-letter file; None if nothing was written to it.
        rejected: For documents from Python, the dead letters if no file was named: one dict per document, with its
            `id`, the `reason`, its number as `line`, and the `document`. Not part of `model_dump`.
        truncated: Indexed documents whose text is longer than the model reads.
        lost_tokens: Tokens cut off in truncated documents, estimated for texts of more than 100,000 characters.
        words, new_words: Words of the texts that were embedded, and how many of these the tokenizer had to read: the
            others came from its cache of words. 0 for models whose tokenizer does not read each word alone.
        passages: Number of passages that got a vector; 0 if texts are not split into passages.
        missing_fields: Field of a text → documents read that lack it, or have null in it.
        languages: Language (ISO 639-1), or `unknown` → texts, in a random sample of at most 1,000 texts that were
            embedded.
        retries: Requests and documents sent again.
        seconds: Duration of the load, without loading the model.
        documents_per_second: Documents with an outcome per second; those left for the next run do not count.
        model, fingerprint, variant, precision, provider, device, threads: Actual settings of the encoder.
        prepared_seconds: Time to export the model before the load; 0 if it was in the cache.
        warnings: Warnings of the encoder, and one if many texts are in languages that the model was not trained on.
        interrupted: Whether the user stopped the load.
        stopped: Reason why the load stopped before the end of the source, and how to resume; None if it did not.
        resumed: Whether the load resumed that of an earlier process.
        notes: Further notes.
        pruned: Documents removed from the index, because the source no longer has them.
        missing: Documents that the engine acknowledged but that are gone at the end, or present in an earlier version:
            the engine has lost writes. If a shard failed, another program may also have deleted them.
        concurrent: Changes by other programs. They do not affect the exit code.
        lacking: For a watch, the documents with text that lacked a current vector at its end, with those of `left`.
            None for other loads, or if the check failed.
    """

    index: str
    engine: str
    source: str
    read: int
    indexed: int
    updated: int
    unchanged: int
    skipped: SkippedCounts
    dead: int
    left: int
    dead_letters: str | None
    rejected: tuple[dict[str, Any], ...] = Field(default=(), exclude=True)
    truncated: int
    lost_tokens: int
    words: int = 0
    new_words: int = 0
    passages: int = 0
    missing_fields: dict[str, int] = Field(default_factory=dict)
    languages: dict[str, int] = Field(default_factory=dict)
    retries: int
    seconds: float
    documents_per_second: float
    model: str
    fingerprint: str
    variant: str
    precision: str
    provider: str
    device: str
    threads: int
    prepared_seconds: float = 0.0
    warnings: tuple[str, ...]
    interrupted: bool
    stopped: str | None
    resumed: bool
    notes: tuple[str, ...]
    pruned: int
    missing: int = 0
    concurrent: ConcurrentChanges = ConcurrentChanges()
    lacking: int | None = None

    @classmethod
    def from_ledger(
        cls, ledger: Ledger, info: EncoderInfo, *, index: str, seconds: float, dead_letters: str, **facts: Any
    ) -> LoadReport:
        """Create the report from a ledger, after checking that the ledger adds up.

        Args:
            index: Name of the index.
            dead_letters: The dead-letter file.
            facts: The fields that neither the ledger nor the encoder has.

        Raises:
            LedgerError: the ledger does not add up.
        """
        ledger.verify()
        counts: dict[str, Any] = ledger.counts()
        languages = ledger.languages.counts()
        of_languages = language_warning(languages, index, info.model, info.fingerprint)
        of_encoder = {name: getattr(info, name) for name in _ENCODER_FIELDS}
        if of_languages is not None:
            of_encoder["warnings"] = (*info.warnings, ". ".join(of_languages))
        return cls(
            index=index,
            read=ledger.read,
            **{name: counts[name] for name in ("indexed", "updated", "unchanged", "dead", "left")},
            skipped=SkippedCounts(**{name: counts[name] for name in SkippedCounts.model_fields}),
            dead_letters=dead_letters if counts["dead"] else None,
            **{name: getattr(ledger, name) for name in ("truncated", "lost_tokens", "words", "new_words", "retries")},
            passages=ledger.chunks,
            missing_fields=dict(sorted(ledger.missing_fields.items())),
            languages=languages,
            seconds=round(seconds, 3),
            documents_per_second=round((ledger.read - counts["left"]) / seconds, 1) if seconds > 0 else 0.0,
            **of_encoder,
            **facts,
        )

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    @property
    def exit_code(self) -> int:
        """0: all documents are indexed; 1: some are not; 2: the load failed, and none is; 130: the user stopped it.

        A watch that the user stopped has 0 or 1.
        """
        if self.interrupted:
            return 130
        is_watch = self.lacking is not None
        if not (self.dead or self.missing or self.left or self.lacking or self.stopped is not None):
            return 0
        if is_watch:
            return 1
        loaded = self.indexed or self.updated or self.unchanged or self.pruned or self.skipped.superseded
        return 2 if (self.dead or self.stopped is not None) and not loaded else 1

    def lines(self) -> list[str]:
        """The summary as text, one fact per line."""
        resumed = " (resumed)" if self.resumed else ""
        lines = [f"{self.index} on {self.engine}: {pluralize(self.read, 'document')} read{resumed}"]
        facts = (
            (self.indexed, f"embedded and indexed{passages_suffix(self.passages)}"),
            (self.updated, "updated, text unchanged"),
            (self.unchanged, "unchanged"),
            (self.skipped.empty, "skipped: no text"),
            (self.skipped.duplicate, "skipped: duplicate in this load"),
            (self.skipped.superseded, "skipped: the index holds a later version"),
            (self.skipped.deleted, "skipped: deleted from the index during the load"),
            (self.dead, f"not loaded: see {self.dead_letters or 'LoadReport.rejected'}"),
            (self.left, "left for the next run"),
            (self.missing, "lost by the engine after it had acknowledged them"),
            (self.pruned, "removed: no longer in the source"),
        )
        lines += [f"  {count:>11,}  {what}" for count, what in facts if count]
        for field, count in self.missing_fields.items():
            which = "all documents" if count == self.read > 1 else pluralize(count, "document")
            lacks = "lacks" if count == 1 else "lack"
            lines.append(f"  {which} {lacks} the text field {field}, or {have(count)} null in it")
        lines += truncation_lines(self.truncated, self.indexed, self.lost_tokens)
        if self.retries:
            lines.append(f"  requests or documents were sent again {pluralize(self.retries, 'time')}")
        threads = f", {pluralize(self.threads, 'thread')}" if self.threads else ""
        prepared = preparation_text(self.prepared_seconds)
        lines.append(f"{self.seconds:,.1f} s, {self.documents_per_second:,.0f} documents/s{prepared}")
        lines.append(
            f"{self.model} ({self.fingerprint[:12]}), {self.precision}, {self.provider} on {self.device}{threads}"
        )
        lines += [f"Warning: {warning}" for warning in self.warnings]
        lines += self.notes
        if self.lacking == 0 and self.stopped is None:
            lines.append("Checked at the end: every document has its vector")
        if self.stopped is not None:
            lines.append(f"Stopped before the end: {self.stopped}")
        return lines


def passages_suffix(count: int) -> str:
    """`, in 1,200 passages`; empty if no text was split into passages."""
    return f", in {pluralize(count, 'passage')}" if count else ""


def truncation_lines(truncated: int, embedded: int, lost_tokens: int) -> list[str]:
    """Lines about texts that were longer than the model reads; none if there were no such texts."""
    if not truncated:
        return []
    share = f" ({truncated / embedded:.1%})" if embedded > truncated else ""
    cut = f"about {pluralize(lost_tokens, 'token')} {be(lost_tokens, past=True)} cut off"
    return [
        f"  {pluralize(truncated, 'text')}{share} {be(truncated)} longer than the model reads: {cut}",
        f"  To search their ends too, embed them in passages: {setting('passages', 256)}, into another "
        f"{setting('vector_field')} or index",
    ]


def record_start(context: LoadContext, encoder: EncoderInfo) -> None:
    """Log that the load starts."""
    plan, engine = context.plan, context.engine.info
    settings = plan.settings.model_dump(
        mode="json", include={"id_field", "batch_window", "bulk_bytes", "retry_seconds", "prune"}
    )
    texts = {target.field: target.template.template for target in targets_to_fill(context.targets)}
    log_event(
        "load_started",
        f"loading into {context.index.concrete} on {engine.label}",
        index=context.index.concrete,
        engine=engine.label,
        url=engine.url,
        sources=[source.name for source in plan.sources],
        texts=texts,
        **{name: getattr(encoder, name) for name in _ENCODER_FIELDS if name not in ("variant", "warnings")},
        state=None if context.checkpoint is None else str(context.checkpoint.path),
        resumed=context.checkpoint is not None and context.checkpoint.resumed,
        dead_letters=plan.dead_letters_place,
        **settings,
    )


def record_end(summary: LoadReport, *, shown: bool = True) -> None:
    """Log the summary, after a warning if there are dead letters.

    Args:
        shown: Whether a terminal shows it.
    """
    if summary.dead:
        message = f"{pluralize(summary.dead, 'document')} could not be loaded: see {summary.dead_letters}"
        facts = {"documents": summary.dead, "file": summary.dead_letters}
        log_event("dead_letters", message, logging.WARNING, text="", **facts)
    level = logging.INFO if summary.exit_code == 0 else logging.WARNING
    lines = summary.lines()
    text = "\n".join(map(escape_unprintable, lines)) if shown else ""
    log_event("load_ended", lines[0], level, text=text, exit_code=summary.exit_code, **summary.model_dump(mode="json"))
