"""Pairs of passages of one text: a passage, and the passage that follows it.

Neighboring passages are about the same thing in other words (as in the inverse cloze task of Lee et al. 2019, arXiv
1906.00300, with passages instead of sentences). Texts need neither a title nor an informative first sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_plain_transformer, read_sentence_model
from es_sbert.errors import SourceError
from es_sbert.messages import pluralize
from es_sbert.runtime.chunker import Span
from es_sbert.runtime.tokenizer import SentenceTokenizer
from es_sbert.training.hard_negatives import normalized_text
from es_sbert.training.recipe import PassagesSpec
from es_sbert.training.teacher_labels import save_array
from es_sbert.training.training_examples import Examples

# A passage with fewer words, or fewer characters in a script without spaces, holds too little information.
_MIN_WORDS, _MIN_CHARACTERS = 3, 12


def choose_neighbors(text: str, spans: Sequence[Span], draw: int) -> tuple[Span, Span] | None:
    """Choose two passages of a text, the second of which follows the first.

    They share no text: spans do not overlap, and a passage is not chosen if the next one repeats it word for word.

    Args:
        text: The text.
        spans: Its passages in order.
        draw: A random number, from 0, that determines the passage to try first.

    Returns:
        The two passages, or None if there are no two with enough words.
    """
    pairs = list(pairwise(spans))
    for number in range(len(pairs)):
        first, second = pairs[(draw + number) % len(pairs)]
        passage, following = text[first[0] : first[1]], text[second[0] :]
        if (
            first[1] <= second[0]
            and _says_enough(passage)
            and _says_enough(text[second[0] : second[1]])
            and normalized_text(passage) not in normalized_text(following)
        ):
            return first, second
    return None


def _says_enough(passage: str) -> bool:
    unspaced = not passage.isascii() and len(passage) >= _MIN_CHARACTERS
    return len(passage.split()) >= _MIN_WORDS or unspaced


def passage_splitter(folder: Path, name: str, tokens: int) -> Callable[[Sequence[str]], list[list[Span]]]:
    """Return a function that splits texts into passages at ends of paragraphs and sentences, without overlap.

    Args:
        folder: The model whose tokens are counted: a sentence-transformers folder or a plain transformer.
        name: Its name.
        tokens: Maximum tokens of a passage; fewer if the model reads fewer.

    Raises:
        ModelError: the folder cannot be opened.
    """
    has_modules = (folder / "modules.json").exists()
    model = read_sentence_model(folder, name) if has_modules else read_plain_transformer(folder, name)
    return SentenceTokenizer(model).make_chunker(min(tokens, model.input_limit("document")), 0, "document")


def add_passage_pairs(
    examples: Examples, spec: PassagesSpec | None, base: str, cache: Path, report: Callable[[str], None]
) -> Examples:
    """Make a pair of neighboring passages from each text; return the examples unchanged if `spec` is None.

    Args:
        examples: Texts.
        spec: The length of the passages.
        base: Name of the model whose tokens are counted.
        cache: File (.npy) that stores the passages, so that a resumed run uses the same ones.
        report: Called with progress messages.

    Returns:
        The pairs, anchor and positive, each with the line of its text.

    Raises:
        ModelError: the model cannot be opened.
        SourceError: no text has two passages.
        OutputError: the cache cannot be written.
    """
    if spec is None:
        return examples
    (texts,) = examples.texts
    if not cache.exists():
        draws = np.random.default_rng(spec.seed).integers(2**31, size=len(texts)).tolist()
        split = passage_splitter(resolve_model(base), base, spec.tokens)(texts)
        chosen = map(choose_neighbors, texts, split, draws)
        places = [(row, *pair[0], *pair[1]) for row, pair in enumerate(chosen) if pair is not None]
        save_array(cache, np.array(places, dtype=np.int64).reshape(-1, 5))
    places = np.load(cache).tolist()
    if not places:
        raise SourceError(
            f"{examples.path}: no text has two passages of up to {spec.tokens} tokens",
            "Lower passages.tokens in the recipe, or use longer texts.",
        )
    report(
        f"Neighboring passages of {examples.name}: {pluralize(len(places), 'pair')} of {pluralize(len(texts), 'text')}"
    )
    anchors = [texts[row][start:end] for row, start, end, _, _ in places]
    positives = [texts[row][start:end] for row, _, _, start, end in places]
    return replace(examples, texts=(anchors, positives), lines=examples.lines[[row for row, *_ in places]])
