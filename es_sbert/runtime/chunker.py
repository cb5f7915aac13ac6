"""Split long texts into chunks, each with its own embedding. Options and results call them passages."""

from __future__ import annotations

from collections.abc import Sequence

from semantic_text_splitter import TextSplitter

from es_sbert.errors import UsageError
from es_sbert.messages import setting
from es_sbert.runtime.joined_text import value_spans
from es_sbert.runtime.tokenizers_package import Tokenizer

# (start, end) of a chunk in its text, in characters
Span = tuple[int, int]


class Chunker:
    """Splits texts at the ends of paragraphs and sentences, and inside a sentence only if it is longer than a chunk.

    Ends of sentences are those of Unicode's standard annex 29, found by the library `semantic-text-splitter`.

    Args:
        tokenizer: The tokenizer, without truncation and padding.
        tokens: Maximum tokens of a chunk, including special tokens and `prompt`.
        overlap: Maximum tokens that two adjacent chunks share.
        prompt: Prompt that is prepended to each chunk.

    Raises:
        UsageError: `tokens` is too small for any text, or `overlap` leaves no room for new text.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: int, overlap: int, prompt: str) -> None:
        reserved = len(tokenizer.encode(prompt).ids)  # the special tokens and the prompt
        text_tokens = tokens - reserved
        if text_tokens < 1:
            raise UsageError(
                f"passages of {tokens} tokens hold no text: special tokens and prompt take {reserved} of them",
                f"Increase {setting('passages')}.",
            ).about("passages", tokens)
        if overlap >= text_tokens:
            raise UsageError(
                f"passages with {text_tokens} tokens of text cannot share {overlap} with the next one",
                f"Increase {setting('passages')}, or reduce {setting('passage_overlap')}.",
            ).about("passage_overlap", overlap)
        self._splitter = TextSplitter.from_huggingface_tokenizer(tokenizer, text_tokens, overlap=overlap)

    def __call__(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the chunks of each text, in order, without surrounding white space; a text of white space has none.

        No chunk holds parts of two values of a `JoinedText`.
        """
        parts = [(number, start, end) for number, text in enumerate(texts) for start, end in value_spans(text)]
        # All texts are passed at once, because the library spreads them over the CPU cores.
        found = self._splitter.chunk_all_indices([texts[number][start:end] for number, start, end in parts])
        chunks: list[list[Span]] = [[] for _ in texts]
        for (number, begin, _), part_chunks in zip(parts, found, strict=True):
            chunks[number] += [(begin + start, begin + start + len(chunk)) for start, chunk in part_chunks]
        return chunks
