"""Keyword arguments of the library that are options of the command line too: type, default, range and meaning.

Each class declares its settings once. `spell_out` (arguments.py) shows them in signatures, `check_arguments` checks
them, and the command line makes its options of them (cli/options.py), with the help of the "Attributes" here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

from pydantic import Field, NonNegativeInt

from es_sbert.config import DEFAULT_VECTOR_FIELD

Count: TypeAlias = Annotated[int, Field(ge=1)]
Seconds: TypeAlias = Annotated[float, Field(ge=0)]


def no_report(message: str) -> None:
    """Drop a message."""


class RunOptions(TypedDict, total=False):
    """How a model runs.

    Attributes:
        device: auto, cpu, cuda or cuda:N. cuda fails if CUDA is not available.
        precision: auto: fp16 on CUDA; on a CPU usually the fastest of bf16, int8 and fp32.
        runtime: Runtime of the model. With `precision` auto: usually the fastest on this kind of processor.
        threads: CPU threads; on CUDA, parallel batches. [default: number of cores; 2 on CUDA]
    """

    device: Annotated[str, Field("auto")]
    precision: Annotated[str, Field("auto")]
    runtime: Annotated[str, Field("auto")]
    threads: Count | None


class LoadOptions(RunOptions, total=False):
    """Keyword arguments that open a model.

    Attributes:
        budget: Tokens of one batch, see `Encoder`.
        report: Called with a message before slow steps.
    """

    budget: Count | None
    report: Annotated[Callable[[str], None], Field(no_report)]


class ModelName(TypedDict, total=False):
    """The model of an index.

    Attributes:
        model: Model folder, bundle, hub id, or installed or registered name; MODEL@N truncates vectors to N dimensions.
            [default: all-MiniLM-L6-v2, or the model of the index]
    """

    model: str | Path | None


class VectorFieldName(TypedDict, total=False):
    """A vector field of an index.

    Attributes:
        vector_field: Field that holds the vector.
    """

    vector_field: Annotated[str, Field(DEFAULT_VECTOR_FIELD)]


class IndexOptions(TypedDict, total=False):
    """Keyword arguments of a new index or vector field; all are optional.

    Attributes:
        text_fields: Field of the text that is embedded, dotted if nested; may be repeated. Several fields, and the
            values of a list, are joined by line feeds. [default: left to the first `es-sbert ingest`]
        text_template: Text made of several fields, e.g. '{title}. {body}'.
        index_type: Index type of the vectors: hnsw, int8_hnsw, int4_hnsw, bbq_hnsw, flat, int8_flat, int4_flat,
            bbq_flat; OpenSearch: hnsw, int8_hnsw, from 3.0 on flat. [default: hnsw]
        passages: One vector per passage of at most TOKENS tokens. [default: one vector per document]
        passage_overlap: Maximum tokens that a passage shares with the next. [default: an eighth of `passages`]
        shards: Primary shards. [default: the engine's]
        replicas: Copies of each shard. [default: the engine's]
    """

    text_fields: Annotated[Sequence[str], Field(())]
    text_template: str | None
    index_type: str | None
    passages: Count | None
    passage_overlap: NonNegativeInt | None
    shards: Count | None
    replicas: NonNegativeInt | None


class MigrationOptions(TypedDict, total=False):
    """Keyword arguments of a migration.

    Attributes:
        index_type: Index type of the new vectors: hnsw, int8_hnsw, int4_hnsw, bbq_hnsw, flat, int8_flat, int4_flat,
            bbq_flat; OpenSearch: hnsw, int8_hnsw, from 3.0 on flat. [default: unchanged]
    """

    index_type: str | None


class SearchOptions(TypedDict, total=False):
    """Keyword arguments of a search; all may be left out.

    Attributes:
        filter: Query in the engine's language that every hit must match, or several; applied during the search.
        exact: Compare with every vector instead of searching the graph.
        num_candidates: Candidates per shard; more are slower and miss fewer hits. [default: twice k, at least 100]
        oversample: On a quantized index type: the nearest `oversample * k` are compared again by float32 vectors;
            the default suits the type (`es-sbert index advise` measures it).
        min_cosine: Drop hits whose cosine, -1 to 1, is below this value. [default: none; with `hybrid` that of es-sbert
            index calibrate --save]
        source: Fields of the documents (names or patterns); None for all, False for none. Vectors are never among them.
        highlight: Fields in which the query's words are highlighted; or the engine's own `highlight`.
        allow_partial: If some shards fail, show the hits of the others, with a warning. [default: fail]
    """

    filter: dict[str, Any] | Sequence[dict[str, Any]] | None
    exact: Annotated[bool, Field(False)]
    num_candidates: int | None
    oversample: float | None
    min_cosine: float | None
    source: Sequence[str] | bool | None
    highlight: Sequence[str] | dict[str, Any] | None
    allow_partial: Annotated[bool, Field(False)]


class HybridOptions(SearchOptions, total=False):
    """Keyword arguments of a hybrid search, in addition to those of any search; all may be left out.

    Attributes:
        weights: Semantic and keyword weight; the default is measured, see docs/search.md.
        lexical_fields: Fields of the keyword query and of exact matches; by default those of the embedded text.
        min_cosine: Minimum cosine of the semantic search; by default the value that `es-sbert index calibrate --save`
            stored. -1 drops nothing.
    """

    weights: Sequence[float] | None
    lexical_fields: Sequence[str] | None


class RetryOptions(TypedDict, total=False):
    """How long requests are repeated.

    Attributes:
        retry_seconds: Maximum time to retry while the engine is overloaded or does not respond.
    """

    retry_seconds: Annotated[Seconds, Field(300.0)]


class AddOptions(RetryOptions, total=False):
    """Keyword arguments of `SemanticIndex.add` and `embed_missing`; all may be left out.

    Attributes:
        dead_letters: File to which documents that cannot be loaded are appended, with the reason; by default they are
            in `LoadReport.rejected`, and no file is written.
        max_errors: Number or share of documents that may fail before the load stops: `100`, `5%` or `off`; by default
            10 %.
    """

    dead_letters: str | Path | None
    max_errors: str | int | None
