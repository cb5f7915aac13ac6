"""The documents of the new index get their vectors: by a load of `es-sbert ingest`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine
from es_sbert.ingest.control import Control
from es_sbert.ingest.local import LocalRunner
from es_sbert.ingest.plan import plan
from es_sbert.ingest.progress import Meter
from es_sbert.ingest.run import run
from es_sbert.ingest.settings import IngestSettings, LoadSettings

_MOST_IDS = 8000


@dataclass
class Embedded:
    """What the loads of a migration came to.

    Attributes:
        documents: Documents that got a vector, some of them more than once.
        dead: Documents that could not be embedded, in the last load.
        stopped: Why the last load did not come to its end; None where it did.
        dead_letters: The file with those documents.
        passages: Passages among the vectors.
        truncated, lost_tokens: Documents whose text is longer than the model reads, and the tokens cut off.
        notes: Warnings and notes of the loads, each once.
    """

    documents: int = 0
    dead: int = 0
    stopped: str | None = None
    dead_letters: Path | None = None
    passages: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    notes: dict[str, None] = field(default_factory=dict)


class Embedding:
    """Embeds whatever lacks a vector: copies never have one, so a vector that is there is current.

    Args:
        engine: Where.
        encoder: Of the new model.
        target: The new index.
        fields: Its vector fields whose text is known; the others have never been loaded.
        control: Stops a load.
        meter: Makes a meter for each load.
        dead_letters: Where documents go that cannot be embedded.
        retry_seconds: How long an engine that refuses is waited for.
    """

    def __init__(self, engine: Engine, encoder: Encoder, target: str, fields: tuple[str, ...], control: Control,
                 meter: Callable[[], Meter], dead_letters: Path | None, retry_seconds: float) -> None:  # fmt: skip
        self._engine = engine
        self._encoder = encoder
        self._target = target
        self._fields = fields
        self._control = control
        self._meter = meter
        self._dead_letters = dead_letters
        self._retry_seconds = retry_seconds
        self.result = Embedded()

    def __call__(self, ids: Collection[str] | None = None) -> bool:
        """Embed; False where it did not come to its end.

        Args:
            ids: Documents that may lack a vector; None where any may.

        Raises:
            EsSbertError: see `run`.
        """
        if not self._fields or (ids is not None and not ids):
            return True
        among = None if ids is None or len(ids) > _MOST_IDS else tuple(ids)
        settings = IngestSettings(
            index=self._target, vectors=self._fields, dead_letters=self._dead_letters, only_lacking=True,
            only_ids=among, load_settings=LoadSettings.KEEP, retry_seconds=self._retry_seconds,
        )  # fmt: skip
        wanted = plan(self._engine, settings)
        # One summary, of the whole migration, is shown at its end.
        summary = run(
            self._engine, LocalRunner(self._encoder), wanted, self._control, self._meter(), show_summary=False
        )
        self.result.documents += summary.indexed
        self.result.passages += summary.passages
        self.result.truncated += summary.truncated
        self.result.lost_tokens += summary.lost_tokens
        self.result.notes |= dict.fromkeys([*(f"Warning: {warning}" for warning in summary.warnings), *summary.notes])
        self.result.dead = summary.dead
        self.result.stopped = summary.stopped
        self.result.dead_letters = wanted.dead_letters if summary.dead else None
        return summary.stopped is None
