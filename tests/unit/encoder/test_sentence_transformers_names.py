"""Programs written for sentence-transformers get the same results from an `Encoder`, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError, WrongArgument
from tests.raised import raises, raises_as_recorded
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
    "pairs": lambda model: np.asarray(model.similarity_pairwise(model.encode(TEXTS[:2]), model.encode(TEXTS[1:]))),
    "a tensor": lambda model: model.encode(TEXTS, convert_to_tensor=True, device="cpu").numpy(),
    "cosines of tensors": lambda model: model.similarity(*[model.encode(TEXTS, convert_to_tensor=True)] * 2).topk(1)[0],
    "paired tensors": lambda model: model.similarity_pairwise(*[model.encode(TEXTS, convert_to_tensor=True)] * 2).cpu(),
    "fewer numbers": lambda model: model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True),
    "limits": lambda model: [model.get_max_seq_length(), len(model.prompts)],
    "dimensions": lambda model: [model.get_embedding_dimension(), model.max_seq_length],
}


def test_truncated_model_is_the_one_of_that_name(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    with Encoder(folder, truncate_dim=4) as encoder, Encoder(f"{folder}@4") as named:
        assert encoder.info.fingerprint == named.info.fingerprint
        assert encoder.encode(TEXTS).shape == (3, 4)


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
    for wrong in ({"convert_to_numpy": False}, {"precision": "int8"}, {"device": "cuda"}):
        with raises(UsageError, next(iter(wrong))):
            encoder.encode(TEXTS, **wrong)
    with pytest.raises(WrongArgument):
        encoder.encode(TEXTS, colour="red")
    with raises_as_recorded(UsageError):
        encoder.max_seq_length = 512
    hints = {"save": "export_model", "start_multi_process_pool": "encode", "to": "device=", "rank": "Reranker"}
    for name, instead in hints.items():
        with pytest.raises(AttributeError, match=f"Encoder has no `{name}`; use .*{instead}"):
            getattr(encoder, name)
    assert encoder.dimensions == encoder.info.dimensions
    assert not hasattr(encoder, "embed_until")  # of the steps that loads use
    assert encoder.encode([], show_progress_bar=True).shape == (0, encoder.info.dimensions)
    assert capsys.readouterr().out == ""  # the bar is on stderr
