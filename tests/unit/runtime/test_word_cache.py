"""Token ids by word are those of the tokenizer."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from es_sbert.runtime import word_cache
from es_sbert.runtime.word_cache import WordCache, reads_words_alone

_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghiß中σς.-#", "##a", "##b", "##é", "un", "##able"]


def _tokenizer(**settings: bool | None) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer(**settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(_VOCABULARY[:5])
    return tokenizer


# Spaces that are no space, characters that are removed, accents apart from their letters, letters that become two.
_PARTS = [
    " ", "  ", "\t", "\n", "\x1c", "\x00", "\ufffd", "\u00a0", "\u3000", "\u0301", "\u0345", "\u200d", "a", "b", "é",
    "unable", "Σ", "İ", "ß", "中", "한", "😀", "[MASK]", "[SEP]", "[MA", "SK]", ".", "-", "##", "a" * 21,
]  # fmt: skip


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_ids_are_those_of_the_tokenizer(lowercase: bool, strip_accents: bool | None) -> None:
    tokenizer = _tokenizer(lowercase=lowercase, strip_accents=strip_accents)
    assert reads_words_alone(tokenizer)
    choice = random.Random(0)
    texts = ["".join(choice.choices(_PARTS, k=choice.randrange(12))) for _ in range(2000)]
    expected = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    cache = WordCache(tokenizer)
    for _ in range(2):  # the second time from the cache
        assert [row.tolist() for row in cache(texts)[0]] == expected


def test_cache_forgets_words_that_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "_MAX_BYTES", 700)  # three words
    tokenizer = _tokenizer()
    cache = WordCache(tokenizer)
    texts = ["a b", "b c d", "a e f g h", "b " + "a" * 33, *(f"a {'b' * n} {'c' * n}" for n in range(1, 40))]
    for text in texts:
        ((row,), _) = cache([text])
        assert row.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
        kept = cache._young | cache._old
        assert len(kept) <= 11
        assert "a" * 33 not in kept
    assert "a" in kept  # in every text
    assert "d" not in kept


def test_words_that_the_tokenizer_reads_are_counted() -> None:
    cache = WordCache(_tokenizer())
    assert [cache(texts)[1] for texts in (["a b a", "b"], ["a c", ""], [])] == [(4, 2), (3, 2), (0, 0)]


def test_threads_get_the_ids_of_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "_MAX_BYTES", 2000)
    tokenizer = _tokenizer()
    cache, choice = WordCache(tokenizer), random.Random(1)
    texts = [" ".join("".join(choice.choices("abcdefg", k=2)) for _ in range(4)) for _ in range(400)]
    expected = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: cache(texts[start : start + 5]), range(0, 400, 5)))
    assert [row.tolist() for rows, _ in parts for row in rows] == expected


def test_tokenizers_that_read_across_spaces_are_recognized() -> None:
    joins = _tokenizer()
    joins.add_tokens([AddedToken("a b")])
    strips = _tokenizer()
    strips.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    pieces = _tokenizer()
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    replaces = _tokenizer()
    replaces.normalizer = normalizers.Sequence([normalizers.Replace(" ", "_"), normalizers.Lowercase()])
    for tokenizer in (joins, strips, pieces, replaces):
        assert not reads_words_alone(tokenizer)
