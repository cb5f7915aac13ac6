"""`Reranker`: scores pairs of texts with a cross-encoder, in input order. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from es_sbert.arguments import as_text, as_texts, check_arguments, iterate_texts, other_names, spell_out, wrong_argument
from es_sbert.bundle.cross_encoder_model import ScoreActivation
from es_sbert.encoder.model_loading import open_reranker, open_variant, select_reranker_variant
from es_sbert.encoder.opened_model import OpenedModel, lasting_path
from es_sbert.encoder.sentence_transformers_names import MODEL_NAMES, PAIRS_WITHOUT_MEANING, check_without_meaning
from es_sbert.errors import ModelError, UsageError, about_setting
from es_sbert.messages import setting
from es_sbert.runtime.batching import BatchLimits, plan_batches
from es_sbert.runtime.compiled_model import Session
from es_sbert.runtime.tokenizer import PairTokenizer, TokenizedPairs, check_pairs
from es_sbert.settings import Count, RunOptions

Scores = NDArray[np.float32]

# Maximum padded tokens of one batch. On CUDA, a sentence encoder takes more: a traced graph holds an attention mask of
# tokens × tokens for each pair and, if its attention is not fused, one score matrix per head as well.
_MAX_BATCH_TOKENS = 32_768


class RankedText(TypedDict):
    """A text in the result of `Reranker.rank`.

    Usage:
        ```python
        best = reranker.rank("how do magnets work", ["Iron in a field.", "A cat sleeps."])[0]
        print(best["corpus_id"], best["score"])
        ```

    Attributes:
        corpus_id: Position of the text in the given list.
        score: Score of the text for the query.
        text: The text, if it was asked for.
    """

    corpus_id: int
    score: float
    text: NotRequired[str]


@dataclass(frozen=True)
class PairScores:
    """Scores in the order of the pairs.

    Usage:
        ```python
        scored = reranker.score_pairs(["how do magnets work"], ["Iron in a field."])
        print(scored.scores, scored.truncated)
        ```

    Attributes:
        scores: *Shape:* ``(pairs,)`` float32.
        truncated: *Shape:* ``(pairs,)``, True if the pair was longer than the model reads.
    """

    scores: Scores
    truncated: NDArray[np.bool_]


def _softmax(x: Scores) -> Scores:
    """Softmax over the labels, *shape* ``(pairs, labels)``."""
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    probabilities: Scores = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


_PAIRS = 'a query and its texts, or a list of pairs: [("a query", "a text")]'


def _read_pairs(given: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return pairs as lists.

    Raises:
        WrongArgument: they have no order, or one of them is not a pair of texts.
    """
    pairs = []
    for number, pair in enumerate(iterate_texts(given, "query", _PAIRS)):
        name = f"query[{number}]"
        texts = list(iterate_texts(pair, name, _PAIRS))
        if len(texts) != 2:
            raise wrong_argument(name, pair, _PAIRS)
        pairs.append(as_texts(texts, name))
    return pairs


_ACTIVATIONS: dict[ScoreActivation, Callable[[Scores], Scores]] = {
    ScoreActivation.IDENTITY: lambda x: x,
    # Computed with tanh, which does not overflow as exp(-x) would.
    ScoreActivation.SIGMOID: lambda x: np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)),
    ScoreActivation.SOFTMAX: _softmax,
    ScoreActivation.TANH: np.tanh,
}


class Reranker(OpenedModel):
    """A cross-encoder on onnxruntime or OpenVINO.

    Thread-safe. Close it, or use it as a context manager, to end its threads. A forked process opens the model again
    when it first scores a pair. Unpickling opens it again, too.

    Usage:
        ```python
        with Reranker("my-reranker") as reranker:
            scores = reranker.predict("how do magnets work", ["Iron in a field.", "A cat sleeps."])  # (2,)
        ```

    Args:
        model: Folder that `es-sbert export CROSS_ENCODER -o FOLDER` wrote, hub id, installed or registered name. A
            `Path` is always a folder. Nothing is exported on first use, since that needs torch.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `cuda` fails if CUDA is not available. `auto` uses the CPU if CUDA
            does not work, with a warning in `warnings`.
        precision: `fp32`, `bf16` (OpenVINO), `int8` (CPU only), `fp16` (CUDA only), or `auto`: the best one in the
            folder for the device. A precision that the folder lacks is an error.
        runtime: `auto`, `onnxruntime` or `openvino`.
        threads: CPU threads, by default one for each physical core. On CUDA the number of concurrent batches, by
            default 2.
        budget: Padded tokens of one batch; by default the best for the device.

    Attributes:
        name: Name of the model, with the variant, for tables.
        labels: Names of the outputs.
        warnings: Warnings to repeat in every summary.

    Raises:
        ModelError: the model was not found, is broken, was not exported, or lacks the precision.
        DeviceError: the requested device cannot be used.
        UsageError: the device, precision or runtime is invalid, or they cannot be combined.
    """

    name: str
    labels: tuple[str, ...]
    warnings: tuple[str, ...]

    @check_arguments
    @spell_out(RunOptions)
    def __init__(self, model: str | Path, *, budget: Count | None = None, **options: Unpack[RunOptions]) -> None:
        with about_setting("model", model, ModelError):
            selected, pool = open_variant(partial(select_reranker_variant, open_reranker(model)), options)
        own: Any = type(self)
        opening = partial(own, lasting_path(model), budget=budget, **options)
        self._hold(opening, selected, pool)
        bundle = selected.bundle
        self._tokenizer = PairTokenizer(bundle.model, bundle.manifest.pairs)
        tokens = budget or min(pool.model.batch_tokens, _MAX_BATCH_TOKENS)
        self._limits = BatchLimits(tokens, similar=pool.model.batch_limits().similar)
        self._padded_length = partial(pool.model.padded_length, most=bundle.model.max_tokens)
        self._window = pool.model.window
        self._activation = _ACTIVATIONS[bundle.model.activation]
        self.labels = bundle.model.labels
        self.name = f"{bundle.model.name} ({selected.variant})"
        self.warnings = selected.warnings

    if not TYPE_CHECKING:
        __getattr__ = other_names(f"{MODEL_NAMES} encode=Encoder.encode num_labels=labels")

    def __repr__(self) -> str:
        return f"<Reranker {self.name!r}>"

    @check_arguments
    def predict(
        self, query: str | Iterable[Iterable[str]], texts: Iterable[str] | None = None, **others: object
    ) -> Scores:
        """Score texts for a query: *shape* ``(texts,)``; a higher score means a better match.

        Args:
            query: The query; or without `texts` pairs of a query and a text, as in sentence-transformers. One pair,
                `("a query", "a text")`, has one score: *shape* ``()``.
            others: Other arguments of sentence-transformers, with values that ask for what this method does anyway;
                `batch_size` is ignored, since a batch has a maximum of tokens.

        Raises:
            UsageError, ModelError: as for `score`.
        """
        check_without_meaning(others, PAIRS_WITHOUT_MEANING, str(self._selected.device))
        if isinstance(query, str):
            listed = as_texts(texts)  # type: ignore[arg-type]
            return self.score([as_text(query, "query")] * len(listed), listed)
        if texts is not None:
            raise wrong_argument("query", query, "one query for the texts, or pairs without texts")
        given: Any = query.tolist() if hasattr(query, "tolist") else query  # an array, or a column of pandas
        if isinstance(given, list | tuple) and len(given) == 2 and isinstance(given[0], str):
            first, second = as_texts(given, "query")
            return self.score([first], [second])[0]  # type: ignore[no-any-return]
        pairs = _read_pairs(given)
        return self.score([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    @check_arguments
    def rank(
        self,
        query: str,
        texts: Iterable[str],
        top_k: Count | None = None,
        *,
        return_documents: bool = False,
        **others: object,
    ) -> list[RankedText]:
        """Sort texts by their score for a query, best first, as sentence-transformers' `CrossEncoder.rank` does.

        Args:
            top_k: Number of texts to return; all by default.
            return_documents: Whether to return the texts too.
            others: As for `predict`.

        Raises:
            UsageError, ModelError: as for `score`.
        """
        listed = list(iterate_texts(texts))
        scores = self.predict(query, listed, **others)
        order = np.argsort(-scores, kind="stable")[:top_k]
        ranked: list[RankedText] = [{"corpus_id": int(number), "score": float(scores[number])} for number in order]
        return [{**each, "text": listed[each["corpus_id"]]} for each in ranked] if return_documents else ranked

    def score(self, first: Sequence[str], second: Sequence[str]) -> Scores:
        """Score pairs as sentence-transformers' CrossEncoder does: *shape* ``(pairs,)``.

        Raises:
            UsageError: `first` and `second` differ in length, one of them is a single string, a text is not valid
                Unicode, or the model has several labels (see `outputs`).
            ModelError: a score is not finite.
        """
        return self.score_pairs(first, second).scores

    def score_pairs(self, first: Sequence[str], second: Sequence[str]) -> PairScores:
        """Score pairs like `score`, and report which of them were truncated."""
        if len(self.labels) != 1:
            raise UsageError(
                f"{self.name} has {len(self.labels)} outputs ({', '.join(self.labels)}); a reranker needs exactly one",
                "Use a cross-encoder with one output, or get all of them with Reranker.outputs.",
            ).about("model", self.name)
        outputs, truncated = self._outputs(first, second)
        return PairScores(outputs[:, 0], truncated)

    def outputs(self, first: Sequence[str], second: Sequence[str]) -> Scores:
        """Compute all outputs, after the model's activation: *shape* ``(pairs, labels)``, in the order of the pairs.

        Raises:
            UsageError, ModelError: as for `score`, but the model may have several labels.
        """
        return self._outputs(first, second)[0]

    def _outputs(self, first: Sequence[str], second: Sequence[str]) -> tuple[Scores, NDArray[np.bool_]]:
        """Compute the outputs, *shape* ``(pairs, labels)``, and a mask of truncated pairs, *shape* ``(pairs,)``."""
        first, second = as_texts(first, "first"), as_texts(second, "second")
        check_pairs(first, second)
        pool = self._own_pool()
        scores = np.empty((len(first), len(self.labels)), dtype=np.float32)  # (pairs, labels)
        truncated = np.zeros(len(first), dtype=np.bool_)  # (pairs,)
        for start in range(0, len(first), self._window):
            part = slice(start, start + self._window)
            tokenized = self._tokenizer(first[part], second[part])
            batches = plan_batches(tokenized.lengths, self._limits)
            pool.run(batches, partial(self._run_batch, tokenized, scores[part]))
            truncated[part] = tokenized.truncated
        return self._activation(scores), truncated

    def _run_batch(self, tokenized: TokenizedPairs, scores: Scores, session: Session, batch: NDArray[np.int64]) -> None:
        """Run one batch and write its outputs to `scores`, *shape* ``(pairs, labels)``."""
        outputs = np.empty((len(batch), len(self.labels)), dtype=np.float32)
        session.run(self._tokenizer.feed(tokenized, batch, self._padded_length), outputs)
        if not np.isfinite(outputs).all():
            raise ModelError(
                f"{self.name} gave a score that is infinite or undefined",
                f"The largest fp16 number is 65,504: use {setting('precision', 'fp32')}, and report the model.",
            )
        scores[batch] = outputs
