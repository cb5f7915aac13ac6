"""Releases of `tokenizers` that give texts other ids are refused."""

import hashlib
from importlib import import_module, reload

import pytest

from es_sbert.errors import UsageError
from tests.raised import raises_as_recorded

try:
    PACKAGE = import_module("es_sbert.runtime.tokenizers_package")
    from tokenizers import normalizers, pre_tokenizers
except UsageError as refused:
    pytestmark = pytest.mark.skip(str(refused))


def test_characters_are_split_as_by_known_releases() -> None:
    # Not lower-cased: 0.22.0 and 0.23.3 differ in 28 letters of Unicode 17, newer than vocabularies.
    bert, nfkc = normalizers.BertNormalizer(lowercase=False, strip_accents=True), normalizers.NFKC()
    digest = hashlib.sha256()
    for number in (*range(0xD800), *range(0xE000, 0x20000)):
        text = f"e{chr(number)}\u0323\u0301"
        words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(bert.normalize_str(text))
        digest.update(f"{[word for word, _ in words]} {nfkc.normalize_str(text)}".encode())
    assert digest.hexdigest()[:16] == "07cece6675b7a8eb"


def test_other_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, other in (
        ("normalizers.NFKC", lambda: normalizers.Replace("\ua7f2", "C")),
        ("pre_tokenizers.BertPreTokenizer", lambda: pre_tokenizers.Split("\u061d", "isolated")),
    ):
        with monkeypatch.context() as changed, raises_as_recorded(UsageError):
            changed.setattr(f"tokenizers.{name}", other)
            reload(PACKAGE)
    monkeypatch.delattr("tokenizers.Tokenizer")
    with raises_as_recorded(UsageError):
        reload(PACKAGE)
