"""The report of a load: its summary for people and machines, its log events, its document in a report index."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import EsSbertError, RequestFailed
from es_sbert.index.document_vectors import targets_to_fill
from es_sbert.ingest.ledger import DocumentOutcome, Ledger
from es_sbert.ingest.load_context import LoadContext
from es_sbert.mappings import read_body
from es_sbert.messages import escape_unprintable, log_event, pluralize


class SkippedCounts(BaseModel):
    """Documents left out on purpose.

    Attributes:
        empty: Without text, so without a vector.
        duplicate: Repetitions of a document met before in the same load.
        superseded: Dead letters of which the index holds a later version.
        deleted: Removed from the index while they were being embedded.
    """

    model_config = ConfigDict(frozen=True)

    empty: int
    duplicate: int
    superseded: int
    deleted: int


class LoadReport(BaseModel):
    """A load's result; `read` is the sum of indexed, updated, unchanged, skipped, dead and left.

    Attributes:
        index, engine: Where the documents went.
        source: `files`, `sql` or `index`.
        read: Documents (or what stands where one should) met in the source.
        indexed: Embedded and written.
        updated: Written with the vector they had, since only other fields changed.
        unchanged: Left alone: in the index as they are.
        skipped: Left out on purpose.
        dead: In the dead-letter file.
        left: Read but not sent, because the engine was lost or the user stopped the load: the same command goes on with
            them.
        dead_letters: That file; None where nothing was written to it.
        truncated: Of the indexed, documents whose text is longer than the model reads.
        lost_tokens: Tokens cut off in them, estimated for texts of more than 100,000 characters.
        passages: Passages that got vectors, where texts are cut into passages.
        missing_fields: Field of a text → documents read that lack it, or have null in it.
        retries: Requests and documents sent again.
        seconds: Time of the load, model loading left out.
        documents_per_second: Documents that came to an end over `seconds`; those left for the next run do not count.
        model, fingerprint, variant, precision, provider, device, threads: What embedded, as it really ran.
        warnings: What the encoder wants said.
        interrupted: Whether the user stopped it.
        stopped: Why it stopped before the end of the source, and how it goes on; None where it did not.
        resumed: Whether it went on where another process ended.
        notes: What else must be said.
        pruned: Documents removed from the index, because the source no longer has them.
        missing: Documents that the engine acknowledged and that the index does not hold at the end as they were
            written: it lost writes, or other writers deleted or replaced them.
    """

    model_config = ConfigDict(frozen=True)

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
    truncated: int
    lost_tokens: int
    passages: int = 0
    missing_fields: dict[str, int] = Field(default_factory=dict)
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
    warnings: tuple[str, ...]
    interrupted: bool
    stopped: str | None
    resumed: bool
    notes: tuple[str, ...]
    pruned: int
    missing: int = 0

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        info: EncoderInfo,
        *,
        index: str,
        engine: str,
        source: str,
        dead_letters: str,
        seconds: float,
        interrupted: bool,
        stopped: str | None,
        resumed: bool,
        notes: tuple[str, ...],
        pruned: int,
        missing: int = 0,
    ) -> LoadReport:
        """The summary of a ledger that adds up.

        Raises:
            LedgerError: it does not.
        """
        ledger.verify()
        counts = ledger.counts()
        encoder: dict[str, Any] = {
            name: getattr(info, name)
            for name in ("model", "fingerprint", "variant", "precision", "provider", "device", "threads", "warnings")
        }
        ended = ledger.read - counts[DocumentOutcome.LEFT]
        return cls(
            index=index,
            engine=engine,
            source=source,
            read=ledger.read,
            indexed=counts[DocumentOutcome.INDEXED],
            updated=counts[DocumentOutcome.UPDATED],
            unchanged=counts[DocumentOutcome.UNCHANGED],
            skipped=SkippedCounts(
                empty=counts[DocumentOutcome.EMPTY],
                duplicate=counts[DocumentOutcome.DUPLICATE],
                superseded=counts[DocumentOutcome.SUPERSEDED],
                deleted=counts[DocumentOutcome.DELETED],
            ),
            dead=counts[DocumentOutcome.DEAD],
            left=counts[DocumentOutcome.LEFT],
            dead_letters=dead_letters if counts[DocumentOutcome.DEAD] else None,
            truncated=ledger.truncated,
            lost_tokens=ledger.lost_tokens,
            passages=ledger.passages,
            missing_fields=dict(sorted(ledger.missing_fields.items())),
            retries=ledger.retries,
            seconds=round(seconds, 3),
            documents_per_second=round(ended / seconds, 1) if seconds > 0 else 0.0,
            interrupted=interrupted,
            stopped=stopped,
            resumed=resumed,
            notes=notes,
            pruned=pruned,
            missing=missing,
            **encoder,
        )

    @property
    def exit_code(self) -> int:
        """0 all in, 1 some are not, 2 none could be, 130 stopped by the user."""
        if self.interrupted:
            return 130
        if self.stopped is not None and not (self.indexed or self.updated or self.unchanged):
            return 2
        return 1 if self.dead or self.missing or self.stopped is not None else 0

    def lines(self) -> list[str]:
        """The summary in words, one fact a line."""
        went_on = " (went on where another run ended)" if self.resumed else ""
        lines = [f"{self.index} on {self.engine}: {self.read:,} documents read{went_on}"]
        facts = (
            (self.indexed, f"embedded and indexed{passages_suffix(self.passages)}"),
            (self.updated, "updated, text unchanged"),
            (self.unchanged, "unchanged"),
            (self.skipped.empty, "skipped: no text"),
            (self.skipped.duplicate, "skipped: met before in this load"),
            (self.skipped.superseded, "skipped: the index holds a later version"),
            (self.skipped.deleted, "skipped: deleted from the index meanwhile"),
            (self.dead, f"not loaded: see {self.dead_letters}"),
            (self.left, "left for the next run"),
            (self.missing, "acknowledged by the engine, but missing from the index"),
            (self.pruned, "removed: no longer in the source"),
        )
        lines += [f"  {count:>11,}  {what}" for count, what in facts if count]
        for field, count in self.missing_fields.items():
            which = "all" if count == self.read else f"{count:,}"
            lines.append(f"  {which} documents lack the text field {field}, or have null in it")
        lines += truncation_lines(self.truncated, self.lost_tokens)
        if self.retries:
            lines.append(f"  {self.retries:,} requests or documents had to be sent again")
        threads = f", {self.threads} threads" if self.threads else ""
        lines.append(f"{self.seconds:,.1f} s, {self.documents_per_second:,.0f} documents/s")
        lines.append(
            f"{self.model} ({self.fingerprint[:12]}), {self.precision}, {self.provider} on {self.device}{threads}"
        )
        lines += [f"Warning: {warning}" for warning in self.warnings]
        lines += self.notes
        if self.stopped is not None:
            lines.append(f"Stopped before the end: {self.stopped}")
        return lines


def passages_suffix(count: int) -> str:
    """`, in 1,200 passages`; nothing where no text was cut into passages."""
    return f", in {pluralize(count, 'passage')}" if count else ""


def truncation_lines(truncated: int, lost_tokens: int) -> list[str]:
    """That texts were longer than the model reads, where any was."""
    if not truncated:
        return []
    return [f"  {truncated:,} texts are longer than the model reads: about {lost_tokens:,} tokens were cut off"]


_MAPPING = "common/loads"


def prepare_report_index(engine: Engine, name: str) -> None:
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


def report_document(summary: LoadReport, at: datetime) -> Json:
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


def write_report(engine: Engine, name: str, summary: LoadReport) -> None:
    """Write the report. The load is over by then: where this fails, it is said and changes nothing."""
    document = report_document(summary, datetime.now(UTC))
    try:
        [result] = engine.bulk(name, b'{"create":{}}\n' + orjson.dumps(document) + b"\n")
        failure = None if result.ok else result.reason
    except EsSbertError as error:
        failure = f"{error.message}. {error.remedy}"
    if failure is not None:
        log_event("report_failed", f"the report of this load is not in {name}: {failure}", logging.WARNING, index=name)


def record_start(context: LoadContext, encoder: EncoderInfo) -> None:
    """Tell whoever observes the load what is loaded where, and by what."""
    plan, engine = context.plan, context.engine.info
    context.observer.load_started(plan.settings.index, engine, encoder, context.outcomes.ledger, context.throttle)
    settings = plan.settings.model_dump(
        mode="json", include={"id_field", "batch_window", "bulk_bytes", "retry_seconds", "prune"}
    )
    texts = {target.field: target.template.template for target in targets_to_fill(context.targets)}
    log_event(
        "load_started",
        f"loading into {context.index.name} on {engine.label}",
        index=context.index.name,
        engine=engine.label,
        url=engine.url,
        sources=[source.name for source in plan.sources],
        texts=texts,
        model=encoder.model,
        fingerprint=encoder.fingerprint,
        precision=encoder.precision,
        provider=encoder.provider,
        device=encoder.device,
        threads=encoder.threads,
        state=None if context.checkpoint is None else str(context.checkpoint.path),
        resumed=context.checkpoint is not None and context.checkpoint.resumed,
        dead_letters=str(plan.dead_letters),
        **settings,
    )


def record_watch(context: LoadContext, seconds: float) -> None:
    """The documents that were there have vectors; from now on changes are embedded."""
    index = context.plan.settings.index
    message = f"Watching {escape_unprintable(index)} for changes every {seconds:g} s; Ctrl-C ends the command."
    log_event("watching", message, text=message, index=index, seconds=seconds)


def record_end(summary: LoadReport, *, shown: bool = True) -> None:
    """The summary, after the dead letters where there are any.

    Args:
        shown: Whether a terminal shows it.
    """
    if summary.dead:
        log_event(
            "dead_letters",
            f"{summary.dead:,} documents could not be loaded: see {summary.dead_letters}",
            logging.WARNING,
            text="",
            documents=summary.dead,
            file=summary.dead_letters,
        )
    level = logging.INFO if summary.exit_code == 0 else logging.WARNING
    lines = summary.lines()
    text = "\n".join(map(escape_unprintable, lines)) if shown else ""
    log_event("load_ended", lines[0], level, text=text, exit_code=summary.exit_code, **summary.model_dump(mode="json"))
