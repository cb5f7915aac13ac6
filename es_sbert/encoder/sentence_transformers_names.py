"""Names of sentence-transformers' `SentenceTransformer` on `Encoder`, so that programs written for it run unchanged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.errors import UsageError, WrongArgument
from es_sbert.vectors import Vectors, unit_vectors

# Arguments of `SentenceTransformer.encode` that have no meaning here: values that ask for what `encode` does anyway,
# and what to do instead.
_WITHOUT_MEANING: dict[str, tuple[tuple[object, ...], str]] = {
    "chunk_size": ((None,), "Threads share the batches of a call: Encoder(model, threads=N)."),
    "convert_to_numpy": ((True,), "The result is one array; list(encoder.encode(texts)) is a list of vectors."),
    "convert_to_tensor": ((False,), "The result is an array: torch.from_numpy(encoder.encode(texts))."),
    "device": ((None,), 'The device is chosen when the model is opened: Encoder(model, device="cuda").'),
    "output_value": (("sentence_embedding",), "Compute token embeddings with sentence-transformers."),
    "pool": ((None,), "Threads share the batches of a call: Encoder(model, threads=N)."),
    "precision": (("float32",), "Vectors are float32; an index quantizes them: SemanticIndex.create(index_type=…)."),
    "truncate_dim": ((None,), 'Open the model with fewer dimensions: Encoder("NAME@DIMENSIONS").'),
}


def check_without_meaning(given: Mapping[str, object]) -> None:
    """Check arguments of `SentenceTransformer.encode` that `Encoder.encode` does not have.

    Raises:
        UsageError: one asks for what `encode` does not do.
        WrongArgument: one is unknown.
    """
    for name, value in given.items():
        if name == "batch_size":
            continue  # it changes only the speed; here a batch has a maximum of tokens (`budget`)
        if name not in _WITHOUT_MEANING:
            raise WrongArgument(f"unknown option: {name}", "See help(Encoder.encode).").about(name, value)
        accepted, instead = _WITHOUT_MEANING[name]
        if value not in accepted:
            raise UsageError(f"`encode` has no `{name}` ({value!r})", instead).about(name, value)


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
            *Shape:* ``(texts of first, texts of second)``.
        """
        rows, columns = (np.atleast_2d(np.asarray(each, dtype=np.float32)) for each in (first, second))
        cosines: NDArray[np.float32] = unit_vectors(rows) @ unit_vectors(columns).T
        return cosines

    def get_embedding_dimension(self) -> int:
        """Number of values of a vector; also `info.dimensions`."""
        return int(self.info.dimensions)

    get_sentence_embedding_dimension = get_embedding_dimension  # the older name

    @property
    def max_seq_length(self) -> int:
        """Maximum tokens that the model reads of a text; also `info.max_tokens`."""
        return int(self.info.max_tokens)

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        raise UsageError(
            f"`max_seq_length` cannot be set to {value} on an open model: vectors of one index need one maximum",
            "Set max_seq_length in the model's sentence_bert_config.json: it is then another model.",
        )

    @property
    def device(self) -> str:
        """Device on which the model runs; also `info.device`."""
        return str(self.info.device)
