"""Where the pipeline of a load runs: in this process, or on the machines of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from es_sbert.encoder.types import EncoderInfo
from es_sbert.index.meta import PassageRules
from es_sbert.ingest.context import LoadContext
from es_sbert.ingest.memory import LoadIdentity, LoadMemory


@dataclass(frozen=True)
class ModelIdentity:
    """What an index must know of a model.

    Attributes:
        name, fingerprint, dimensions: Of the model.
    """

    name: str
    fingerprint: str
    dimensions: int


class Runner(Protocol):
    """Brings the documents of a load to their ends."""

    @property
    def model(self) -> ModelIdentity:
        """The model that embeds."""

    def check_passages(self, rules: PassageRules) -> None:
        """Make sure that rules go with the model.

        Raises:
            UsageError: they do not.
        """

    def open_memory(self, path: Path, identity: LoadIdentity) -> LoadMemory:
        """What the load remembers, where the runner can use it.

        Raises:
            UsageError: another process is loading with this file.
            OutputError: the file cannot be written.
        """

    def load(self, context: LoadContext) -> EncoderInfo:
        """Bring every document to its end; what embedded, as it really ran.

        Raises:
            EsSbertError: a stage failed (never because of a single document).
        """
