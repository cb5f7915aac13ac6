"""Programs written for sentence-transformers get the same results from an `Encoder`, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError, WrongArgument
from tests.raised import raises
from tests.tiny import write_tiny_bert

TEXTS = ["A man plays a guitar.", "The cat sleeps.", ""]

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "one text": lambda model: model.encode("A man plays a guitar."),
    "queries": lambda model: model.encode_query(TEXTS),
    "documents": lambda model: model.encode_document(TEXTS),
    "a named prompt": lambda model: model.encode(TEXTS, prompt_name="query"),
    "a prompt": lambda model: model.encode(TEXTS, prompt="The cat "),
    "unit vectors": lambda model: model.encode(TEXTS, batch_size=2, normalize_embeddings=True),
    "a progress bar": lambda model: model.encode(TEXTS, show_progress_bar=True, convert_to_numpy=True),
    "similarity": lambda model: np.asarray(model.similarity(model.encode(TEXTS[0]), model.encode(TEXTS))),
    "dimensions": lambda model: [model.get_embedding_dimension(), model.max_seq_length],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_gets_what_sentence_transformers_returns(name: str, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = write_tiny_bert(tmp_path / "model", normalize=False, prompts={"query": "query: ", "document": "passage: "})
    with Encoder(folder, precision="fp32") as encoder:
        actual = PROGRAMS[name](encoder)
    expected = PROGRAMS[name](sentence_transformers.SentenceTransformer(str(folder), device="cpu"))
    assert np.shape(actual) == np.shape(expected)
    assert actual == pytest.approx(expected, abs=1e-5)


def test_what_has_no_meaning_is_refused_with_the_reason(encoder: Encoder, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ({"convert_to_tensor": True}, {"precision": "int8"}, {"device": "cuda"}):
        with raises(UsageError, next(iter(wrong))):
            encoder.encode(TEXTS, **wrong)
    with pytest.raises(WrongArgument):
        encoder.encode(TEXTS, colour="red")
    with pytest.raises(UsageError, match="cannot be set to 512 on an open model"):
        encoder.max_seq_length = 512
    assert encoder.encode([], show_progress_bar=True).shape == (0, encoder.info.dimensions)
    assert capsys.readouterr().out == ""  # the bar is on stderr
