"""Wrong arguments of `Encoder` are usage errors that name the argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError
from tests.tiny import write_tiny_bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[Encoder]:
    with Encoder(folder, device="cpu", precision="fp32", threads=1) as encoder:
        yield encoder


def refused(name: str, call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    with pytest.raises(UsageError, match=re.escape(name)):
        call(*arguments, **named)


# A list of lists would be read as pairs of texts, and a table as the names of its columns.
WRONG_TEXTS: list[Any] = [
    None, 5, b"a", {"a": 1}, [b"a"], [None], ["a", float("nan")], [("a", "b")], [["a", "b"]], np.array([["a", "b"]]),
]  # fmt: skip


@pytest.mark.parametrize("texts", WRONG_TEXTS, ids=repr)
def test_wrong_texts_are_named(encoder: Encoder, texts: Any) -> None:
    for call in (
        encoder.encode,
        encoder.encode_details,
        encoder.embed_documents,
        encoder.tokenize,
        lambda texts: list(encoder.encode_stream(texts)),
    ):
        refused("texts", call, texts)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_text_is_named_by_its_place(encoder: Encoder, missing: Any) -> None:
    texts = [*["a cat"] * 5, missing]
    message = (
        f"`texts[5]` is {missing}, of type {type(missing).__name__}\n  Pass a list of str; leave out missing values"
    )
    for call in (encoder.encode, lambda texts: list(encoder.encode_stream(texts, window=2))):
        refused(message, call, texts)


def test_one_text_is_refused_where_a_list_is_required(encoder: Encoder) -> None:
    for call in (encoder.encode_details, encoder.embed_documents, encoder.tokenize):
        refused("texts", call, "one text")
    for text in (None, 5, b"a", ["a"]):
        refused("text", encoder.embed_query, text)
    for tokenized in (None, "abc", ["a"], []):
        refused("`tokenized`", encoder.embed, tokenized)


def test_strings_of_numpy_in_any_iterable_are_texts(encoder: Encoder) -> None:
    expected = encoder.encode(["man", "cat"])
    for texts in (("man", "cat"), np.array(["man", "cat"]), [np.str_("man"), "cat"], iter(["man", "cat"])):
        assert np.array_equal(encoder.encode(texts), expected)


@pytest.mark.parametrize("kind", ["passage", "", 5, ["query"]])
def test_a_wrong_kind_is_named(encoder: Encoder, kind: Any) -> None:
    for call in (encoder.encode, encoder.encode_details, encoder.tokenize, encoder.encode_stream):
        refused("`kind`", call, ["a"], kind)
    for call in (encoder.prompt, encoder.input_limit):
        refused("`kind`", call, kind)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", [5, b"x", ["a"]]),
        ("device", [None, 5, "gpu"]),
        ("precision", [None, 8, "fp8"]),
        ("runtime", [None, 1, "tf"]),
        ("threads", ["2", 0, -1, 1.5, True]),
        ("budget", ["2", 0, -1, 1.5]),
    ],
)
def test_a_wrong_argument_of_a_model_is_named(folder: Path, name: str, values: list[Any]) -> None:
    for value in values:
        refused(f"`{name}", Encoder, **{"model": folder, name: value})


def test_wrong_numbers_are_named(encoder: Encoder) -> None:
    for window in ("3", 0, -1, 1.5):
        refused("`window`", encoder.encode_stream, ["a"], window=window)
    for tokens, overlap, name in ((None, 1, "tokens"), ("5", 1, "tokens"), (10, "1", "overlap"), (10, -1, "overlap")):
        refused(f"`{name}`", encoder.make_chunker, tokens, overlap)
