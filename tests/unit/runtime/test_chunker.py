"""Passages: what the model reads whole, on ends of sentences, with nothing of the text lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import UsageError
from es_sbert.runtime.tokenizer import SentenceTokenizer
from tests.raised import raises
from tests.tiny import WORDS, write_tiny_bert


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SentenceTokenizer:
    folder = write_tiny_bert(tmp_path_factory.mktemp("m") / "tiny", max_tokens=24, prompts={"document": "passage: "})
    return SentenceTokenizer(read_sentence_model(folder))


def test_chunks_end_at_sentences(tokenizer: SentenceTokenizer) -> None:
    def chunks(text: str, tokens: int) -> list[str]:
        [spans] = tokenizer.make_chunker(tokens, 0)([text])
        return [text[start:end] for start, end in spans]

    text = "The cat sleeps on the mat. A man plays the guitar. The cat plays.\n\nA man sleeps."
    sentences = ["The cat sleeps on the mat.", "A man plays the guitar.", "The cat plays.", "A man sleeps."]
    assert chunks(text, 9) == sentences
    assert chunks(text, 20) == [text[: text.index("\n")], "A man sleeps."]
    assert chunks(text, 24) == [text]
    assert chunks(" \n ", 24) == []
    assert [len(chunk.split()) for chunk in chunks("cat " * 30, 10)] == [8, 8, 8, 6]


def test_chunks_overlap_by_at_most_the_given_tokens(tokenizer: SentenceTokenizer) -> None:
    text = "The cat sleeps. A man plays. The cat plays. A man sleeps. The mat sleeps."
    [spans] = tokenizer.make_chunker(14, 4)([text])
    shared = [text[second[0] : first[1]] for first, second in pairwise(spans)]
    assert all(len(tokenizer([piece]).ids[0]) - 2 <= 4 for piece in shared)
    assert any(shared)


def test_prompt_reduces_chunk_size(tokenizer: SentenceTokenizer) -> None:
    text = "cat " * 40
    [spans] = tokenizer.make_chunker(10, 0, "document")([text])
    read = tokenizer([text[start:end] for start, end in spans], "document")
    assert read.tokens.max() == 10
    assert len(spans) == 7  # six words each beside two special tokens and the two of the prompt


@given(
    st.lists(st.sampled_from([*WORDS, "unknown", "é", "句子。", "\n\n", "! ", "a-b", "\t", "😀"]), max_size=80),
    st.integers(6, 24),
    st.integers(0, 3),
    st.sampled_from(["", " "]),
)
def test_chunks_cover_the_text_within_the_token_limit(
    tokenizer: SentenceTokenizer, words: list[str], tokens: int, overlap: int, between: str
) -> None:
    text = between.join(words)
    [spans] = tokenizer.make_chunker(tokens, overlap)([text])
    covered = {place for start, end in spans for place in range(start, end)}
    assert not "".join(character for place, character in enumerate(text) if place not in covered).strip()
    assert all(first[0] < second[0] and first[1] < second[1] for first, second in pairwise(spans))
    if spans:
        assert tokenizer([text[start:end] for start, end in spans]).tokens.max() <= tokens


@pytest.mark.parametrize(
    ("tokens", "overlap", "setting"), [(25, 0, "passages"), (2, 0, "passages"), (10, 8, "passage_overlap")]
)
def test_invalid_chunk_rules_are_rejected(
    tokenizer: SentenceTokenizer, tokens: int, overlap: int, setting: str
) -> None:
    with raises(UsageError, setting):
        tokenizer.make_chunker(tokens, overlap)
