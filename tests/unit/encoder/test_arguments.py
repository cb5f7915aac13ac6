"""Wrong arguments of `Encoder` are usage errors that name the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError, WrongArgument
from es_sbert.exporters import export_model
from tests.raised import raises, raises_as_recorded


def refused(name: str, call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    with raises(UsageError, name):
        call(*arguments, **named)


# A list of lists would be read as pairs of texts, and a table as the names of its columns.
WRONG_TEXTS: list[Any] = [
    None, b"a", {"a": 1}, {"a"}, [b"a"], ["a", float("nan")], [["a", "b"]], [("a", "b")], np.array([["a", "b"]]),
    pd.DataFrame({"a": ["b"]}),
]  # fmt: skip


@pytest.mark.parametrize("texts", WRONG_TEXTS, ids=repr)
def test_wrong_texts_are_named(encoder: Encoder, texts: Any) -> None:
    for call in (encoder.embed_documents, encoder.encode, lambda texts: list(encoder.encode_stream(texts))):
        refused("texts", call, texts)
    refused("texts", encoder.embed_documents, "one text")


def test_type_errors_are_type_errors_and_values_are_not(encoder: Encoder, tiny: Path) -> None:
    for call in (encoder.encode, encoder.embed_documents, lambda texts: list(encoder.encode_stream(texts))):
        with pytest.raises(TypeError):
            call({"a", "b"})
    for wrong in ({"threads": "2"}, {"batches": 2}, {"device": None}):
        with pytest.raises(TypeError):
            Encoder(tiny, **wrong)
    with raises(UsageError, "kind", "passage") as caught:
        encoder.encode("a", "passage")
    assert not isinstance(caught.value, TypeError)
    with raises(UsageError, "device", "gpu") as caught:
        Encoder(tiny, device="gpu")
    assert not isinstance(caught.value, TypeError)


@pytest.mark.parametrize("text", ["ab\ud800", "\udc00" + "long " * 30_000])
def test_text_with_half_a_surrogate_pair_is_named(encoder: Encoder, text: str) -> None:
    for call in (encoder.encode, lambda texts: list(encoder.encode_stream(texts, window=2))):
        with raises_as_recorded(UsageError):
            call(["a cat", "", "another", text])


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), pd.NA, 1.5])
def test_missing_text_is_named_by_its_place(encoder: Encoder, missing: Any) -> None:
    texts = [*["a cat"] * 5, missing]
    for call in (encoder.encode, lambda texts: list(encoder.encode_stream(texts, window=2))):
        with raises_as_recorded(UsageError):
            call(texts)


def test_wrong_arguments_of_methods_are_named(encoder: Encoder) -> None:
    for kind in ("passage", ["query"]):
        for call in (encoder.encode, encoder.encode_stream):
            refused("kind", call, ["a"], kind)
    refused("text", encoder.embed_query, ["a"])
    refused("window", encoder.encode_stream, ["a"], window=0)
    with raises_as_recorded(WrongArgument):
        export_model("all-MiniLM-L6-v2", "bundle", precision="fp32")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", [5, b"x"]),
        ("device", [None, "gpu"]),
        ("precision", [8, "fp8"]),
        ("runtime", [1, "tf"]),
        ("threads", ["2", 0, True]),
        ("budget", ["2", 1.5]),
    ],
)
def test_a_wrong_argument_of_a_model_is_named(tiny: Path, name: str, values: list[Any]) -> None:
    for value in values:
        refused(name, Encoder, **{"model": tiny, name: value})
