"""The table of architectures: every architecture of transformers is in a list, and rows say what became of it."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.architectures import (
    PAGE,
    Architecture,
    Row,
    architectures,
    installed_model_types,
    measure_apart,
    not_measured,
    read_lists,
    section,
    short_reason,
    table_row,
)
from benchmarks.common import replaced
from es_sbert.errors import ParityFailed, UnsupportedArchitecture


def test_every_architecture_of_transformers_is_listed() -> None:
    """A new release has new ones: put them into benchmarks/architectures.toml and make the table again."""
    listed = {architecture.model_type for architecture in architectures().values()} | set(not_measured())
    assert installed_model_types() - listed == set(), "in no list"
    assert listed - installed_model_types() == set(), "not in this release of transformers"


def test_no_architecture_is_listed_twice() -> None:
    lists = read_lists()
    names = [*lists["bidirectional"]["names"].split(), *lists["causal"]["names"].split()]
    names += [name for entry in lists["not_measured"].values() for name in entry["names"].split()]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_settings_and_variants_belong_to_listed_architectures() -> None:
    lists = read_lists()
    known = architectures()
    assert set(lists["settings"]) <= {architecture.model_type for architecture in known.values()}
    assert set(lists["variants"]) <= set(known)
    assert known["gemma3_text-bidirectional"].settings == {"use_bidirectional_attention": True}
    assert (known["bert"].is_causal, known["qwen3"].is_causal) == (False, True)


def test_section() -> None:
    rows = [
        Row("bert", "built", 0.9999999, 0.99975),
        Row("gpt2", "traced", 1.0, None),
        Row("fnet", "refused", reason="no | operator"),
    ]
    text = section(rows)
    assert "1 built, 1 traced, 1 refused" in text
    assert "| `bert` | built | 1.00000 | 0.99975 |  |" in text
    assert table_row(rows[1])[2:4] == ["1.00000", "–"]
    assert r"no \| operator" in text


def test_page_has_every_architecture() -> None:
    page = PAGE.read_text(encoding="utf-8")
    replaced(page, "architectures", "", maker="benchmarks.architectures")  # raises if the markers are missing
    assert [name for name in architectures() if f"| `{name}` |" not in page] == []
    assert "not measured" not in page, "an architecture could not be set up"


def test_reasons_are_short() -> None:
    error = UnsupportedArchitecture("model: onnxruntime cannot (onnxruntime: a long story)", "")
    assert short_reason(error, "model") == "onnxruntime cannot"
    message = "model: variant fp32 fails the parity check (min cosine ≥ 1): cosine mean 0.9, min 0.8, rank 3. Nothing"
    assert short_reason(ParityFailed(message, ""), "model") == "fails the parity check: cosine mean 0.9, min 0.8"
    assert len(short_reason(UnsupportedArchitecture("x" * 500, ""), "model")) == 160


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "graph", "reason"),
    [
        ("bert", "built", ""),
        ("electra", "traced", ""),
        ("fnet", "refused", "aten::fft_fftn"),
        ("big_bird", "refused", "after it has read other texts"),
        ("convbert", "refused", "for a padded text"),
        ("mamba", "refused", "is valid for texts of 11 tokens"),
    ],
)
def test_rows(name: str, graph: str, reason: str) -> None:
    row = measure_apart(architectures()[name])
    assert (row.name, row.graph, row.is_clear) == (name, graph, True)
    assert reason in row.reason
    assert (row.fp32 is None) == (graph == "refused")
    if row.fp32 is not None and row.int8 is not None:
        assert row.fp32 >= 0.99999
        assert 0.9 < row.int8 < 0.99999, "this graph is not quantized"


@pytest.mark.slow
def test_network_that_cannot_be_set_up_is_a_row() -> None:
    row = measure_apart(Architecture("bert", "bert", False, {"num_attention_heads": 3}))
    assert (row.graph, row.is_clear) == ("refused", False)
    assert row.reason.startswith("not measured: ")
