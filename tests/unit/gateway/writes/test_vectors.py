"""Texts of one request become vectors together; what is refused concerns no more of them than it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import EsSbertError, IndexMismatch, ModelError, ModelNotFound, Overloaded
from es_sbert.gateway.embedder import BatchingEmbedder, VectorCache
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.settings import Limits
from es_sbert.gateway.writes.prepare_items import DocumentEmbedder, EmbeddedText
from es_sbert.index.mapping import ChunkRules
from tests.event_loop import in_event_loop
from tests.unit.gateway.encoders import TellingEncoder
from tests.unit.ingest.support import target

PLAIN, OTHER, UNKNOWN, MISMATCH = (target(model=model) for model in ("one", "two", "unknown", "mismatch"))
PARTS = target("parts", model="one", passages=ChunkRules(tokens=4, overlap=0))


class CuttingEncoder(TellingEncoder):
    """Passages of a text are its words."""

    def make_chunker(self, tokens: int, overlap: int, kind: Any) -> Callable[[list[str]], list[list[tuple[int, int]]]]:
        assert (tokens, overlap, kind) == (4, 0, "document")

        def words(text: str) -> list[tuple[int, int]]:
            starts = [at for at in range(len(text)) if text[at] != " " and (at == 0 or text[at - 1] == " ")]
            return [(start, start + len(text[start:].split(" ")[0])) for start in starts]

        return lambda texts: [words(text) for text in texts]


class Served:
    """Two models in place of `ModelRegistry`."""

    def __init__(self, waiting_texts: int = 4096) -> None:
        self.encoders = {name: CuttingEncoder(name) for name in ("one", "two")}
        settings = Limits(waiting_texts=waiting_texts)
        self.embedders = {
            name: BatchingEmbedder(cast(Encoder, encoder), settings, VectorCache(0), GatewayMetrics())
            for name, encoder in self.encoders.items()
        }
        self.vectorize = DocumentEmbedder(cast(ModelRegistry, self), waiting_texts)

    async def get(self, name: str, fingerprint: str) -> BatchingEmbedder:
        assert name == fingerprint
        if name == "mismatch":
            raise IndexMismatch("m", "r")
        if name not in self.embedders:
            raise ModelNotFound("m", "r")
        return self.embedders[name]


def assert_is(made: EmbeddedText | EsSbertError, encoder: TellingEncoder, *texts: str) -> None:
    assert isinstance(made, EmbeddedText)
    assert made.chunked.texts == texts
    np.testing.assert_array_equal(made.vectors, encoder.expected(texts, "document"))
    assert made.tokens == [len(text) + 1 for text in texts]
    assert made.max_tokens == 8


@in_event_loop
async def test_each_text_is_embedded_by_its_model_and_chunk_rules() -> None:
    served = Served()
    one, two = served.encoders["one"], served.encoders["two"]
    assert await served.vectorize([]) == []
    for _ in range(2):
        made = await served.vectorize(
            [
                (PLAIN, "a"),
                (OTHER, "b"),
                (PARTS, "long text in words"),
                (UNKNOWN, "c"),
                (PLAIN, "d"),
                (PARTS, "  "),
                (MISMATCH, "e"),
            ]
        )
        assert_is(made[0], one, "a")
        assert_is(made[1], two, "b")
        assert_is(made[2], one, "long", "text", "in", "words")
        assert_is(made[4], one, "d")
        assert_is(made[5], one, "  ")
        # Clients send a document again that an error of the model's kept back.
        assert all(isinstance(made[number], ModelError) for number in (3, 6))
    # Each text once in each round, in batches of like length.
    assert sum(one.batches) == 14


@in_event_loop
async def test_only_texts_beyond_the_queue_are_rejected() -> None:
    served = Served(waiting_texts=32)
    one = served.encoders["one"]
    one.may_run.clear()
    waiting = asyncio.create_task(served.embedders["one"].embed(["x"] * 31))
    await asyncio.to_thread(one.started.wait, 60)
    made = await served.vectorize([(PLAIN, "a"), (OTHER, "b"), (PLAIN, "c")])
    assert [type(found) for found in made] == [Overloaded, EmbeddedText, Overloaded]
    one.may_run.set()
    await waiting
    assert_is((await served.vectorize([(PARTS, "a b c")]))[0], one, "a", "b", "c")
    for number, made_alone in enumerate(await served.vectorize([(PLAIN, f"text {number}") for number in range(100)])):
        assert_is(made_alone, one, f"text {number}")
