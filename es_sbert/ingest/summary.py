"""What a load did, for people and for machines."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from es_sbert.encoder.types import EncoderInfo
from es_sbert.ingest.ledger import Ledger, Outcome
from es_sbert.printable import counted


class Skipped(BaseModel):
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


class Summary(BaseModel):
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
    skipped: Skipped
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
    def of(cls, ledger: Ledger, info: EncoderInfo, *, index: str, engine: str, source: str, dead_letters: str,
           seconds: float, interrupted: bool, stopped: str | None, resumed: bool,
           notes: tuple[str, ...], pruned: int, missing: int = 0) -> Summary:  # fmt: skip
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
        ended = ledger.read - counts[Outcome.LEFT]
        return cls(
            index=index, engine=engine, source=source, read=ledger.read, indexed=counts[Outcome.INDEXED],
            updated=counts[Outcome.UPDATED], unchanged=counts[Outcome.UNCHANGED],
            skipped=Skipped(
                empty=counts[Outcome.EMPTY], duplicate=counts[Outcome.DUPLICATE],
                superseded=counts[Outcome.SUPERSEDED], deleted=counts[Outcome.DELETED],
            ),
            dead=counts[Outcome.DEAD], left=counts[Outcome.LEFT],
            dead_letters=dead_letters if counts[Outcome.DEAD] else None,
            truncated=ledger.truncated, lost_tokens=ledger.lost_tokens, passages=ledger.passages,
            missing_fields=dict(sorted(ledger.lacking.items())), retries=ledger.retries,
            seconds=round(seconds, 3), documents_per_second=round(ended / seconds, 1) if seconds > 0 else 0.0,
            interrupted=interrupted, stopped=stopped, resumed=resumed, notes=notes,
            pruned=pruned, missing=missing, **encoder,
        )  # fmt: skip

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
            (self.indexed, f"embedded and indexed{in_passages(self.passages)}"),
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


def in_passages(count: int) -> str:
    """`, in 1,200 passages`; nothing where no text was cut into passages."""
    return f", in {counted(count, 'passage')}" if count else ""


def truncation_lines(truncated: int, lost_tokens: int) -> list[str]:
    """That texts were longer than the model reads, where any was."""
    if not truncated:
        return []
    return [f"  {truncated:,} texts are longer than the model reads: about {lost_tokens:,} tokens were cut off"]
