"""A static model made from any sentence encoder: a table of token vectors, whose mean is the vector of a text.

Model2Vec's method (Tulkens and van Dongen 2024, github.com/MinishLab/model2vec): the encoder embeds each token of its
vocabulary alone, the mean vector of a token in text is subtracted, and frequent tokens get small weights, as in SIF
(Arora et al. 2017, "A simple but tough-to-beat baseline for sentence embeddings"). Frequencies follow Zipf's law:
vocabularies are sorted by frequency, except for special tokens and placeholders. Model2Vec also rotates the vectors by
PCA. That does not change cosines, and without it the vectors stay in the space of the encoder, so that they can be
trained toward its vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model_files import module_entry, write_json, write_module_entries
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.static_embedding import write_static_embedding
from es_sbert.config import cache_folder
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UnsupportedArchitecture
from es_sbert.filesystem import cached_folder
from es_sbert.runtime.tokenizer import TokenizedTexts, load_model_tokenizer
from es_sbert.runtime.tokenizers_package import Tokenizer

# The constant a of SIF's weights a / (a + p), p the probability of a token; the default of Model2Vec.
SIF_COEFFICIENT = 1e-4

# Entries of a vocabulary that are free for later use: [unused7] of BERT, <unused7> of Gemma.
_PLACEHOLDER = re.compile(r"[\[<]unused_?\d+[\]>]")

# Version of the method. After a change, models in the cache are made again.
_VERSION = 2


def token_probabilities(tokenizer: Tokenizer) -> NDArray[np.float64]:
    """Estimate token probabilities by Zipf's law, for a vocabulary sorted by frequency.

    Args:
        tokenizer: The tokenizer with the vocabulary.

    Returns:
        *Shape:* ``(vocabulary,)``, with the sum 1. The probability of a token is proportional to 1 / (rank + 1).
        Special tokens and placeholders are not ranked and have probability 0.
    """
    vocabulary = tokenizer.get_vocab()
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    words = sorted(
        number for token, number in vocabulary.items() if token not in special and not _PLACEHOLDER.fullmatch(token)
    )
    probabilities = np.zeros(max(vocabulary.values()) + 1)
    probabilities[words] = 1 / np.arange(2, len(words) + 2)
    probabilities /= probabilities.sum()
    return probabilities


def sif_weights(probabilities: NDArray[np.float64], coefficient: float = SIF_COEFFICIENT) -> NDArray[np.float64]:
    """Return the SIF weights a / (a + p) of tokens.

    Args:
        probabilities: Probabilities p of the tokens. Tokens with probability 0 are not words and get the weight of the
            most frequent token.
        coefficient: The constant a.

    Returns:
        *Shape:* ``(vocabulary,)``.
    """
    positive = np.where(probabilities > 0, probabilities, probabilities.max())
    weights: NDArray[np.float64] = coefficient / (coefficient + positive)
    return weights


def static_model_folder(
    folder: Path, name: str | None = None, *, report: Callable[[str], None] = lambda message: None
) -> Path:
    """Return the folder, in the cache, of the untrained static model of a sentence encoder. The first call writes it.

    The static model reads as many tokens of a text as the encoder, without special tokens and prompts. Its vectors have
    the same length, and are normalized if the encoder's are.

    Args:
        folder: The folder of the encoder.
        name: Name of the encoder, for messages.
        report: Called with progress messages.

    Raises:
        UnsupportedArchitecture: the encoder is a static model already.
        ModelError: the folder is not a model, or the model cannot be run.
        OutputError: the cache cannot be written.
    """
    model = read_sentence_model(folder, name)
    check_static_source(model)
    target = cache_folder() / "static" / f"{model.fingerprint}-{_VERSION}"
    return cached_folder(target, partial(_write_static_model, model, report))


def check_static_source(model: SentenceModel) -> None:
    """Check that a static model can be made from a sentence encoder.

    Raises:
        UnsupportedArchitecture: the encoder is a static model already.
    """
    if model.architecture == "static":
        raise UnsupportedArchitecture(
            f"{model.name} is a StaticEmbedding already", "Choose a model with a transformer, such as all-MiniLM-L6-v2."
        )


def _write_static_model(model: SentenceModel, report: Callable[[str], None], target: Path) -> None:
    tokenizer = load_model_tokenizer(model)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # In fp32, so that the table does not depend on the processor.
    with Encoder(model.folder, device="cpu", precision="fp32", called=model.name, report=report) as encoder:
        report(f"Embedding the {tokenizer.get_vocab_size():,} tokens of {model.name}")
        vectors = token_vectors(encoder, model, tokenizer)
    probabilities = token_probabilities(tokenizer)
    table = (vectors - probabilities @ vectors) * sif_weights(probabilities)[:, None]  # (vocabulary, dimensions)
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    tokenizer.enable_truncation(model.max_tokens - special)
    modules = ["StaticEmbedding", *(["Normalize"] if model.normalize else [])]
    places = [f"{number}_{kind}" for number, kind in enumerate(modules)]
    for place in places:
        (target / place).mkdir(parents=True)
    write_static_embedding(target / places[0], table.astype(np.float32), tokenizer.to_str())
    entries = [module_entry(kind, place) for kind, place in zip(modules, places, strict=True)]
    write_module_entries(target, entries)
    settings: dict[str, object] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(target / "config_sentence_transformers.json", settings)


def token_vectors(encoder: Encoder, model: SentenceModel, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Embed each token of a vocabulary alone, between the special tokens of a text.

    Args:
        encoder: The encoder.
        model: Its settings.
        tokenizer: Its tokenizer.

    Returns:
        *Shape:* ``(vocabulary, dimensions)``; zero for tokens for which the model has no vector.
    """
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    count = min(vocabulary, int(model.transformer_config.get("vocab_size") or vocabulary))
    around = tokenizer.encode("a", add_special_tokens=model.adds_special_tokens)
    text_places = [place for place, special in enumerate(around.special_tokens_mask) if not special]
    before = np.array(around.ids[: text_places[0]], dtype=np.int64)
    after = np.array(around.ids[text_places[-1] + 1 :], dtype=np.int64)
    vectors = np.zeros((vocabulary, encoder.info.dimensions), dtype=np.float32)
    for start in range(0, count, encoder.pipeline.window):
        ids = range(start, min(start + encoder.pipeline.window, count))
        rows = [np.concatenate([before, [number], after]) for number in ids]
        lengths = np.full(len(rows), len(before) + 1 + len(after), dtype=np.int64)
        vectors[ids.start : ids.stop] = encoder.pipeline.embed(TokenizedTexts(rows, lengths, model.max_tokens))
    return vectors
