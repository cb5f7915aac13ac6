"""What a migration came to, for people and for machines."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from es_sbert.ingest.summary import in_passages, truncation_lines


class MigrationResult(BaseModel):
    """A migration's end, or how far it came.

    Attributes:
        alias, source, target: What was migrated, from which index to which.
        model, fingerprint: The new model.
        resumed: Whether it went on with what an earlier run began.
        finished: Whether the alias points to the new index, which has everything.
        copied: Documents copied before the swap, each time they changed.
        removed: Documents removed from the new index because they were deleted from the old one.
        late: Documents that were written in the old index in its last moment, seen to after the swap.
        writes_refused_seconds: How long writes were refused, from the block to the swap; 0 where they were not.
        embedded: Vectors written.
        compared: Vectors that were computed once more and compared before the swap.
        dead: Documents that were copied but could not be embedded.
        dead_letters: The file that names them.
        passages: Passages among the vectors.
        truncated, lost_tokens: Documents whose text is longer than the model reads, and the tokens cut off.
        notes: What else is to be known of the embedding.
        documents: Documents of the new index.
        stopped: Why it is not finished.
        dropped: Whether the old index is gone already.
        seconds: Time of this run, model loading left out.
    """

    model_config = ConfigDict(frozen=True)

    alias: str
    source: str
    target: str
    model: str
    fingerprint: str
    resumed: bool
    finished: bool
    copied: int
    removed: int
    late: int
    writes_refused_seconds: float
    embedded: int
    compared: int
    dead: int
    dead_letters: str | None
    passages: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    notes: tuple[str, ...] = ()
    documents: int
    stopped: str | None
    dropped: bool
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 finished, 1 finished but for documents without a vector, 130 stopped."""
        if not self.finished:
            return 130
        return 1 if self.dead else 0

    def lines(self) -> list[str]:
        """In words, one fact a line."""
        went_on = " (went on where another run ended)" if self.resumed else ""
        lines = [f"{self.alias}: {self.source} → {self.target}, {self.model} ({self.fingerprint[:12]}){went_on}"]
        facts = (
            (self.copied, "copied"),
            (self.embedded, f"embedded{in_passages(self.passages)}"),
            (self.removed, "removed: deleted from the old index meanwhile"),
            (self.late, "written in the last moment before the swap"),
            (self.compared, "vectors computed again and compared"),
            (self.dead, f"without a vector: see {self.dead_letters}"),
        )
        lines += [f"  {count:>11,}  {what}" for count, what in facts if count]
        lines += truncation_lines(self.truncated, self.lost_tokens)
        lines += self.notes
        if self.writes_refused_seconds:
            lines.append(f"Writes to {self.source} were refused for {self.writes_refused_seconds:.2f} s")
        if not self.finished:
            return [*lines, f"Not finished ({self.stopped}): the same command goes on; --rollback gives it up"]
        lines.append(f"{self.documents:,} documents in {self.target}, {self.seconds:,.1f} s")
        if not self.dropped:
            lines.append(f"{self.source} still stands; remove it: `es-sbert index migrate {self.alias} --drop`")
        return lines
