"""Tokens are the tokenizer's own; cuts keep the special tokens and are counted."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from es_sbert.bundle.checkpoint import read_model
from es_sbert.encoder.tokenizer import SentenceTokenizer, cut
from es_sbert.errors import BundleInvalid, UsageError
from tests.tiny import WORDS, write_tiny_bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("m") / "tiny", max_tokens=8, prompts={"query": "query: "})


def test_equal_to_the_library_with_its_own_truncation(folder: Path) -> None:
    texts = ["", "a", "A man plays the guitar.", " ".join(WORDS), "unknown words", "a " * 100]
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.enable_truncation(8)
    ours = SentenceTokenizer(read_model(folder))(texts)
    assert [row.tolist() for row in ours.ids] == [encoding.ids for encoding in reference.encode_batch(texts)]


def test_counts_before_the_cut(folder: Path) -> None:
    tokenized = SentenceTokenizer(read_model(folder))(["a " * 6, "a " * 7, "a " * 1000])
    assert tokenized.tokens.tolist() == [8, 9, 1002]
    assert tokenized.truncated.tolist() == [False, True, True]
    assert {len(row) for row in tokenized.ids} == {8}


def test_prompt_is_put_in_front(folder: Path) -> None:
    tokenizer = SentenceTokenizer(read_model(folder))
    assert tokenizer(["a cat"], "query").ids[0].tolist() == tokenizer(["query: a cat"]).ids[0].tolist()
    assert tokenizer(["a cat"], "document").ids[0].tolist() == tokenizer(["a cat"]).ids[0].tolist()


def test_lower_case_is_a_step_of_the_tokenizer(folder: Path) -> None:
    """As in sentence-transformers: prompts are lower-cased too, and special tokens in a text stay special."""
    model = read_model(folder)
    plain = SentenceTokenizer(model)
    lowered = SentenceTokenizer(model.model_copy(update={"lowercase": True, "prompts": {"query": "QUERY: "}}))
    assert lowered(["[SEP] A CAT"]).ids[0].tolist() == plain(["[SEP] a cat"]).ids[0].tolist()
    assert lowered(["A CAT"], "query").ids[0].tolist() == plain(["query: a cat"]).ids[0].tolist()


def test_lone_surrogates(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be tokenised"):
        SentenceTokenizer(read_model(folder))(["\ud800"])


def test_broken_tokenizer(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "m")
    model = read_model(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleInvalid, match="is no tokenizer"):
        SentenceTokenizer(model)


def test_no_room_for_text(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match="already fill"):
        SentenceTokenizer(read_model(write_tiny_bert(tmp_path / "m", max_tokens=2)))


@given(st.integers(1, 60), st.integers(3, 40), st.integers(0, 2))
def test_cut_keeps_head_and_special_end(length: int, maximum: int, suffix: int) -> None:
    row = np.arange(length)
    result = cut(row, maximum, suffix)
    assert len(result) == min(length, maximum)
    assert result[: maximum - suffix].tolist() == row[: maximum - suffix].tolist()
    assert result[len(result) - suffix :].tolist() == row[len(row) - suffix :].tolist()
