"""Names of sentence-transformers' `SentenceTransformer` on `Encoder`, so that programs written for it run unchanged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from es_sbert.arguments import other_names
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.errors import UsageError, WrongArgument
from es_sbert.vectors import Vectors, unit_vectors

# Arguments of sentence-transformers that have no meaning here: values that ask for what the method does anyway, and
# what to do instead.
Refusals: TypeAlias = Mapping[str, tuple[tuple[object, ...], str]]
_WITHOUT_MEANING: Refusals = {
    "chunk_size": ((None,), "Threads share the batches of a call; open the model with threads=N."),
    "convert_to_numpy": ((True,), "The result is one array; list(…) makes a list of it."),
    "device": ((None,), 'The device is chosen when the model is opened: device="cuda".'),
    "pool": ((None,), "Threads share the batches of a call; open the model with threads=N."),
}
# Of `SentenceTransformer.encode`.
TEXTS_WITHOUT_MEANING: Refusals = {
    **_WITHOUT_MEANING,
    "output_value": (("sentence_embedding",), "Compute token embeddings with sentence-transformers."),
    "precision": (("float32",), "Vectors are float32; an index quantizes them: SemanticIndex.create(index_type=…)."),
}
_ACTIVATION = "The activation of the model is applied; apply another one to the scores."
# Of `CrossEncoder.predict` and `rank`.
PAIRS_WITHOUT_MEANING: Refusals = {
    **_WITHOUT_MEANING,
    "activation_fct": ((None,), _ACTIVATION),  # the older name
    "activation_fn": ((None,), _ACTIVATION),
    "apply_softmax": ((False, None), "Apply it to the outputs of a model with several labels: Reranker.outputs."),
    "convert_to_tensor": ((False,), "Make a tensor of the scores: torch.from_numpy(…)."),
    "prompt": ((None,), "The prompt of the model is applied; write anything else in front of the queries."),
    "prompt_name": ((None,), "The prompt of the model is applied; write anything else in front of the queries."),
}
# Arguments that change only the speed or what is shown; here a batch has a maximum of tokens (`budget`).
_IGNORED = frozenset({"batch_size", "num_workers", "show_progress_bar"})
# Names of the models of sentence-transformers; {} is the class here.
MODEL_NAMES = """
fit=es_sbert.train_model train=es_sbert.train_model evaluate=es_sbert.evaluate_model compute_score=Reranker.predict
save=es_sbert.export_model save_pretrained=es_sbert.export_model push_to_hub=es_sbert.export_model
to={}(model,device=…) cuda={}(model,device=…) cpu={}(model,device=…) rerank=Reranker.rank
"""
_ENCODER_NAMES = """
encode_multi_process=encode start_multi_process_pool=encode stop_multi_process_pool=encode tokenize=pipeline.tokenize
predict=Reranker.predict rank=Reranker.rank
"""


def check_without_meaning(given: Mapping[str, object], refusals: Refusals, device: str = "") -> None:
    """Check arguments of sentence-transformers that a method does not have.

    Args:
        refusals: The values of each that ask for what the method does anyway, and what to do instead of others.
        device: The device of the model, which may be named.

    Raises:
        UsageError: one asks for what the method does not do.
        WrongArgument: one is unknown.
    """
    for name, value in given.items():
        if name in _IGNORED or (name == "device" and str(value) in (device, device.partition(":")[0])):
            continue
        if name not in refusals:
            raise WrongArgument(f"unknown option: {name}", "See the help of this method for its options.").about(
                name, value
            )
        accepted, instead = refusals[name]
        if value not in accepted:
            raise UsageError(f"`{name}={value!r}` cannot be applied", instead).about(name, value)


def _like(given: Any, cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return cosines as a tensor if the vectors are one, as sentence-transformers does."""
    same: NDArray[np.float32] = given.new_tensor(cosines) if hasattr(given, "new_tensor") else cosines
    return same


class SentenceTransformersNames:
    """Methods and properties that `SentenceTransformer` has, too."""

    @property
    @abstractmethod
    def info(self) -> EncoderInfo: ...

    @abstractmethod
    def encode(self, texts: str | Iterable[str], **options: Any) -> Vectors: ...

    def encode_query(self, texts: str | Iterable[str], **options: Any) -> Vectors:
        """Embed search texts with the model's query prompt; options as for `encode`."""
        return self.encode(texts, **{"kind": "query", **options})

    def encode_document(self, texts: str | Iterable[str], **options: Any) -> Vectors:
        """Embed texts with the model's document prompt; options as for `encode`."""
        return self.encode(texts, **{"kind": "document", **options})

    def similarity(self, first: Vectors, second: Vectors) -> NDArray[np.float32]:
        """Compute the cosines of all pairs of two sets of vectors.

        Args:
            first, second: *Shape:* ``(texts, dimensions)``, or ``(dimensions,)`` for one vector.

        Returns:
            *Shape:* ``(texts of first, texts of second)``; a tensor if `first` is one.
        """
        rows, columns = (np.atleast_2d(np.asarray(each, dtype=np.float32)) for each in (first, second))
        return _like(first, unit_vectors(rows) @ unit_vectors(columns).T)

    def similarity_pairwise(self, first: Vectors, second: Vectors) -> NDArray[np.float32]:
        """Compute the cosine of each vector of `first` with that of `second` in its place, *shape:* ``(texts,)``."""
        rows, others = (unit_vectors(np.atleast_2d(np.asarray(each, dtype=np.float32))) for each in (first, second))
        return _like(first, (rows * others).sum(axis=1))

    @property
    def similarity_fn_name(self) -> str:
        """The function that compares vectors: `cosine`."""
        return "cosine"

    if not TYPE_CHECKING:
        __getattr__ = other_names(MODEL_NAMES + _ENCODER_NAMES)

    @property
    def dimensions(self) -> int:
        """Number of values of a vector; also `info.dimensions`."""
        return int(self.info.dimensions)

    def get_embedding_dimension(self) -> int:
        """Number of values of a vector; also `dimensions`."""
        return self.dimensions

    get_sentence_embedding_dimension = get_embedding_dimension  # the older name

    def get_max_seq_length(self) -> int:
        """Maximum tokens that the model reads of a text; also `info.max_tokens`."""
        return self.max_seq_length

    @property
    def max_seq_length(self) -> int:
        """Maximum tokens that the model reads of a text; also `info.max_tokens`."""
        return int(self.info.max_tokens)

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        raise UsageError(
            f"`max_seq_length` cannot be set to {value} on an open model: vectors of one index need one maximum",
            "Set max_seq_length in the model's sentence_bert_config.json: it is then another model.",
        ).about("max_seq_length", value)

    @property
    def device(self) -> str:
        """Device on which the model runs; also `info.device`."""
        return str(self.info.device)
