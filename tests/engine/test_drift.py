"""Drift of a real index: new documents by date or by filter, with tokens where the model is known."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from es_sbert.cli.main import main
from es_sbert.diagnostics.drift import Drift
from es_sbert.diagnostics.index_drift import embedded_at_field, measure_drift, since_query
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.search import SemanticIndex

_KNOWN = ("man", "plays", "guitar", "cat", "sleeps", "on", "mat")


def test_drift_of_documents_by_date_and_filter(
    engine: Engine, engine_url: str, index_name: str, tiny: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [" ".join(words) for words in list(permutations(_KNOWN, 4))[::6]]  # 140
    documents = [{"_id": f"old{n}", "text": text, "day": "2026-01-01"} for n, text in enumerate(texts[:100])]
    documents += [{"_id": f"same{n}", "text": text, "day": "2026-02-01"} for n, text in enumerate(texts[100:])]
    documents += [{"_id": f"new{n}", "text": f"Quark {'boson ' * (n % 9)}.", "day": "2026-03-01"} for n in range(40)]
    with SemanticIndex.create(
        index_name, engine, encoder=tiny, text_template="{text}", index_type="hnsw", vector_field="v"
    ) as index:
        index.add(documents)
    said: list[str] = []

    def ids(*prefixes: str) -> dict[str, object]:
        return {"ids": {"values": [d["_id"] for d in documents if str(d["_id"]).startswith(prefixes)]}}

    report = measure_drift(engine, index_name, "v", since_query("day", "2026-03-01"), report=said.append)
    assert report.drift is Drift.UNLIKE
    assert (report.new, report.new_total, report.baseline, report.baseline_total) == (40, 40, 140, 140)
    assert {id.removeprefix("new").isdigit() for id, _, _ in report.far} == {True}
    assert report.far[0][2].startswith("Quark")
    assert report.tokens is not None, said
    known, unknown = (counts.unknown_share for counts in report.tokens)
    assert known == 0
    assert unknown > 0.5
    again = measure_drift(engine, index_name, "v", since_query("day", "2026-03-01"), report=said.append)
    assert (again.drift, again.new) == (report.drift, report.new)
    assert measure_drift(engine, index_name, "v", ids("same"), ids("old"), report=said.append).new == 40
    # All documents were embedded by this test.
    with pytest.raises(IndexMismatch, match="0 documents of the baseline with a vector in v"):
        measure_drift(engine, index_name, "v", since_query(embedded_at_field("v"), "now-1d"), report=said.append)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("index", "drift", index_name, "--url", engine_url, "--vector-field", "v", "--json"),
                *("--since", "2026-03-01", "--time-field", "day", "--sample", "30"),
            ]
        )
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    found = json.loads(printed.out)
    assert (found["drift"], found["new"], found["new_total"], found["baseline"]) == ("unlike", 30, 40, 60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "exactly one of --since and --new is required"),
        (["--since", "now-1d", "--new", "{}"], "exactly one of --since and --new is required"),
        (["--new", '{"match_all": {}}', "--time-field", "day"], "--time-field requires --since"),
        (["--new", "[1]"], "the filter"),
    ],
)
def test_contradictory_options_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["index", "drift", "docs", *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
