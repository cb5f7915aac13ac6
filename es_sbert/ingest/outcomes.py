"""Where every document's end is entered: the ledger's counts, the load's state, a dead letter where it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from es_sbert.ingest.dead_letters import Letters
from es_sbert.ingest.error_limit import MIN_READ, ErrorMonitor
from es_sbert.ingest.ledger import Ledger, Outcome
from es_sbert.ingest.memory import LoadMemory
from es_sbert.ingest.records import Origin, Reject


class Outcomes:
    """Ledger, memory and dead letters as one, so that none is ever written without the others. Thread-safe.

    Args:
        ledger: Counts.
        letters: Where documents go that cannot be loaded.
        memory: Remembers what the index holds; None where the index itself is the source.
        errors: Stops the load when too many documents fail; None where nothing does.

    Attributes:
        rejected: Records that are no documents.
        dropped: Vector field → documents whose vector there stood for a text that they no longer have, and that this
            load does not fill.
    """

    def __init__(self, ledger: Ledger, letters: Letters, memory: LoadMemory | None = None,
                 errors: ErrorMonitor | None = None) -> None:  # fmt: skip
        self.ledger = ledger
        self.letters = letters
        self._memory = memory
        self._errors = errors
        self.rejected = 0  # records that are no documents: which one of the index stands for them is not known
        self.dropped: Counter[str] = Counter()

    def read(self) -> None:
        self.ledger.add_read()
        if self.ledger.read == MIN_READ:
            # From here on earlier failures count. Later, only a further failure can exceed the limit.
            self.check_errors()

    def lacking(self, fields: Sequence[str]) -> None:
        """A document lacks these fields of its text."""
        if fields:
            self.ledger.add_lacking(fields)

    def check_errors(self, reasons: Iterable[str] = ()) -> None:
        """Stop the load if too many documents have failed.

        Args:
            reasons: Why further ones have failed.
        """
        if self._errors is not None:
            for reason in reasons:
                self._errors.add(reason)
            self._errors.check(self.ledger.read, self.ledger.dead)

    def acknowledged(self, document_ids: Sequence[str]) -> None:
        """The index holds these documents as they stand in the source."""
        if self._memory is not None and document_ids:
            self._memory.acknowledge(document_ids)

    def indexed(self, lost_tokens: int, passages: int) -> None:
        self.ledger.enter_indexed(lost_tokens, passages)

    def unchanged(self, count: int = 1) -> None:
        self.ledger.enter(Outcome.UNCHANGED, count)

    def empty(self, count: int = 1) -> None:
        self.ledger.enter(Outcome.EMPTY, count)

    def duplicate(self) -> None:
        self.ledger.enter(Outcome.DUPLICATE)

    def left(self, count: int) -> None:
        """Documents that were not sent; nothing is the matter with them."""
        self.ledger.enter(Outcome.LEFT, count)

    def superseded(self, count: int) -> None:
        self.ledger.enter(Outcome.SUPERSEDED, count)

    def drop(self, fields: Iterable[str]) -> None:
        """A document is written without these vectors."""
        self.dropped.update(fields)

    def deleted(self) -> None:
        self.ledger.enter(Outcome.DELETED)

    def dead(self, origin: Origin, reason: str, document: bytes | None, document_id: str | None, *,
             partial: bool = False) -> None:  # fmt: skip
        """A document that could not be loaded; `partial`: what is at hand of it is not the whole."""
        self.letters.write(origin, reason, document=document, document_id=document_id, partial=partial)
        self.ledger.enter(Outcome.DEAD)
        self.check_errors([reason])

    def reject(self, reject: Reject) -> None:
        """Input that is not a document."""
        self.rejected += 1
        self.letters.write(
            reject.origin, reject.reason, document=reject.document, document_id=reject.id,
            raw=reject.raw, size=reject.size, partial=reject.partial,
        )  # fmt: skip
        self.ledger.enter(Outcome.DEAD)
        self.check_errors([reject.reason])
