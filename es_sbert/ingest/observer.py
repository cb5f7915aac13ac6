"""Who observes a load from outside, beside its progress: metrics, for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from es_sbert.encoder.types import EncoderInfo
from es_sbert.engines.protocol import EngineInfo
from es_sbert.ingest.ledger import Ledger
from es_sbert.ingest.progress import Snapshot
from es_sbert.ingest.throttle import Throttle


class Observer(Protocol):
    """Told of a load's beginning, and then called from its threads."""

    def began(self, index: str, engine: EngineInfo, encoder: EncoderInfo, ledger: Ledger, throttle: Throttle) -> None:
        """A load begins; its counts and limits can be read from now on."""

    def show(self, snapshot: Snapshot) -> None:
        """How far it is; several times a second, from one thread."""

    def bulk(self, body_bytes: int) -> AbstractContextManager[None]:
        """Around one bulk request."""

    def embed(self) -> AbstractContextManager[None]:
        """Around the embedding of one window of texts."""


class Unobserved:
    """Nobody does."""

    def began(self, index: str, engine: EngineInfo, encoder: EncoderInfo, ledger: Ledger, throttle: Throttle) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        pass

    @contextmanager
    def bulk(self, body_bytes: int) -> Iterator[None]:
        yield

    @contextmanager
    def embed(self) -> Iterator[None]:
        yield
