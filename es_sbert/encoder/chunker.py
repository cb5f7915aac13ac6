"""Split long texts into chunks that fit the model's maximum input length."""

from __future__ import annotations

from collections.abc import Sequence

from semantic_text_splitter import TextSplitter
from tokenizers import Tokenizer

from es_sbert.errors import UsageError

# (first character, character behind the last) of a passage in its text
Span = tuple[int, int]


class Chunker:
    """Cuts texts at the ends of paragraphs and sentences; inside a sentence only where it is longer than a passage.

    Ends of sentences are those of Unicode's standard annex 29, found by the library `semantic-text-splitter`.

    Args:
        tokenizer: Without truncation and padding.
        tokens: Most tokens of a passage, its special tokens and `prompt` included.
        overlap: Most tokens that two neighbouring passages share.
        prompt: What will be put in front of each passage.

    Raises:
        UsageError: `tokens` leaves no room for a text, or `overlap` none for new text.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: int, overlap: int, prompt: str) -> None:
        taken = len(tokenizer.encode(prompt).ids)  # the special tokens, and those of the prompt
        room = tokens - taken
        if room < 1:
            raise UsageError(
                f"passages of {tokens} tokens hold no text: special tokens and prompt take {taken} of them",
                "Make --passages larger.",
            )
        if overlap >= room:
            raise UsageError(
                f"passages with {room} tokens of text cannot share {overlap} with the next one",
                "Make --passages larger, or --passage-overlap smaller.",
            )
        self._splitter = TextSplitter.from_huggingface_tokenizer(tokenizer, room, overlap=overlap)

    def __call__(self, texts: Sequence[str]) -> list[list[Span]]:
        """The passages of each text, in order, without white space around them; none of a text of white space."""
        found = self._splitter.chunk_all_indices(list(texts))
        return [[(start, start + len(passage)) for start, passage in passages] for passages in found]
