"""Tokens are the tokenizer's own; cuts keep the special tokens and are counted."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import es_sbert.runtime.tokenizer as tokenizer_module
from es_sbert.bundle.modules import PromptKind
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import BundleInvalid, UsageError
from es_sbert.runtime.tokenizer import MAX_COUNTED_CHARACTERS, SentenceTokenizer
from tests.raised import raises_as_recorded
from tests.tiny import WORDS, write_tiny_bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("m") / "tiny", max_tokens=8, prompts={"query": "query: "})


def test_truncation_equals_the_tokenizers_library(folder: Path) -> None:
    texts = ["", "a", "A man plays the guitar.", " ".join(WORDS), "unknown words", "a " * 100]
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.enable_truncation(8)
    ours = SentenceTokenizer(read_sentence_model(folder))(texts)
    assert [row.tolist() for row in ours.ids] == [encoding.ids for encoding in reference.encode_batch(texts)]
    counted = SentenceTokenizer(read_sentence_model(folder))(["a " * 6, "a " * 7])
    assert (counted.tokens.tolist(), counted.truncated.tolist()) == ([8, 9], [False, True])


def test_texts_and_models_that_cannot_be_tokenized_are_rejected(tmp_path: Path) -> None:
    model = read_sentence_model(write_tiny_bert(tmp_path / "m"))
    with raises_as_recorded(UsageError):
        SentenceTokenizer(model)(["\ud800"])
    with raises_as_recorded(BundleInvalid):
        SentenceTokenizer(model.model_copy(update={"max_tokens": 2}))
    with raises_as_recorded(BundleInvalid):
        SentenceTokenizer(model.model_copy(update={"transformer_config": {"vocab_size": 3}}))
    file = tmp_path / "m" / "tokenizer.json"
    larger = Tokenizer.from_file(str(file))
    larger.add_tokens(["<new>"])
    larger.save(str(file))
    tokenizer = SentenceTokenizer(model)
    with raises_as_recorded(UsageError):
        tokenizer(["a cat", "a <new> cat"])
    assert tokenizer(tokenizer.readable(["a cat", "a <new> cat"])).tokens.tolist() == [4]
    file.write_text("{}")
    with raises_as_recorded(BundleInvalid):
        SentenceTokenizer(model)


def test_prompt_is_prepended(folder: Path) -> None:
    tokenizer = SentenceTokenizer(read_sentence_model(folder))
    assert tokenizer(["a cat"], "query").ids[0].tolist() == tokenizer(["query: a cat"]).ids[0].tolist()
    assert tokenizer(["a cat"], "document").ids[0].tolist() == tokenizer(["a cat"]).ids[0].tolist()


def test_lowercase_applies_to_prompts_but_not_special_tokens(folder: Path) -> None:
    """As in sentence-transformers: prompts are lower-cased too, and special tokens in a text stay special."""
    model = read_sentence_model(folder)
    plain = SentenceTokenizer(model)
    lowered = SentenceTokenizer(model.model_copy(update={"lowercase": True, "prompts": {"query": "QUERY: "}}))
    assert lowered(["[SEP] A CAT"]).ids[0].tolist() == plain(["[SEP] a cat"]).ids[0].tolist()
    assert lowered(["A CAT"], "query").ids[0].tolist() == plain(["query: a cat"]).ids[0].tolist()


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        WORDS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["[UNK]", "[SEP]"])
    )
    return tokenizer


def _unigram(*, splits: bool = True) -> Tokenizer:
    words, letters = ((f"▁{word}", -2.0) for word in WORDS), ((letter, -4.0) for letter in "aceghilmnopqrsty12e[]")
    tokenizer = Tokenizer(models.Unigram([("[UNK]", 0.0), *words, ("▁", -3.0), *letters], 0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=splits)
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    return tokenizer


_FRAGMENTS = [
    *WORDS, " ", "  ", "\n\n", "\t", "[SEP]", "[SE", "中文", "e\u0301", "\u0301", "１２", "12", "ﬁ", "-", "x" * 130,
]  # fmt: skip


@pytest.fixture(scope="module", params=["WordPiece", "BPE of bytes", "Unigram of words", "Unigram of whole texts"])
def any_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SentenceTokenizer:
    folder = write_tiny_bert(tmp_path_factory.mktemp("m") / "tiny", max_tokens=12, prompts={"query": "query: "})
    made = {
        "BPE of bytes": _byte_level,
        "Unigram of words": _unigram,
        "Unigram of whole texts": partial(_unigram, splits=False),
    }
    if request.param in made:
        tokenizer = made[request.param]()
        tokenizer.save(str(folder / "tokenizer.json"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "vocab_size": tokenizer.get_vocab_size() + 2}))
    return SentenceTokenizer(read_sentence_model(folder))


@given(
    st.lists(st.sampled_from(_FRAGMENTS), max_size=200), st.sampled_from(["", " "]), st.sampled_from([None, "query"])
)
@settings(deadline=None, max_examples=300)
def test_prefix_of_a_long_text_gives_the_ids_of_the_whole(
    any_tokenizer: SentenceTokenizer, fragments: list[str], between: str, kind: PromptKind | None
) -> None:
    text = between.join(fragments)
    [whole] = any_tokenizer([text], kind).ids
    exact = any_tokenizer([text], kind).tokens
    with pytest.MonkeyPatch.context() as patch:
        small = {"MAX_COUNTED_CHARACTERS": 40, "_MIN_PREFIX": 20, "_PREFIX_PER_TOKEN": 1, "_WHITE_SPACE_WINDOW": 8}
        for name, value in {**small, "_PREFIX_GROWTH": 2}.items():
            patch.setattr(tokenizer_module, name, value)
        begun = any_tokenizer(["a cat", text, "a"], kind)
    np.testing.assert_array_equal(begun.ids[1], whole)
    assert begun.truncated[1] == (exact[0] > 12)
    assert begun.tokens.tolist()[::2] == any_tokenizer(["a cat", "a"], kind).tokens.tolist()


def test_tokens_of_a_very_long_text_are_estimated(folder: Path) -> None:
    tokenizer = SentenceTokenizer(read_sentence_model(folder))
    text = "the cat sleeps on the mat . " * 100_000
    assert tokenizer([text]).tokens[0] == pytest.approx(700_002, rel=0.01)
    # Below the limit every token is counted.
    counted = text[:MAX_COUNTED_CHARACTERS].rstrip()
    assert tokenizer([counted]).tokens[0] == len(counted.split()) + 2
