"""The time to the most similar pair: the parts that need no model and no peer."""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import pairs
from benchmarks import pairs_results as results
from benchmarks.encode_peers.contenders import peer_contenders
from benchmarks.encode_peers.measure import ContenderFailed
from benchmarks.pairs_results import (
    OURS,
    PairsResult,
    PairsRun,
    contenders_table,
    goals,
    keep,
    kept,
    run_text,
    section,
    sizes_table,
)
from es_sbert.config import DEFAULT_MODEL


def _run(ours: float = 4.0, kind: str = "amx", model: str = DEFAULT_MODEL) -> PairsRun:
    own, mining = PairsResult(OURS, "bf16"), PairsResult("mining", versions={"torch": "1"})
    for took in (ours, ours + 1):
        own.add(took, {"start": 1.0, "embedding": 2.5, "comparing": 0.2}, 0.01)
        mining.add(10.0, {"start": 3.0}, None)
    broken = PairsResult("broken", reason="pip: a | b")
    processor = {"kind": kind, "name": "Some CPU", "features": ["avx2"], "cores": 2}
    sizes = [[1_000, 0.1, 100.0], [10_000, 10.0, 200.0]]
    contenders = [own, mining, broken]
    return PairsRun(model, "2026-01-01", "abc", 2, 2, 10_000, processor, "3.11", 0.1, contenders, 200.0, sizes)


def test_sentences_differ_in_more_than_how_they_end(tmp_path: Path) -> None:
    (tmp_path / "sts").mkdir()
    for name in pairs.FILES:
        lines = ["sentence1\tsentence2\tscore", f"A dog.\tA cat of {name}\t1", "A dog!\t\t2"]
        (tmp_path / f"sts/{name}.tsv.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    assert len(pairs.sentences(tmp_path)) == 1 + len(pairs.FILES)


def test_peers_are_contenders_of_the_encoders() -> None:
    labels = {contender.label for contender in peer_contenders("avx2", "")}
    assert set(pairs.PEERS) <= labels


def test_command_is_timed_from_start_to_end() -> None:
    took, output, share = pairs.timed_command([sys.executable, "-c", "print('pair')"], {})
    assert took > 0
    assert output == "pair\n"
    assert share is None or share >= 0
    with pytest.raises(ContenderFailed, match=r"ended with 1: .*no folder"):
        pairs.timed_command([sys.executable, "-c", "raise ValueError('no folder')"], {})


def test_goal_is_met_missed_or_not_measured() -> None:
    assert [goal.met for goal in goals(_run())] == [True]
    assert [goal.met for goal in goals(_run(ours=4.6))] == [False]
    assert "4.50 (4.00–5.00) s on 2 cores, goal ≤ 5 s on two: met" in str(next(goals(_run())))
    run = _run()
    run.contenders[0].reason = "failed"
    assert [goal.met for goal in goals(run)] == [None]


def test_table_compares_with_the_whole_command() -> None:
    lines = contenders_table(_run()).splitlines()
    assert "`es-sbert pairs` (bf16) | 4.50 (4.00–5.00) | 1.00 | 1.00 (1.00–1.00) | 2.50" in lines[2]
    assert "| mining | 10.00 (10.00–10.00) | 2.25 | 3.00 (3.00–3.00) |  |  |" in lines[3]
    assert "not measured: pip: a \\| b" in lines[4]
    assert "200 pairs/s, scaled | 249,975 | 55,550 |" in lines[5]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_table_of_a_run_without_es_sbert() -> None:
    run = _run()
    run.contenders[0] = PairsResult(OURS, reason="failed")
    assert "| mining | 10.00 (10.00–10.00) |  | 3.00" in contenders_table(replace(run, cross_encoder=None))


def test_sizes_have_the_exponent_to_the_row_before() -> None:
    assert sizes_table([[1_000, 0.1, 100.0], [10_000, 10.0, 200.0]]).endswith("| 10,000 | 10.00 | 200 | 2.00 |")


def test_run_replaces_only_its_own_kind_and_model(tmp_path: Path) -> None:
    keep(_run(kind="avx2"), tmp_path)
    keep(_run(model="other"), tmp_path)
    keep(_run(), tmp_path)
    before = (tmp_path / "avx2.json").read_bytes()
    keep(_run(ours=3.14159265), tmp_path)
    assert (tmp_path / "avx2.json").read_bytes() == before
    runs = kept(tmp_path)
    assert list(runs) == ["amx", "avx2"]
    assert list(runs["amx"]) == [DEFAULT_MODEL, "other"]
    assert runs["amx"][DEFAULT_MODEL].contenders[0].seconds == [3.1416, 4.1416]
    assert runs["avx2"][DEFAULT_MODEL] == _run(kind="avx2")
    assert "### x86 with AMX: all-MiniLM-L6-v2, 10,000 sentences" in section(runs)
    assert section(kept(tmp_path / "missing")) == "No processor has been measured yet."
    assert "the machine was quiet" in run_text(_run())
    assert "- mining: torch 1" in run_text(_run())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "--data is needed"), (["--data", ".", "--write", "--limit", "50"], "--write is for whole runs")],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(pairs.main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_command_writes_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    page.write_text(f"# Results\n<!-- {results.NAME}: made by {results.MAKER} -->\n<!-- end of {results.NAME} -->\n")
    keep(_run(), tmp_path)
    runs = kept(tmp_path)
    monkeypatch.setattr(results, "PAGE", page)
    monkeypatch.setattr(results, "kept", lambda: runs)
    result = CliRunner().invoke(pairs.main, ["--kept", "--write"])
    assert result.exit_code == 0
    assert "### x86 with AMX: all-MiniLM-L6-v2, 10,000 sentences" in page.read_text()
