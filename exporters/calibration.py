"""Sample texts of which a model's activations get their ranges, and batches of them without padding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.exporters.parity import parity_sentences
from es_sbert.runtime.batching import InputBuilder, ModelInputs
from es_sbert.runtime.tokenizer import SentenceTokenizer, load_tokenizer

_SENTENCES, _WORD_LISTS = 256, 64
_LONGEST = 512  # tokens; activations of longer texts are not larger
_BATCH_TOKENS = 1024
# Marks of the beginning or the inside of a word, in vocabularies of WordPiece, SentencePiece and byte-level BPE.
_MARKS = "#▁Ġ"


def sample_texts(tokenizer_file: Path, longest: int) -> list[str]:
    """Sentences, and lists of words drawn from a tokenizer's vocabulary: rare words reach the largest activations.

    Args:
        tokenizer_file: The tokenizer.json.
        longest: Longest input of the model, in tokens.
    """
    longest = min(longest, _LONGEST)
    known = sorted(load_tokenizer(tokenizer_file).get_vocab())
    words = [word for token in known if (word := token.strip(_MARKS)).isalpha()]
    choose = random.Random(20221118)
    lists = [" ".join(choose.choices(words, k=choose.randint(4, longest))) for _ in range(_WORD_LISTS if words else 0)]
    return [*parity_sentences(longest, _SENTENCES), *lists]


def sample_batches(model: SentenceModel, graph: onnx.ModelProto) -> Iterator[ModelInputs]:
    """Inputs of the sample texts for a graph of a sentence encoder."""
    tokenizer = SentenceTokenizer(model)
    texts = tokenizer.readable(sample_texts(model.tokenizer_file, model.longest_input))
    rows = [row for row in tokenizer(texts, model.kinds[0]).ids if len(row)]
    properties = {entry.key: entry.value for entry in graph.metadata_props}
    inputs = InputBuilder([value.name for value in graph.graph.input], properties)
    lengths = np.array([len(row) for row in rows])  # (texts,)
    return (inputs([rows[number] for number in batch]) for batch in equal_length_batches(lengths))


def equal_length_batches(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Batches of texts of one length each, so that nothing is padded.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.

    Returns:
        Index arrays; together they hold every index exactly once.
    """
    for length in np.unique(lengths):
        texts = np.flatnonzero(lengths == length)
        size = max(1, _BATCH_TOKENS // max(1, int(length)))
        yield from (texts[start : start + size] for start in range(0, len(texts), size))
