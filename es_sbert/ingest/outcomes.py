"""Where every document's end is entered: the ledger's counts, and a dead letter where it failed."""

from __future__ import annotations

from es_sbert.ingest.dead_letters import DeadLetters
from es_sbert.ingest.ledger import Ledger, Outcome
from es_sbert.ingest.records import Origin, Reject


class Outcomes:
    """Ledger and dead letters as one, so that neither is ever written without the other. Thread-safe."""

    def __init__(self, ledger: Ledger, letters: DeadLetters) -> None:
        self.ledger = ledger
        self.letters = letters

    def read(self) -> None:
        self.ledger.add_read()

    def indexed(self, lost_tokens: int) -> None:
        self.ledger.enter_indexed(lost_tokens)

    def unchanged(self, count: int = 1) -> None:
        self.ledger.enter(Outcome.UNCHANGED, count)

    def empty(self) -> None:
        self.ledger.enter(Outcome.EMPTY)

    def duplicate(self) -> None:
        self.ledger.enter(Outcome.DUPLICATE)

    def deleted(self) -> None:
        self.ledger.enter(Outcome.DELETED)

    def dead(self, origin: Origin, reason: str, document: bytes | None, document_id: str | None) -> None:
        """A document that could not be loaded."""
        self.letters.write(origin, reason, document=document, document_id=document_id)
        self.ledger.enter(Outcome.DEAD)

    def reject(self, reject: Reject) -> None:
        """Input that is not a document."""
        self.letters.write(
            reject.origin, reject.reason, document=reject.document, document_id=reject.id,
            raw=reject.raw, size=reject.size,
        )  # fmt: skip
        self.ledger.enter(Outcome.DEAD)
