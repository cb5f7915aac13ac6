"""`SemanticIndex`: search an index by meaning from Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import numpy as np

from es_sbert.config import DEFAULT_VECTOR_FIELD, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import Vectors
from es_sbert.engines.connect import connect
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import IndexMissing, RequestFailed, UnsupportedEngine, UsageError
from es_sbert.index.ensure import VectorField
from es_sbert.loading import load_encoder
from es_sbert.search.choices import method_for, oversample_for
from es_sbert.search.following import Following, Target
from es_sbert.search.queries import search_body
from es_sbert.search.results import SearchResult, read_answer
from es_sbert.search.scores import Method
from es_sbert.search.vector_query import VectorQuery


class SemanticIndex:
    """An index with a vector field, and the model that fills it.

    Usage:
        with SemanticIndex("docs", "http://localhost:9200") as index:
            for hit in index.search("how do vaccines work", k=5):
                print(hit.cosine, hit.source["title"])

    The mapping says which model made the vectors. That model is loaded on the first search by text, unless
    another is named; a model with another fingerprint is refused, since its vectors mean something else. Where an
    alias goes over to another index, searches by text follow within half a minute, with that index's model; where the
    model or the encoder was given, they go on with the old index as long as it stands. Many threads may search.

    Args:
        index: Index or alias.
        engine: An address, settings, or an engine that is already open (and stays open on `close`).
        model: Model folder, bundle, hub id or installed name.
        encoder: A loaded encoder in place of a model's name; it stays open on `close`.
        vector_field: Field that holds the vectors.
        device, precision, threads, report: For loading the model, see `load_encoder`.

    Raises:
        IndexMissing, IndexMismatch: no such index, no such field, or an encoder of another model.
        UsageError: both a model and an encoder.
        EngineError: the engine cannot be used.
    """

    def __init__(self, index: str, engine: Engine | EngineSettings | str | None = None, *, model: str | None = None,
                 encoder: Encoder | None = None, vector_field: str = DEFAULT_VECTOR_FIELD, device: str = "auto",
                 precision: str = "auto", threads: int | None = None,
                 report: Callable[[str], None] = lambda message: None) -> None:  # fmt: skip
        if model is not None and encoder is not None:
            raise UsageError("both a model and an encoder are given", "Give one of the two.")
        load = partial(load_encoder, device=device, precision=precision, threads=threads, report=report)
        self._following: Following | None = None
        self._owns_engine = engine is None or isinstance(engine, str | EngineSettings)
        self._engine = _open(engine)
        try:
            self._following = Following(self._engine, index, vector_field, load, model=model, encoder=encoder)
        except BaseException:
            self.close()
            raise

    @property
    def field(self) -> VectorField:
        """The vector field that is searched now and what the mapping says about it."""
        return self._followed.field

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use and checked against the mapping.

        Raises:
            IndexMismatch: the model is not the one that made the vectors.
            ModelError, DeviceError: it cannot be loaded.
        """
        return _encoder_of(self._followed.target())

    @property
    def _followed(self) -> Following:
        assert self._following is not None, "open"
        return self._following

    def search(self, text: str, k: int = 10, *, filter: Json | None = None, exact: bool = False,
               num_candidates: int | None = None, oversample: float | None = None) -> SearchResult:  # fmt: skip
        """The k documents nearest in meaning to a text.

        Args:
            filter: Query in the engine's language that every hit must match; applied during the search.
            exact: Compare with every vector instead of searching the graph.
            num_candidates: Vectors each shard looks at; more is slower and misses less.
            oversample: On a quantised index type: the nearest `oversample * k` are compared again by float32 vectors;
                None takes what suits the type (`es-sbert index recall` measures it).

        Raises:
            UsageError: an empty text, k, num_candidates or oversample out of range, or an oversample on an index type
                that is not quantised.
            UnsupportedEngine: exact search on a server without scripting.
            EngineError: the engine failed, or does not understand the filter.
        """
        _check_text(text)
        how = _How(k, filter, exact, num_candidates, oversample)
        target = self._followed.target()
        try:
            return self._search(target.field, _encode(target, text), how)
        except IndexMissing:
            # Its alias may stand for another index by now, of another model (`es-sbert index migrate`).
            target = self._followed.after(target)
            return self._search(target.field, _encode(target, text), how)

    def search_vector(self, vector: Vectors, k: int = 10, *, filter: Json | None = None, exact: bool = False,
                      num_candidates: int | None = None, oversample: float | None = None) -> SearchResult:  # fmt: skip
        """As `search`, by a vector of the field's own model.

        Args:
            vector: *Shape:* ``(dimensions,)``, of the model in `field.meta`.

        Raises:
            IndexMissing: the index is gone, though its alias may stand for another one: open it again.
        """
        return self._search(self.field, vector, _How(k, filter, exact, num_candidates, oversample))

    def _search(self, field: VectorField, vector: Vectors, how: _How) -> SearchResult:
        method = self._method(field, how.exact)
        body = self._body(field, vector, method, how)
        try:
            answer = self._engine.search(field.index, body)
        except RequestFailed as error:
            if method is Method.EXACT and "script_lang not supported" in error.message:
                raise UnsupportedEngine(
                    f"{self._engine.info.label} has no scripting, which exact search in an index of type "
                    f"{field.meta.index_type} needs",
                    "Search without exact, or load the documents with --index-type flat, where kNN is exact.",
                ) from error
            raise
        return read_answer(answer, self._engine.info.flavour, method, field.name, field.meta)

    def body(self, text: str, k: int = 10, *, filter: Json | None = None, exact: bool = False,
             num_candidates: int | None = None, oversample: float | None = None) -> Json:  # fmt: skip
        """The request body that `search` would send to `POST /index/_search`, to use anywhere."""
        _check_text(text)
        target = self._followed.target()
        method = self._method(target.field, exact)
        how = _How(k, filter, exact, num_candidates, oversample)
        return self._body(target.field, _encode(target, text), method, how)

    def _body(self, field: VectorField, vector: Vectors, method: Method, how: _How) -> Json:
        vector = np.asarray(vector, dtype=np.float32)
        if vector.shape != (field.meta.dimensions,):
            raise UsageError(
                f"the query vector has the shape {vector.shape}, the field's vectors ({field.meta.dimensions},)",
                f"Make it with the model {field.meta.model}.",
            )
        query = VectorQuery(
            field.name, vector, how.k, how.filter, how.num_candidates, oversample_for(field.meta, how.oversample),
            passages=field.meta.passages is not None, inner_hits=field.name,
        )  # fmt: skip
        return search_body(self._engine.info.flavour, method, query)

    def _method(self, field: VectorField, exact: bool) -> Method:
        return method_for(self._engine.info.flavour, field.meta, exact)

    def close(self) -> None:
        """Close what this object opened itself."""
        if self._following is not None:
            self._following.close()
        if self._owns_engine:
            self._engine.close()

    def __enter__(self) -> SemanticIndex:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()


@dataclass(frozen=True)
class _How:
    """What a search asks for beside the text; see `SemanticIndex.search`."""

    k: int
    filter: Json | None
    exact: bool
    num_candidates: int | None
    oversample: float | None


def _check_text(text: str) -> None:
    if not text.strip():
        raise UsageError("the text to search for is empty", "Give some words to search by.")


def _encode(target: Target, text: str) -> Vectors:
    """*Shape:* ``(dimensions,)``."""
    vector: Vectors = _encoder_of(target).encode([text], "query").vectors[0]
    return vector


def _encoder_of(target: Target) -> Encoder:
    assert target.encoder is not None, "a target that was taken has its encoder"
    return target.encoder


def _open(engine: Engine | EngineSettings | str | None) -> Engine:
    if engine is None:
        return connect(EngineSettings())
    if isinstance(engine, str):
        return connect(EngineSettings(url=engine))
    return connect(engine) if isinstance(engine, EngineSettings) else engine
