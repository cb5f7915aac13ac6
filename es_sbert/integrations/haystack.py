"""Haystack components that embed with es-sbert's models (extra `haystack`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Self

import numpy as np

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError, require_extra
from es_sbert.index.byte_vectors import quantize_vectors
from es_sbert.vectors import Vectors

require_extra("haystack", "haystack")
from haystack import Document, component, default_from_dict, default_to_dict  # noqa: E402  (after the extra's check)


class _Embedder:
    """The base of both components: settings that can be serialized, and an encoder from `warm_up` to `close`.

    Args:
        model: Model folder, bundle, hub id, installed or registered name; `all-MiniLM-L6-v2` by default.
        device, precision, runtime, threads: See `Encoder`.
        element_type: `byte` for stores over a vector field of bytes, where engines accept only whole numbers (here from
            -127 to 127); `float` for all other fields.

    Raises:
        UsageError: the element type is unknown.
        ModelError, DeviceError, UsageError: the model cannot be loaded (raised by `warm_up`).
    """

    def __init__(
        self,
        model: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        runtime: str = "auto",
        threads: int | None = None,
        element_type: str = "float",
    ) -> None:
        if element_type not in ("float", "byte"):
            raise UsageError(f"unknown element type {element_type!r}", "Use float or byte.")
        self.element_type = element_type
        self.model = model
        self.device = device
        self.precision = precision
        self.runtime = runtime
        self.threads = threads
        self._encoder: Encoder | None = None

    _kind: PromptKind

    def warm_up(self) -> None:
        """Load the model; `run` does so if needed."""
        if self._encoder is None:
            self._encoder = Encoder(
                self.model,
                kind=self._kind,
                device=self.device,
                precision=self.precision,
                runtime=self.runtime,
                threads=self.threads,
            )

    def close(self) -> None:
        """Stop the encoder's threads; the next `run` loads the model again."""
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None

    @property
    def encoder(self) -> Encoder:
        self.warm_up()
        assert self._encoder is not None, "warm_up has loaded it"
        return self._encoder

    def to_dict(self) -> dict[str, Any]:
        """Convert the component to a dictionary, which Haystack writes to a pipeline's YAML."""
        data: dict[str, Any] = default_to_dict(self, **self._settings())
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Create a component from a dictionary that `to_dict` returned."""
        made: Self = default_from_dict(cls, data)
        return made

    def _settings(self) -> dict[str, Any]:
        names = ("model", "device", "precision", "runtime", "threads", "element_type")
        return {name: getattr(self, name) for name in names}

    def _numbers(self, vectors: Vectors) -> list[Any]:
        """Convert vectors to lists of floats, the type that Haystack declares."""
        if self.element_type == "byte":
            vectors = quantize_vectors(vectors).astype(np.float32)
        numbers: list[Any] = vectors.tolist()
        return numbers

    def _about(self) -> dict[str, Any]:
        info = self.encoder.info
        return {"model": info.model, "fingerprint": info.fingerprint}


@component
class SbertTextEmbedder(_Embedder):
    """Embeds a query, with the model's query prompt if it has one.

    Usage:
        ```python
        pipeline.add_component("embedder", SbertTextEmbedder("all-MiniLM-L6-v2"))
        pipeline.connect("embedder.embedding", "retriever.query_embedding")
        ```

    Args:
        model, device, precision, runtime, threads: See `Encoder`.
        element_type: `byte` for stores over a vector field of bytes.
    """

    _kind = "query"

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """Embed one text.

        Returns:
            `embedding`, and `meta` with model and fingerprint.

        Raises:
            UsageError: the text is not a string.
        """
        if not isinstance(text, str):
            raise UsageError(f"the query must be a string, not {type(text).__name__}", "Pass a single string.")
        return {"embedding": self._numbers(self.encoder.encode(text, "query")), "meta": self._about()}

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    async def run_async(self, text: str) -> dict[str, Any]:
        """Like `run`, in a thread, so that the event loop is not blocked."""
        return await asyncio.to_thread(self.run, text)


@component
class SbertDocumentEmbedder(_Embedder):
    """Embeds documents, with the model's document prompt if it has one.

    Usage:
        ```python
        pipeline.add_component("embedder", SbertDocumentEmbedder("all-MiniLM-L6-v2"))
        pipeline.connect("embedder.documents", "writer.documents")
        ```

    Args:
        model, device, precision, runtime, threads: See `Encoder`.
        element_type: `byte` for stores over a vector field of bytes.
        meta_fields_to_embed: Names in `Document.meta` whose values are embedded in front of the content.
        embedding_separator: Separator between those values and the content.
    """

    _kind = "document"

    def __init__(
        self,
        model: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        runtime: str = "auto",
        threads: int | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        element_type: str = "float",
    ) -> None:
        # Name the base class, because @component replaces the class and super() would look for the original one.
        _Embedder.__init__(self, model, device, precision, runtime, threads, element_type)
        self.meta_fields_to_embed = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator

    def _settings(self) -> dict[str, Any]:
        return _Embedder._settings(self) | {
            "meta_fields_to_embed": self.meta_fields_to_embed,
            "embedding_separator": self.embedding_separator,
        }

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embed documents; the given documents are not changed.

        Returns:
            `documents`, copies with their embeddings, and `meta` with model, fingerprint and the number of documents
            that are longer than the model reads (`truncated`).

        Raises:
            UsageError: the argument is not a list of documents.
        """
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise UsageError("SbertDocumentEmbedder takes a list of Documents", "Embed a text with SbertTextEmbedder.")
        encoded = self.encoder.encode_details([self._text(document) for document in documents], "document")
        embedded = [
            replace(document, embedding=vector)
            for document, vector in zip(documents, self._numbers(encoded.vectors), strict=True)
        ]
        return {"documents": embedded, "meta": self._about() | {"truncated": int(encoded.truncated.sum())}}

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """Like `run`, in a thread, so that the event loop is not blocked."""
        return await asyncio.to_thread(self.run, documents)

    def _text(self, document: Document) -> str:
        values = (document.meta.get(name) for name in self.meta_fields_to_embed)
        return self.embedding_separator.join(
            [*(str(value) for value in values if value is not None), document.content or ""]
        )
