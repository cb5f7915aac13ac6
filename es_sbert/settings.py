"""Keyword arguments of the library that are options of the command line too: type, default, range and meaning.

Each class declares its settings once. `spell_out` (arguments.py) shows them in signatures, `check_arguments` checks
them, and the command line makes its options of them (cli/options.py), with the help of the "Attributes" here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from pydantic import Field, NonNegativeInt, PositiveFloat

from es_sbert.config import DEFAULT_VECTOR_FIELD, FrozenSettings

Count: TypeAlias = Annotated[int, Field(ge=1)]
Cosine: TypeAlias = Annotated[float, Field(ge=-1, le=1)]
Candidates: TypeAlias = Annotated[int, Field(ge=2, le=10_000)]
Seconds: TypeAlias = Annotated[float, Field(ge=0)]

DEFAULT_DUPLICATE_COSINE = 0.95
RETRY_SECONDS = 300.0


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


class TextOptions(TypedDict, total=False):
    """The text of documents.

    Attributes:
        text_fields: Field of the text, dotted if nested; may be repeated. Several fields, and the values of a list, are
            joined by line feeds. [default: text]
        text_template: Text made of several fields, e.g. '{title}. {body}'.
    """

    text_fields: Annotated[Sequence[str] | str, Field(())]
    text_template: str | None


class IndexOptions(TextOptions, total=False):
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

    index_type: str | None
    passages: Count | None
    passage_overlap: NonNegativeInt | None
    shards: Count | None
    replicas: NonNegativeInt | None


class MigrationOptions(TextOptions, total=False):
    """Keyword arguments of a migration to another model, text or index type.

    Attributes:
        index_type: Index type of the new vectors: hnsw, int8_hnsw, int4_hnsw, bbq_hnsw, flat, int8_flat, int4_flat,
            bbq_flat; OpenSearch: hnsw, int8_hnsw, from 3.0 on flat. [default: unchanged]
        name: Name of the new index. [default: ALIAS and the model's fingerprint]
        text_fields: Embed this field instead of the old text, dotted if nested; may be repeated. Several fields, and
            the values of a list, are joined by line feeds. [default: the text is unchanged]
        text_template: New text made of several fields, e.g. '{title}. {body}'.
        max_write_block: Maximum time to refuse writes, over all attempts to swap. After half of it, writes are accepted
            again, another round copies changes, and the swap is tried once more in the time that is left.
        replace_index: If ALIAS is an index: replace the index with an alias of that name, deleting it in the same step.
        dead_letters: Append documents that cannot be embedded to this file. [default: NEW-INDEX.dead-letters.jsonl]
    """

    index_type: str | None
    name: str | None
    max_write_block: Annotated[float, Field(10.0, gt=0)]
    replace_index: Annotated[bool, Field(False)]
    dead_letters: Path | str | None


class AdoptionOptions(TextOptions, total=False):
    """Keyword arguments of an adoption of vectors: their text, and how they are compared with the model's.

    Attributes:
        precision: Precision of the model's vectors. int8 may differ from fp32 by more than `min_cosine` allows.
        text_fields: Field of the text that was embedded, dotted if nested; may be repeated. Several fields, and the
            values of a list, are joined by line feeds. [default: text]
        text_template: Text that was made of several fields, e.g. '{title}. {body}'.
        sample: Documents to embed and compare before anything is written.
        min_cosine: Minimum cosine between a stored vector and the model's own vector.
        dry_run: Check the sample and write nothing to the index.
    """

    precision: Annotated[str, Field("fp32")]
    sample: Annotated[int, Field(300, ge=1, le=10_000)]
    min_cosine: Annotated[float, Field(0.999, gt=0, le=1)]
    dry_run: Annotated[bool, Field(False)]


class CalibrationOptions(TypedDict, total=False):
    """Keyword arguments of the measurement of a minimum cosine.

    Attributes:
        sample: Documents of the index to compare every query with.
        keep: Share of the relevant documents that the recommended value keeps.
        save: Store the recommended value in the mapping of the index, for hybrid searches and for semantic queries
            through the gateway. Refused if more unrelated documents pass than `max_unrelated`.
        max_unrelated: Largest share of unrelated documents that a value may let pass to be saved.
    """

    sample: Annotated[int, Field(1000, ge=2, le=10_000)]
    keep: Annotated[float, Field(0.95, gt=0, lt=1)]
    save: Annotated[bool, Field(False)]
    max_unrelated: Annotated[float, Field(0.05, gt=0, le=1)]


class AdviceRequest(FrozenSettings):
    """What to measure of an index, to recommend dimensions and index type.

    Attributes:
        min_recall: Recall@10 to keep.
        sample: Documents of the index to measure on.
        dimensions: Number of dimensions to measure. Repeatable. [default: all, 512, 256, 128 and 64, without those
            whose exact search misses `min_recall`]
    """

    min_recall: float = Field(default=0.95, gt=0, lt=1)
    sample: int = Field(default=5_000, ge=200, le=9_000)
    dimensions: tuple[Count, ...] = ()


class SearchOptions(TypedDict, total=False):
    """Keyword arguments of a search; all may be left out.

    Usage:
        ```python
        options: SearchOptions = {"min_cosine": 0.2, "source": ["title"]}
        print(len(index.search("heavy rain", **options)))
        ```

    Attributes:
        filter: Query that every hit must match, applied during the search.
        exact: Compare with every vector instead of searching the graph.
        num_candidates: Candidates per shard; more are slower and miss fewer hits. [default: twice k, at least 100]
        oversample: On a quantized index type: the nearest `oversample * k` are compared again by float32 vectors;
            the default suits the type (`es-sbert index advise` measures it).
        min_cosine: Drop hits whose cosine, -1 to 1, is below this value. [default: none; with `hybrid` that of es-sbert
            index calibrate --save]
        source: Fields of the documents (names or patterns); None for all, False for none. Vectors are never among them.
        highlight: Fields in which the query's words are highlighted; or the engine's own `highlight`.
        allow_partial: Return the hits of the shards that respond if others fail, and say so in `RankedHits.partial`.
            By default, partial results are an error.
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

    Usage:
        ```python
        options: HybridOptions = {"weights": [2, 1], "lexical_fields": ["title"]}
        print(len(index.hybrid("heavy rain", **options)))
        ```

    Attributes:
        weights: Semantic and keyword weight; the default is measured, see docs/search.md.
        lexical_fields: Fields of the keyword query and of exact matches; by default those of the embedded text.
        min_cosine: Minimum cosine of the semantic search; by default the value that `es-sbert index calibrate --save`
            stored. -1 drops nothing.
    """

    weights: Sequence[float] | None
    lexical_fields: Sequence[str] | None


class DuplicateOptions(TypedDict, total=False):
    """Which texts are near-duplicates, and how they are found in an index.

    Attributes:
        min_cosine: Texts with at least this cosine are near-duplicates.
        num_candidates: With --index: search the index for the neighbors of each document with this many candidates per
            shard, instead of comparing all pairs; higher is slower and finds more. [default: all pairs of up to 1 GiB
            of vectors (700,000 of 384 dimensions), 100 candidates for larger indices]
    """

    min_cosine: Annotated[Cosine, Field(DEFAULT_DUPLICATE_COSINE)]
    num_candidates: Candidates | None


class RetryOptions(TypedDict, total=False):
    """How long requests are repeated.

    Attributes:
        retry_seconds: Maximum time to retry while the engine is overloaded or does not respond.
    """

    retry_seconds: Annotated[Seconds, Field(RETRY_SECONDS)]


class AddOptions(RetryOptions, total=False):
    """Keyword arguments of `SemanticIndex.add` and `embed_missing`; all may be left out.

    Usage:
        ```python
        options: AddOptions = {"dead_letters": "rejected.jsonl", "max_errors": "5%"}
        report = index.add([{"_id": "2", "title": "Storms", "body": "What insurance covers."}], **options)
        ```

    Attributes:
        dead_letters: File to which documents that cannot be loaded are appended, with the reason; by default they are
            in `LoadReport.rejected`, and no file is written.
        max_errors: Number or share of documents that may fail before the load stops: `100`, `5%` or `off`; by default
            10 %.
    """

    dead_letters: str | Path | None
    max_errors: str | int | None


class AdaptSettings(FrozenSettings):
    """The settings of a run of `es-sbert adapt`; a resumed run must have the same.

    Attributes:
        index: An index, or an alias of a single index.
        name: Name of the tuned model. [default: INDEX-tuned]
        vector_field: Field that holds the vector.
        filter: Query that every document must match. [default: all]
        model: Model to start from. [default: that of the index]
        pairs: title: the title finds the text. sentence: the first sentence finds the rest of the text. auto: title if
            a field looks like one.
        title_field: Field of the title. [default: chosen from a sample of the documents]
        body_fields: Field of the text; may be repeated. [default: the text that the index embeds, without the title]
        documents: Read at most this many documents, at random. Pairs are made from them, and they are ranked for the
            queries.
        most_trained: Maximum number of pairs to train on.
        held_out: Queries to compare the models with; at most a fifth of the pairs.
        negatives: Hard negatives per pair.
        ranks: First and last rank of the candidates for negatives, by kNN and by BM25.
        margin: Minimum difference between the cosines of a query with its document and with a negative.
        train_tokens: Maximum tokens of a text in training, from its beginning. More tokens take longer. The comparison
            and the tuned model read as many as before.
        epochs: Passes over the pairs.
        batch: Pairs per batch; each is a negative of the others.
        learning_rate: Peak learning rate.
        seed: Seed of the sample, the split and the training.
    """

    index: str
    name: str
    vector_field: str = DEFAULT_VECTOR_FIELD
    filter: dict[str, Any] | None = None
    model: str | None = None
    pairs: Literal["auto", "title", "sentence"] = "auto"
    title_field: str | None = None
    body_fields: tuple[str, ...] = ()
    documents: Count = 20_000
    most_trained: Count = 10_000
    held_out: Count = 500
    negatives: NonNegativeInt = 1
    ranks: tuple[int, int] = (1, 50)
    margin: float = 0.05
    train_tokens: int = Field(default=128, ge=16)
    epochs: PositiveFloat = 1.0
    batch: int = Field(default=32, ge=2)
    learning_rate: PositiveFloat = 5e-5
    seed: NonNegativeInt = 0


class Student(FrozenSettings):
    """The student of a distillation, and how it is trained; a resumed run must have the same.

    Attributes:
        layers: Keep N of MODEL's transformer layers, evenly spaced; the last one is kept.
        base: Start from this smaller model, with a Dense layer that maps its vectors into MODEL's space. `layers` N
            keeps N of its layers. [default: MODEL]
        epochs: Passes over the texts. [default: 3; with --static 8]
        batch: Texts per batch. [default: 64; with --static a hundredth of the texts, 32 to 1024]
        learning_rate: Peak learning rate. [default: 5e-4; with `base` alone 1e-4, with --static 0.01]
        seed: Random seed.
        precision: Number format of matrix products in training. auto: bf16 on a GPU that supports it, fp32 on a CPU.
    """

    layers: Count | None = None
    base: str | None = None
    epochs: PositiveFloat | None = None
    batch: Count | None = None
    learning_rate: PositiveFloat | None = None
    seed: NonNegativeInt = 42
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"

    @property
    def static(self) -> bool:
        return self.layers is None and self.base is None


class TrainingOptions(TypedDict, total=False):
    """How a model is trained.

    Attributes:
        device: auto, cpu or cuda.
        resume: Resume the run in FOLDER from its last complete checkpoint.
    """

    device: Annotated[str, Field("auto")]  # training runs on one GPU and refuses cuda:N
    resume: Annotated[bool, Field(False)]


class TrainOptions(TrainingOptions, total=False):
    """Keyword arguments of `train_model`; all may be left out.

    Attributes:
        data_folder: Base of relative paths in the recipe. [default: the recipe's folder]
        overrides: Dotted path of a setting → value in YAML, such as `{"stages.0.batch": "32"}`; ignored for a `Recipe`.
        seed: Random seed. [default: the recipe's]
    """

    data_folder: Path | str | None
    overrides: Mapping[str, str] | None
    seed: NonNegativeInt | None


class AdaptOptions(TrainingOptions, RetryOptions, total=False):
    """How `adapt_model` runs.

    Attributes:
        resume: Resume the stopped run in FOLDER.
        keep: Keep the model in FOLDER/model even if it is not better.
        threads: CPU threads of the encoder and of the training.
    """

    keep: Annotated[bool, Field(False)]
    threads: Count | None
